"""Maze exploration: a hidden reward cell, found once by search and then again from memory.

`stpn/Maze-v0` is the task as a Gymnasium environment, `MazeVectorEnv` the same task for many agents
at once. An agent sees the walls around it, the clock, its last reward and its last action, but
neither its position nor the reward cell. Whoever stands on the reward cell earns 10 and is moved to
a random other cell, so the way there must be remembered rather than the moves. Size, a penalty for
walls and a random start are settings; defaults are the paper's.

Importing this module registers the environment::

    import gymnasium, stpn.tasks.maze
    env = gymnasium.make("stpn/Maze-v0", render_mode="ansi")
    envs = gymnasium.make_vec("stpn/Maze-v0", num_envs=512)
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stpn._extras import MissingExtra
from stpn.config import require
from stpn.tasks.agents import AgentTask
from stpn.tasks.maze.grid import ACTIONS, LARGEST, SIZE, SMALLEST
from stpn.training.rl_config import AgentConfig

if TYPE_CHECKING:
    from stpn.scenes import Scene
    from stpn.tasks.maze.environment import EPISODE_STEPS as EPISODE_STEPS
    from stpn.tasks.maze.environment import REWARD as REWARD
    from stpn.tasks.maze.environment import MazeEnv as MazeEnv
    from stpn.tasks.maze.environment import MazeVectorEnv as MazeVectorEnv
    from stpn.training.agent import Encoder
    from stpn.training.policies import Policy

# An observation: 9 walls, 0, 1 (bias), step / 200, previous reward, previous action one-hot.
OBSERVATION_SIZE = 17


@dataclass(frozen=True, kw_only=True)
class MazeConfig(AgentConfig):
    """Maze exploration: find a hidden cell, then find it again and again."""

    preset: Literal["fast", "paper"] = "fast"
    """Whose defaults. fast: PPO on whole episodes, which learns in minutes what takes the
    paper's hours; paper: A2C, 512 agents, learning rate 1e-4, 50,000 iterations."""
    iterations: int = 8000
    """Rollouts and what is learnt from them, one episode of every agent each."""
    reward_input: float = 10.0
    """What an agent sees of a reward in the next step; it earns 10 in any case."""
    maze_size: int = SIZE
    """Rows and columns of the maze, odd."""
    wall_penalty: float = 0.0
    """What a step into a wall costs."""
    random_start: bool = False
    """Begin episodes in any open cell other than the reward cell, not at the centre."""

    total_field: typing.ClassVar[str] = "iterations"

    def check(self) -> None:
        super().check()
        require(self.reward_input >= 0, "reward_input", ">= 0", self.reward_input)
        require(self.wall_penalty >= 0, "wall_penalty", ">= 0", self.wall_penalty)
        possible = SMALLEST <= self.maze_size <= LARGEST and self.maze_size % 2 == 1
        sizes = f"an odd number from {SMALLEST} to {LARGEST}"
        require(possible, "maze_size", sizes, self.maze_size)

    @property
    def env_settings(self) -> dict[str, Any]:
        """Arguments of the environments."""
        return {
            "reward_input": self.reward_input,
            "size": self.maze_size,
            "wall_penalty": self.wall_penalty,
            "random_start": self.random_start,
        }


class Maze(AgentTask):
    def make_env(self, config: MazeConfig, count: int) -> MazeVectorEnv:
        from stpn.tasks.maze.environment import MazeVectorEnv

        return MazeVectorEnv(count, copy=False, **config.env_settings)

    def interface(self, config: MazeConfig, env: Any = None) -> tuple[Encoder, Policy]:
        from stpn.training.agent import Vector
        from stpn.training.policies import Categorical

        encoder = Vector(
            (OBSERVATION_SIZE,),
            normalize=config.normalize_observations,
            length=config.feature_length,
        )
        return encoder, Categorical(len(ACTIONS))

    def reference_points(self) -> Mapping[str, float]:
        from stpn.tasks.maze.reference import reference_points

        return reference_points()

    def scene(self, config: MazeConfig) -> Scene:
        from stpn.tasks.maze.scene import MazeScene

        return MazeScene(self.make_env(config, 1))

    def rllib_env(self, config: MazeConfig) -> Any:
        from stpn.tasks.maze.environment import MazeEnv

        return lambda context: MazeEnv(**config.env_settings)


FAST = {
    "algo": "ppo",
    "num_steps": 200,
    "lr_decay": 12_000,
    "eps": 1e-4,
    "gamma": 0.9,
    "vf_coef": 0.1,
    "relative_value": True,
    "max_grad_norm": 4.0,
    "update_epochs": 3,
    "minibatch_size": 3200,  # 16 episodes
    "sequence_length": 200,
    "eval_every": 100,
    "eval_episodes": 512,
    "final_episodes": 51_200,
    "greedy": False,
}

PAPER = {
    "algo": "a2c",
    "num_envs": 512,
    "lr": 1e-4,
    "lr_decay": None,
    "iterations": 50_000,
    "relative_value": False,
    "ent_coef": 0.0,
    "concentration": 0.03,
}

TASKS = (
    Maze(
        name="maze",
        title="Maze exploration",
        metric="reward",
        config=MazeConfig,
        settings=FAST,
        model_settings={"stpnr": {"norm": "post", "clamp": 1.0}},
        presets={"paper": PAPER},
    ),
    Maze(
        name="maze-ablation",
        title="Maze exploration, ablation",
        metric="reward",
        config=MazeConfig,
        settings=FAST,
        presets={"paper": PAPER},
    ),
)


def __getattr__(name: str) -> Any:
    """Environments need Gymnasium, settings and networks do not."""
    environment = importlib.import_module(f"{__name__}.environment")
    try:
        return getattr(environment, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


with suppress(MissingExtra):
    importlib.import_module(f"{__name__}.environment")  # registers stpn/Maze-v0
