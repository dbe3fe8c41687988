"""Atari Pong from single frames, played by many at once in ale-py's C++ vector environment.

84 x 84 grey frames without stacking, each action repeated four times, rewards clipped to -1, 0, 1.
They are the points of the game, so an episode's reward is its score, from -21 to 21. The speed of
the ball cannot be seen in one frame and must be remembered.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from stpn._extras import need
from stpn.scenes import Image, Scene
from stpn.tasks.agents import AgentTask
from stpn.training.rl_config import AgentConfig

if TYPE_CHECKING:
    from stpn.training.agent import Encoder
    from stpn.training.policies import Policy

ACTION_REPEAT = 4
FRAME = (84, 84)
SCREEN = (210, 160)
NUM_ACTIONS = 6
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


def screen_env(num_envs: int = 1, *, three_actions: bool = False, **options: Any) -> Any:
    """The same games in full size and colour, to be looked at.

    The emulator is deterministic: started with the same seed and given the same actions as a
    `vector_env`, it shows the same game.
    """
    size = {"img_height": SCREEN[0], "img_width": SCREEN[1]}
    return vector_env(num_envs, three_actions=three_actions, grayscale=False, **size, **options)


@dataclass(frozen=True, kw_only=True)
class PongConfig(AgentConfig):
    """Atari Pong from single frames: speed must be remembered."""

    preset: Literal["tuned", "fast", "paper"] = "paper"
    """Whose defaults. tuned: PPO with many small steps on what moves in the frames, which wins on a
    small machine; paper: A2C, 64 agents, 1e8 steps; fast: PPO as it was before it was tuned."""
    steps: int = 100_000_000
    """Steps of all environments together (four frames each)."""
    three_actions: bool = False
    """Choose among stay, up and down only: the other three of the game's actions do the same."""

    total_field: typing.ClassVar[str] = "steps"


class PongScene(Scene):
    """The screen in colour, from a second emulator that is given the same actions."""

    fps = 15
    shows_the_end = True

    def __init__(self, env: Any, *, three_actions: bool) -> None:
        self.env = env
        later = need("gymnasium.vector", extra="rl").AutoresetMode.NEXT_STEP  # shows the last frame
        self._screen = screen_env(1, three_actions=three_actions, autoreset_mode=later)
        self._frame: Image = np.zeros((*SCREEN, 3), dtype=np.uint8)

    def started(self, seed: int) -> None:
        observation, _ = self._screen.reset(seed=seed)
        self._frame = observation[0, 0]

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:
        observation, *_ = self._screen.step(action)
        self._frame = observation[0, 0]

    def picture(self) -> Image:
        return self._frame.repeat(2, axis=0).repeat(2, axis=1)

    def close(self) -> None:
        super().close()
        self._screen.close()


class Pong(AgentTask):
    packages = ("gymnasium", "ale_py")
    rllib_vectorized = True

    def make_env(self, config: PongConfig, count: int) -> Any:
        import torch

        threads = torch.get_num_threads()
        return vector_env(count, threads=threads, three_actions=config.three_actions)

    def interface(self, config: PongConfig, env: Any = None) -> tuple[Encoder, Policy]:
        from stpn.training.agent import Frames
        from stpn.training.policies import Categorical

        encoder = Frames(
            (1, *FRAME), normalize=config.normalize_observations, length=config.feature_length
        )
        return encoder, Categorical(len(EFFECTIVE_ACTIONS) if config.three_actions else NUM_ACTIONS)

    def scene(self, config: PongConfig) -> Scene:
        return PongScene(self.make_env(config, 1), three_actions=config.three_actions)

    def rllib_env(self, config: PongConfig) -> Any:
        def make(context: Any) -> Any:
            modes = need("gymnasium.vector", extra="rl").AutoresetMode
            # RLlib begins an episode in a step of its own
            return vector_env(
                context["num_envs"],
                threads=config.threads or 1,
                three_actions=config.three_actions,
                autoreset_mode=modes.NEXT_STEP,
            )

        return make


FAST = {
    "algo": "ppo",
    "num_envs": 32,
    "num_steps": 128,
    "steps": 10_000_000,
    "lr": 4e-4,
    "lr_decay": 20_000_000,
    "max_grad_norm": 0.5,
    "clip_coef": 0.1,
    "update_epochs": 3,
    "minibatch_size": 512,
    "sequence_length": 64,
}

TUNED = {
    "algo": "ppo",
    "num_envs": 16,
    "num_steps": 128,
    "steps": 3_000_000,
    "lr": 5e-4,
    "lr_decay": None,
    "lr_final": 0.0,
    "gamma": 0.98,
    "ent_coef_final": 0.003,
    "max_grad_norm": 0.5,
    "eps": 1e-5,
    "clip_coef": 0.2,
    "update_epochs": 3,
    "minibatch_size": 256,
    "sequence_length": 32,
    "standardize": "minibatch",
    "orthogonal": True,
    "normalize_observations": True,
    "feature_length": 10.0,
    "three_actions": True,
    "eval_every": 50_000,
}

TASKS = (
    Pong(
        name="pong",
        title="Atari Pong",
        metric="reward",
        config=PongConfig,
        settings={
            "lr": 7e-4,
            "lr_decay": 200_000_000,
            "eval_every": 200_000,
            "eval_episodes": 8,
            "final_episodes": 32,
        },
        model_settings={"lstm": {"lr": 0.0001}},
        presets={"paper": {}, "fast": FAST, "tuned": TUNED},
        default_preset="tuned",
    ),
)
