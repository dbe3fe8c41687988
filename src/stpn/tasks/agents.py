"""Tasks of reinforcement learning: a task says which environments its agents play in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stpn._extras import need
from stpn.errors import ConfigError
from stpn.tasks.registry import Task

if TYPE_CHECKING:
    from stpn.scenes import Scene
    from stpn.training.agent import Agent, Encoder
    from stpn.training.policies import Policy
    from stpn.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True, eq=False)
class AgentTask(Task):
    """Vector environments, and what follows from them; `config` is a subclass of
    `stpn.training.rl_config.AgentConfig`."""

    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)
    """What its environments need, of the extra `rl`."""
    rllib_vectorized: ClassVar[bool] = False
    """Whether RLlib gets one vector environment, not many single ones."""

    def check_extras(self) -> None:
        for package in self.packages:
            need(package, extra="rl")

    @abstractmethod
    def make_env(self, config: Any, count: int) -> Any:
        """`count` environments as one `gymnasium.vector.VectorEnv`."""

    def interface(self, config: Any, env: Any = None) -> tuple[Encoder, Policy]:
        """What encodes observations and what the actions mean, by the spaces of `env`, or of an
        environment made for this. A task that knows them needs no environment to build a network.
        """
        from stpn.training.agent import encoder_for
        from stpn.training.policies import policy_for

        made = self.make_env(config, 1) if env is None else env
        try:
            return (
                encoder_for(
                    made.single_observation_space,
                    normalize=config.normalize_observations,
                    length=config.feature_length,
                ),
                policy_for(made.single_action_space),
            )
        finally:
            if env is None:
                made.close()

    def build_network(self, config: Any, env: Any = None) -> Agent:
        from stpn.training.cores import build_agent

        return build_agent(config, *self.interface(config, env))

    def build_trainer(self, config: Any, *, plain: bool = False) -> Trainer:
        if config.rllib and not plain:
            from stpn.scale.rllib_trainer import RLlibTrainer

            return RLlibTrainer(config)
        from stpn.training.reinforcement import ReinforcementTrainer

        return ReinforcementTrainer(config)

    def scene(self, config: Any) -> Scene:
        raise ConfigError(f"{self.name} does not say how it is drawn")

    def rllib_env(self, config: Any) -> str | Callable[[Any], Any]:
        """What RLlib plays in: a name that Gymnasium knows, or what makes an environment."""
        raise ConfigError(f"{self.name} cannot be trained in RLlib: leave out --rllib")
