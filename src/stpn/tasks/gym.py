"""Any Gymnasium environment by its name: `stpn train --env NAME`."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stpn.config import keyword_arguments
from stpn.errors import ConfigError
from stpn.runs import place
from stpn.tasks.agents import AgentTask
from stpn.training.rl_config import AgentConfig

if TYPE_CHECKING:
    from stpn.scenes import Scene


@dataclass(frozen=True, kw_only=True)
class GymConfig(AgentConfig):
    """Any Gymnasium environment with Discrete or Box actions."""

    env: str = ""
    """Name of the environment, as gymnasium.make knows it. module:Name imports the module first,
    also one in the current directory."""
    env_args: tuple[str, ...] = ()
    """Arguments of the environment, KEY=VALUE each (is_slippery=false), or one JSON object."""
    steps: int = 200_000
    """Steps of all environments together."""

    total_field: typing.ClassVar[str] = "steps"

    @property
    def env_options(self) -> dict[str, Any]:
        """`env_args` as keyword arguments."""
        return keyword_arguments("env_args", self.env_args)

    @property
    def title(self) -> str:
        return f"{self.env} {self.model} seed {self.seed}"

    def check(self) -> None:
        super().check()
        if not self.env:
            raise ConfigError("name the environment, as in: stpn train --env CartPole-v1")
        _ = self.env_options

    @property
    def directory(self) -> Path:
        """`gym/<environment>/<model>/seed<N>` below the root of all runs."""
        return place(self.task, self.model, self.seed, self.env)


class Gym(AgentTask):
    def make_env(self, config: GymConfig, count: int) -> Any:
        from stpn.training import environments

        return environments.make(config.env, count, **config.env_options)

    def scene(self, config: GymConfig) -> Scene:
        from stpn.scenes import RenderedScene

        return RenderedScene(config.env, config.env_options)

    def rllib_env(self, config: GymConfig) -> Any:
        from stpn.training import environments

        return lambda context: environments.single(config.env, **config.env_options)


TASKS = (
    Gym(
        name="gym",
        title="Any Gymnasium environment (--env NAME)",
        metric="reward",
        config=GymConfig,
        settings={
            "algo": "ppo",
            "num_envs": 8,
            "num_steps": 256,
            "lr": 1e-3,
            "vf_coef": 0.1,
            "relative_value": True,
            "minibatch_size": 256,
        },
    ),
)
