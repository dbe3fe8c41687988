"""What the training loop drives: the seam between any task and everything around it.

A `Trainer` owns the model, the optimizer, the data or environments and all random streams. The loop
(`stpn.training.loop`) owns the rest: checkpoints, metrics on disk, progress, Ctrl-C, the final
summary. A new task or algorithm implements this class and gets all of that.

    trainer = MyTrainer(config)
    while trainer.done < trainer.total:
        row = trainer.advance()          # one update
        ...                              # at any point here: save trainer.state_dict()
    figures = trainer.evaluate()

Rules that make a resumed run bit-identical to one that was never stopped:

- Everything that influences the future is in `state_dict()`: weights, optimizer, counters, running
  sums, environment and recurrent states, and the state of every random stream that moves on from
  update to update. Better still, draw from `stream(seed, "name", counter)`, which needs no saving.
- `load_state_dict` runs on a freshly built trainer of the same config.
- `evaluate()` and the measurements for a row leave all of it untouched: draw from a stream of their
  own.
- The global torch generator (initial weights, dropout) is seeded and saved by the loop.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stpn.config import RunConfig

Row = dict[str, float]
State = dict[str, Any]
"""Nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, booleans and None."""


@dataclass(frozen=True)
class Evaluation:
    """Final figures of a model."""

    proficiency: float  # accuracies in percent
    power: float  # of the recurrent core, mean over time steps, batch and runs
    power_per_step: list[float] = field(default_factory=list)  # mean at each step of a sequence
    extras: dict[str, Any] = field(default_factory=dict)  # whatever else belongs in the summary


class Trainer(ABC):
    """One model that learns one task, update by update; rules in the module's docstring."""

    config: RunConfig
    """As given, with what the trainer had to decide filled in (hidden_size)."""
    model: nn.Module
    """What learns; its parameters are named in diagnoses."""
    done: int
    """Units (epochs, iterations, environment steps) completed."""
    samples: int
    """Sequences, iterations or steps worked through, for the rate that the progress shows."""
    sample_unit: str
    """What `samples` counts, in the plural."""
    loss: float
    """Loss of the last update."""
    proficiency_name: str
    """What "proficiency" is in a row, in a word or two: validation accuracy, reward."""

    @property
    def total(self) -> int:
        """Units to do."""
        return self.config.total

    @property
    def progress(self) -> float:
        """Units done, the part of an unfinished one included."""
        return self.done

    @abstractmethod
    def advance(self) -> Row | None:
        """Do one update; return a row of metrics when one is due, else None.

        A row holds "step" (== done), "proficiency", "power", "loss" and what else is worth a curve;
        the loop adds "seconds". The row of the last unit is always due. Check the loss with
        `stpn.training.finite.check_loss` before the optimizer uses it.
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """The final figures, as the paper measures them. Deterministic; changes nothing."""

    @abstractmethod
    def state_dict(self) -> State:
        """All that the future depends on; "model" holds the model's own state_dict."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Take up where `state_dict` was taken. Raise CheckpointError for one that does not fit."""

    def close(self) -> None:  # noqa: B027  (most trainers hold nothing that must be closed)
        """Release environments and the like."""


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A random stream of its own for each name: `stream(seed, "order", epoch)`.

    Independent of all other names and of how often anything was drawn before, so it need not be
    saved.
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
