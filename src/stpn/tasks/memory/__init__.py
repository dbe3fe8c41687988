"""What the tasks of the memory suite share: fresh sequences, some of whose steps ask a question.

`retrieval`, `mqar`, `copying` and `cue_reward` are such tasks. Cores are compared at about the same
number of parameters, and by the size of their state (`RecurrentCore.state_size`). Every batch is
drawn anew, so nothing can be learnt by heart.
"""

from __future__ import annotations

import typing
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stpn.config import MEASUREMENT, RunConfig, require
from stpn.tasks.registry import Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stpn.tasks.memory.training import MemoryNetwork, MemoryTrainer

SETTINGS: dict[str, Any] = {"lr": 3e-3}
# Each core's best of 0.001, 0.003 and 0.01 on retrieval-p3 (results/memory-suite/rates.json).
_FASTER: dict[str, Any] = {"lr": 1e-2}
# Keys and values come one after the other: without a convolution a memory could not bind them.
_CONVOLUTION: dict[str, Any] = {"core": ["conv=4"]}
MODEL_SETTINGS = {
    "lstm": _FASTER,
    "gru": _FASTER,
    "modplast": _FASTER,
    "fastweights": _FASTER,
    "fwp": _CONVOLUTION,
    "gla": _CONVOLUTION,
}


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(RunConfig):
    """A task of the memory suite."""

    iterations: int = 4000
    """Gradient steps, one batch of fresh sequences each."""
    batch_size: int = 64
    """Sequences in a gradient step."""
    parameters: int = 4000
    """Parameters of the core: where hidden_size is None, the size that comes nearest to it."""
    log_every: int = field(default=250, metadata=MEASUREMENT)
    """Iterations between two rows of metrics."""
    eval_sequences: int = 2000
    """New sequences of the final evaluation; a row has an eighth of them."""

    total_field: typing.ClassVar[str] = "iterations"

    def check(self) -> None:
        super().check()
        for name in ("batch_size", "parameters", "log_every", "eval_sequences"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))

    @property
    @abstractmethod
    def inputs(self) -> int:
        """Entries of an input of the core, or kinds of symbols."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Logits, or numbers to be given."""

    @property
    def symbols(self) -> bool:
        """Whether inputs are symbols, and answers, too; else both are numbers."""
        return True

    @property
    def embedding(self) -> int:
        """Entries of a symbol's embedding, which is trained; 0: one-hot."""
        return 0

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Symbols (N, T) and answers (N, T), -1 where nothing is asked; or inputs (N, T, I) and
        answers (N, T, O), NaN where nothing is asked."""


class MemoryTask(Task):
    def build_network(self, config: MemoryConfig) -> MemoryNetwork:
        from stpn.tasks.memory.training import build_network

        return build_network(config)

    def build_trainer(self, config: MemoryConfig, *, plain: bool = False) -> MemoryTrainer:
        from stpn.tasks.memory.training import MemoryTrainer

        return MemoryTrainer(config)
