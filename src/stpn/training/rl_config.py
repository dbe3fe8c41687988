"""The settings of reinforcement learning that all agents share; tasks add their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stpn.config import MACHINE, MEASUREMENT, STPN_MODELS, RunConfig, require
from stpn.errors import ConfigError

NOT_FOR_RLLIB = (
    "lr_final", "lr_plasticity", "entropy_final", "clip_final", "orthogonal", "lambda_min",
    "lambda_max", "longest_memory", "normalize_observations", "normalize_rewards",
    "privileged_critic", "auxiliary", "average", "target", "standardize",
)  # fmt: skip
"""Settings of the algorithms here that RLlib's would not follow."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig(RunConfig):
    """An agent that learns by A2C or PPO."""

    algo: Literal["a2c", "ppo"] = "a2c"
    """a2c: one gradient step per rollout; ppo: several epochs of clipped steps."""
    agents: int = 64
    """Environments played at once, all by the same network."""
    rollout: int = 50
    """Steps of each environment between two updates."""
    discount: float = 0.99
    """Discount of the reward per step."""
    value_weight: float = 0.5
    """Weight of the squared error of the value."""
    relative_value: bool = False
    """Measure the value's error in standard deviations of the batch's returns: it then weighs the
    same, whatever the size of the rewards."""
    entropy: float = 0.01
    """Weight of the policy's entropy, a reward for staying undecided."""
    entropy_final: float | None = None
    """Weight of the entropy at the end of the run, reached linearly. None: it stays."""
    concentration: float = 0.0
    """Weight of sum(p^2), a penalty for being sure (A2C, discrete actions)."""
    grad_norm: float | None = 40.0
    """Longest gradient; a longer one is scaled down to it. None: no limit."""
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
    lambda_min: float = 0.0
    """STPN: lambda starts uniformly between this ..."""
    lambda_max: float = 1.0
    """... and this."""
    longest_memory: float | None = None
    """Start with time constants tau spread log-uniformly between 1 and this many steps: lambda as
    exp(-1 / tau) in STPNs, the biases of the gates so that a memory lasts for tau steps in LSTM and
    GRU. None: every model as usual."""
    normalize_observations: bool = False
    """Show the network observations less their running mean, in running standard deviations."""
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
    """End the run as soon as a measurement reaches this score."""
    standardize: Literal["batch", "minibatch"] = "batch"
    """PPO: over what advantages get mean 0 and deviation 1."""
    smoothing: float = 0.95
    """PPO: lambda of generalised advantage estimation."""
    clip: float = 0.2
    """PPO: how far a probability may move within one batch."""
    clip_final: float | None = None
    """PPO: the clip at the end of the run, reached linearly. None: it stays."""
    epochs: int = 10
    """PPO: passes through a batch."""
    minibatch: int = 64
    """PPO: steps in a gradient step (whole sequences, so about as many)."""
    sequence: int = 20
    """PPO: length of the sequences that a batch is cut into; each keeps its starting state."""
    eval_every: int = field(default=10_000, metadata=MEASUREMENT)
    """Units between two rows of metrics."""
    eval_episodes: int = field(default=10, metadata=MEASUREMENT)
    """Episodes behind a row of metrics."""
    final_episodes: int = 100
    """Episodes behind the final figures."""
    greedy: bool = True
    """Measure with the most likely actions, not with sampled ones."""
    rllib: bool = False
    """Learn in Ray's RLlib (extra `ray`), on the cluster that runs here or that RAY_ADDRESS names,
    else on an instance of its own."""
    algorithm: Literal["auto", "ppo", "appo", "impala"] = "auto"
    """RLlib: which algorithm. auto: PPO if algo is ppo, else IMPALA, the nearest to A2C."""
    env_runners: int = field(default=0, metadata=MACHINE)
    """RLlib: processes that play, here or on other nodes. 0: the one that learns plays, too."""

    @property
    def steps_per_unit(self) -> int:
        """Steps of all environments in what `done` and `lr_decay` count."""
        return 1 if self.total_field == "steps" else self.agents * self.rollout

    def scheduled(self, name: str, progress: float) -> float:
        """`lr`, `entropy` or `clip` after that share of the run: a line from its value to its
        final one, where it has one."""
        start, final = getattr(self, name), getattr(self, f"{name}_final")
        return start if final is None else start + (final - start) * min(1.0, progress)

    def check(self) -> None:
        super().check()
        for name in ("agents", "rollout", "epochs", "minibatch", "sequence", "eval_every",
                     "eval_episodes", "final_episodes"):  # fmt: skip
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        for name in ("discount", "smoothing"):
            require(0 <= getattr(self, name) <= 1, name, "between 0 and 1", getattr(self, name))
        for name in ("value_weight", "entropy", "concentration", "eps", "lr_final",
                     "entropy_final", "lr_plasticity", "auxiliary"):  # fmt: skip
            value = getattr(self, name)
            require(value is None or value >= 0, name, ">= 0", value)
        require(self.clip > 0, "clip", "> 0", self.clip)
        if self.clip_final is not None:
            require(self.clip_final > 0, "clip_final", "> 0", self.clip_final)
        if self.average is not None:
            require(0 <= self.average < 1, "average", ">= 0 and < 1", self.average)
        self._check_memory()
        if self.grad_norm is not None:
            require(self.grad_norm > 0, "grad_norm", "> 0", self.grad_norm)
        if self.lr_decay is not None:
            require(self.lr_decay >= 1, "lr_decay", ">= 1", self.lr_decay)
        require(self.env_runners >= 0, "env_runners", ">= 0", self.env_runners)
        for name in ("algorithm", "env_runners"):
            if not self.rllib and getattr(self, name) != getattr(AgentConfig, name):
                raise ConfigError(f"{name} is a setting of RLlib: add --rllib")
        for name in NOT_FOR_RLLIB:
            if self.rllib and getattr(self, name) != getattr(AgentConfig, name):
                raise ConfigError(f"{name} is not a setting of RLlib: leave it at its default")
        if self.algo == "ppo" and self.concentration:
            raise ConfigError("concentration is a setting of a2c; ppo has entropy")

    def _check_memory(self) -> None:
        ordered = self.lambda_min <= self.lambda_max
        require(ordered, "lambda_min", f"at most lambda_max ({self.lambda_max})", self.lambda_min)
        if (self.lambda_min, self.lambda_max) != (0.0, 1.0) and self.model not in STPN_MODELS:
            raise ConfigError(f"lambda_min and lambda_max mean nothing for {self.model!r}")
        if self.longest_memory is not None:
            require(self.longest_memory > 1, "longest_memory", "> 1", self.longest_memory)
            if self.model not in (*STPN_MODELS, "lstm", "gru"):
                raise ConfigError(
                    f"longest_memory needs an STPN, LSTM or GRU: {self.model!r} has no time "
                    "constants"
                )
