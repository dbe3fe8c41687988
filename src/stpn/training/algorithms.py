"""Algorithms of reinforcement learning by name: their settings, and how each is made.

An algorithm is a class derived from `stpn.training.algorithm.Algorithm`, and its settings a group
of their own, which say how it is made. From anywhere::

    @dataclass(frozen=True, kw_only=True)
    class MySettings(AlgorithmSettings):
        step_size: float = 0.1  # the flag --step-size

        def build(self, *parts):
            return MyAlgorithm(*parts)

    stpn.register_algorithm("mine", MySettings)     # stpn train maze --algo mine --step-size 0.2

Nothing here needs torch: `build` imports what it uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from stpn import plugins
from stpn.errors import ConfigError, require, unknown

if TYPE_CHECKING:
    from stpn.training.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class AlgorithmSettings(ABC):
    """What only one algorithm has. Names must differ from those that all agents share."""

    @abstractmethod
    def build(self, *parts: Any) -> Algorithm:
        """The algorithm, of the `parts` that its class takes: agent, gradients, config and, if
        there is one, what the environment knows."""

    def check(self) -> None:  # noqa: B027  (not every algorithm can be misused)
        """Raise ConfigError for a value that cannot work."""


@dataclass(frozen=True, kw_only=True)
class A2CSettings(AlgorithmSettings):
    """Advantage actor-critic: one gradient step per rollout."""

    concentration: float = 0.0
    """A2C: weight of sum(p^2), a penalty for being sure (discrete actions)."""
    shared_baseline: bool = False
    """A2C: the value of the first environment is the baseline of all of them, in policy and value
    loss, as the paper's code has it in the maze. False: each has its own."""

    def build(self, *parts: Any) -> Algorithm:
        from stpn.training.a2c import A2C

        return A2C(*parts)

    def check(self) -> None:
        require(self.concentration >= 0, "concentration", ">= 0", self.concentration)


@dataclass(frozen=True, kw_only=True)
class PPOSettings(AlgorithmSettings):
    """Proximal policy optimisation: several epochs of clipped steps per rollout."""

    standardize: Literal["batch", "minibatch"] = "batch"
    """PPO: over what advantages get mean 0 and deviation 1."""
    gae_lambda: float = 0.95
    """PPO: lambda of generalised advantage estimation."""
    clip_coef: float = 0.2
    """PPO: how far a probability may move within one batch."""
    clip_coef_final: float | None = None
    """PPO: clip_coef at the end of the run, reached linearly. None: it stays."""
    update_epochs: int = 10
    """PPO: passes through a batch."""
    minibatch_size: int = 64
    """PPO: steps in a gradient step (whole sequences, so about as many)."""
    sequence_length: int = 20
    """PPO: steps of the sequences that a batch is cut into; each keeps its starting state."""

    def build(self, *parts: Any) -> Algorithm:
        from stpn.training.ppo import PPO

        return PPO(*parts)

    def check(self) -> None:
        for name in ("update_epochs", "minibatch_size", "sequence_length"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        require(0 <= self.gae_lambda <= 1, "gae_lambda", "between 0 and 1", self.gae_lambda)
        require(self.clip_coef > 0, "clip_coef", "> 0", self.clip_coef)
        if self.clip_coef_final is not None:
            require(self.clip_coef_final > 0, "clip_coef_final", "> 0", self.clip_coef_final)


_algorithms: dict[str, type[AlgorithmSettings]] = {"a2c": A2CSettings, "ppo": PPOSettings}


def register_algorithm(name: str, settings: type[AlgorithmSettings]) -> type[AlgorithmSettings]:
    """Make an algorithm known by its name, in this process; returns its settings."""
    if name in _algorithms:
        raise ConfigError(f"there is an algorithm named {name!r} already")
    _algorithms[name] = settings
    return settings


def names() -> tuple[str, ...]:
    plugins.load()
    return tuple(_algorithms)


def get(name: str) -> type[AlgorithmSettings]:
    """The settings of an algorithm; an unknown name is answered with the known ones."""
    if name not in names():
        raise ConfigError(unknown("algorithm", name, _algorithms))
    return _algorithms[name]
