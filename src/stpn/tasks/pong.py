"""Atari Pong from single frames, played by many at once in ale-py's C++ vector environment.

84 x 84 grey frames without stacking, each action repeated four times, rewards clipped to -1, 0, 1.
They are the points of the game, so an episode's reward is its score, from -21 to 21. The speed of
the ball cannot be seen in one frame and must be remembered.
"""

from __future__ import annotations

from typing import Any

from stpn._extras import need

ACTION_REPEAT = 4
FRAME = (84, 84)
SCREEN = (210, 160)


def vector_env(num_envs: int, *, threads: int = 0, **options: Any) -> Any:
    """A `gymnasium.vector.VectorEnv` of `num_envs` games, worked on by `threads` (0: every core).

    `options` go to `ale_py.AtariVectorEnv`. Emulators cannot be saved: a resumed run starts new
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
    return ale_py.AtariVectorEnv("pong", num_envs=num_envs, **{**settings, **options})


def screen_env(num_envs: int = 1) -> Any:
    """The same games in full size and colour, to be looked at.

    The emulator is deterministic: started with the same seed and given the same actions as a
    `vector_env`, it shows the same game.
    """
    return vector_env(num_envs, grayscale=False, img_height=SCREEN[0], img_width=SCREEN[1])
