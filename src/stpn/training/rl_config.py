"""The settings of reinforcement learning that all agents share; tasks add their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import tyro

from stpn import cores
from stpn.config import MACHINE, MEASUREMENT, STPN_MODELS, RunConfig, require
from stpn.errors import ConfigError
from stpn.training import algorithms
from stpn.training.algorithms import A2CSettings, AlgorithmSettings

RENAMED = {
    "agents": "num_envs",
    "rollout": "num_steps",
    "discount": "gamma",
    "value_weight": "vf_coef",
    "entropy": "ent_coef",
    "entropy_final": "ent_coef_final",
    "grad_norm": "max_grad_norm",
    "smoothing": "gae_lambda",
    "clip": "clip_coef",
    "clip_final": "clip_coef_final",
    "epochs": "update_epochs",
    "minibatch": "minibatch_size",
    "sequence": "sequence_length",
    "algorithm": "rllib_algorithm",
    "protocol": "preset",
}
"""Names of settings in runs and results of earlier versions, and what they are called now."""

NOT_FOR_RLLIB = (
    "lr_final", "lr_plasticity", "ent_coef_final", "clip_coef_final", "orthogonal",
    "longest_memory", "normalize_observations", "feature_length", "normalize_rewards",
    "privileged_critic", "auxiliary", "average", "target", "standardize", "shared_baseline",
    "device",
)  # fmt: skip
"""Settings of the algorithms here that RLlib's would not follow."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig(RunConfig):
    """An agent that learns by A2C or PPO."""

    algo: str = "a2c"
    """Algorithm. a2c: one gradient step per rollout; ppo: several epochs of clipped steps; or one
    that was registered."""
    algorithm: Annotated[AlgorithmSettings, tyro.conf.arg(name="")] = field(default=A2CSettings())
    """What only that algorithm has."""
    num_envs: int = 64
    """Environments played at once, all by the same network."""
    num_steps: int = 50
    """Steps of each environment between two updates."""
    gamma: float = 0.99
    """Discount of the reward per step."""
    vf_coef: float = 0.5
    """Weight of the squared error of the value."""
    relative_value: bool = False
    """Measure the value's error in standard deviations of the batch's returns: it then weighs the
    same, whatever the size of the rewards."""
    ent_coef: float = 0.01
    """Weight of the policy's entropy, a reward for staying undecided."""
    ent_coef_final: float | None = None
    """Weight of the entropy at the end of the run, reached linearly. None: it stays."""
    max_grad_norm: float | None = 40.0
    """Maximum norm of the gradient (clipping). None: no limit."""
    eps: float = 1e-8
    """The optimizer's epsilon."""
    lr_decay: int | None = None
    """Units until the learning rate has fallen linearly to 0. None: it stays."""
    lr_final: float | None = None
    """Learning rate at the end of the run, however long, reached linearly; in place of lr_decay."""
    lr_plasticity: float | None = None
    """Learning rate of what rules plasticity (lambda, gamma; alpha, eta of other models), falling
    as the others do. None: the same as theirs."""
    orthogonal: bool = False
    """Start convolutions (gain sqrt 2), policy (0.01) and value (1) as orthogonal matrices."""
    longest_memory: float | None = None
    """Start with time constants tau spread log-uniformly between 1 and this many steps: lambda as
    exp(-1 / tau) in STPNs, the biases of the gates so that a memory lasts for tau steps in LSTM and
    GRU. None: every model as usual."""
    normalize_observations: bool = False
    """Show the network observations less their running mean, in running standard deviations."""
    feature_length: float | None = None
    """Scale what the core sees to vectors of this Euclidean length. None: as they come."""
    normalize_rewards: bool = False
    """Learn from rewards in running standard deviations of the discounted returns."""
    privileged_critic: bool = False
    """Let the value see what the environment knows and the agent does not, while training (the
    maze: cell and reward cell)."""
    auxiliary: float = 0.0
    """Weight of auxiliary heads, which have the core tell what only the environment knows."""
    average: float | None = None
    """Decay per update of an exponential average of the weights, which is measured and saved as the
    network in place of the last weights. None: no average."""
    target: float | None = None
    """End the run as soon as a measurement reaches this score; `stpn resume --total` goes on
    from there."""
    eval_every: int = field(default=10_000, metadata=MEASUREMENT)
    """Units between two rows of metrics."""
    eval_episodes: int = field(default=10, metadata=MEASUREMENT)
    """Episodes behind a row of metrics."""
    final_episodes: int = 100
    """Episodes behind the final numbers."""
    greedy: bool = True
    """Measure with the most likely actions, not with sampled ones."""
    rllib: bool = False
    """Learn in Ray's RLlib (extra `ray`), on the cluster that runs here or that RAY_ADDRESS names,
    else on an instance of its own."""
    rllib_algorithm: Literal["auto", "ppo", "appo", "impala"] = "auto"
    """RLlib: which algorithm. auto: PPO if algo is ppo, else IMPALA, the nearest to A2C."""
    env_runners: int = field(default=0, metadata=MACHINE)
    """RLlib: processes that play, here or on other nodes. 0: the one that learns plays, too."""

    deciding: ClassVar[tuple[str, ...]] = ("algo",)
    renamed: ClassVar[Mapping[str, str]] = RENAMED

    @property
    def steps_per_unit(self) -> int:
        """Steps of all environments in what `done` and `lr_decay` count."""
        return 1 if self.total_field == "steps" else self.num_envs * self.num_steps

    @classmethod
    def migrated(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return super().migrated(_with_core_options(values))

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> dict[str, type[Any]]:
        algo = values.get("algo", cls.algo)
        return {"algorithm": algorithms.get(algo)} if isinstance(algo, str) else {}

    @classmethod
    def elsewhere(cls, name: str) -> str | None:
        for algo in algorithms.names():
            if name in {field.name for field in dataclasses.fields(algorithms.get(algo))}:
                return f"{name} is a setting of {algo}: add --algo {algo}"
        return None

    @classmethod
    def relevant(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        algo = values.get("algo", cls.algo)
        if algo not in algorithms.names():
            return dict(values)  # whoever needs it says that it is unknown
        others = {
            field.name
            for name in algorithms.names()
            if name != algo
            for field in dataclasses.fields(algorithms.get(name))
        }
        own = {field.name for field in dataclasses.fields(algorithms.get(algo))}
        return {name: value for name, value in values.items() if name not in others - own}

    def check(self) -> None:
        super().check()
        for name in ("num_envs", "num_steps", "eval_every", "eval_episodes", "final_episodes"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        require(0 <= self.gamma <= 1, "gamma", "between 0 and 1", self.gamma)
        for name in ("vf_coef", "ent_coef", "eps", "lr_final", "ent_coef_final", "lr_plasticity",
                     "auxiliary"):  # fmt: skip
            value = getattr(self, name)
            require(value is None or value >= 0, name, ">= 0", value)
        if type(self.algorithm) is not algorithms.get(self.algo):
            raise ConfigError(
                f"{type(self.algorithm).__name__} are not the settings of {self.algo}"
            )
        self.algorithm.check()
        if self.average is not None:
            require(0 <= self.average < 1, "average", ">= 0 and < 1", self.average)
        if self.feature_length is not None:
            require(self.feature_length > 0, "feature_length", "> 0", self.feature_length)
        self._check_memory()
        if self.max_grad_norm is not None:
            require(self.max_grad_norm > 0, "max_grad_norm", "> 0", self.max_grad_norm)
        if self.lr_decay is not None:
            require(self.lr_decay >= 1, "lr_decay", ">= 1", self.lr_decay)
        require(self.env_runners >= 0, "env_runners", ">= 0", self.env_runners)
        for name in ("rllib_algorithm", "env_runners"):
            if not self.rllib and getattr(self, name) != getattr(AgentConfig, name):
                raise ConfigError(f"{name} is a setting of RLlib: add --rllib")
        for name in NOT_FOR_RLLIB if self.rllib else ():
            of = self if hasattr(self, name) else self.algorithm
            if getattr(of, name, None) != getattr(type(of), name, None):
                raise ConfigError(f"{name} is not a setting of RLlib: leave it at its default")

    def _check_memory(self) -> None:
        if self.longest_memory is not None:
            require(self.longest_memory > 1, "longest_memory", "> 1", self.longest_memory)
            if cores.base(self.model) not in (*STPN_MODELS, "lstm", "gru"):
                raise ConfigError(
                    f"longest_memory needs an STPN, LSTM or GRU: {self.model!r} has no time "
                    "constants"
                )


def _with_core_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of earlier versions that are options of the core now: the start of lambda."""
    rest = dict(values)
    moved = {name: rest.pop(name, usual) for name, usual in (("lambda_min", 0), ("lambda_max", 1))}
    if moved != {"lambda_min": 0, "lambda_max": 1}:
        words = (f"{name}={value}" for name, value in moved.items())
        rest["core"] = [*rest.get("core", ()), *words]
    return rest


def line(start: float, final: float | None, progress: float) -> float:
    """A value after that share of the run, on its way to a final one, where it has one."""
    return start if final is None else start + (final - start) * min(1.0, progress)
