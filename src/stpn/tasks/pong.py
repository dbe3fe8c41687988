"""Atari Pong from single frames, played by many at once in ale-py's C++ vector environment.

84 x 84 grey frames without stacking, each action repeated four times, rewards clipped to -1, 0, 1.
They are the points of the game, so an episode's reward is its score, from -21 to 21. The speed of
the ball cannot be seen in one frame and must be remembered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stpn._extras import need

ACTION_REPEAT = 4
FRAME = (84, 84)
SCREEN = (210, 160)


EFFECTIVE_ACTIONS = (0, 2, 3)  # of the game's six: stay, up, down; the others press fire, too


def vector_env(
    num_envs: int, *, threads: int = 0, three_actions: bool = False, **options: Any
) -> Any:
    """A `gymnasium.vector.VectorEnv` of `num_envs` games, worked on by `threads` (0: every core).

    With `three_actions` 0, 1, 2 stand for stay, up, down. `options` go to
    `ale_py.AtariVectorEnv`. Emulators cannot be saved: a resumed run starts new
    games.
    """
    ale_py = need("ale_py", extra="rl")
    modes = need("gymnasium.vector", extra="rl").AutoresetMode
    settings = {
        "num_threads": threads,
        "stack_num": 1,
        "frameskip": ACTION_REPEAT,
        "repeat_action_probability": 0.0,  # as PongNoFrameskip-v4
        "img_height": FRAME[0],
        "img_width": FRAME[1],
        "grayscale": True,
        "reward_clipping": True,
        "autoreset_mode": modes.SAME_STEP,
    }
    env = ale_py.AtariVectorEnv("pong", num_envs=num_envs, **{**settings, **options})
    return _choosing(env, EFFECTIVE_ACTIONS) if three_actions else env


def _choosing(env: Any, actions: tuple[int, ...]) -> Any:
    """The environment with a choice among some of its actions."""
    gym = need("gymnasium", extra="rl")
    table = np.array(actions)

    class Choosing(gym.vector.VectorActionWrapper):  # type: ignore[name-defined]
        def actions(self, actions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return table[actions]

    chosen = Choosing(env)
    chosen.single_action_space = gym.spaces.Discrete(len(actions))
    chosen.action_space = gym.vector.utils.batch_space(chosen.single_action_space, env.num_envs)
    return chosen


def screen_env(num_envs: int = 1, *, three_actions: bool = False) -> Any:
    """The same games in full size and colour, to be looked at.

    The emulator is deterministic: started with the same seed and given the same actions as a
    `vector_env`, it shows the same game.
    """
    size = {"img_height": SCREEN[0], "img_width": SCREEN[1]}
    return vector_env(num_envs, three_actions=three_actions, grayscale=False, **size)
