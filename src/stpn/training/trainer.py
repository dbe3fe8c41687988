"""What the training loop drives: the interface between any task and everything around it.

A `Trainer` owns the model, the optimizer, the data or environments and all random streams. The loop
(`stpn.training.loop`) owns the rest: checkpoints, metrics on disk, progress, Ctrl-C, the final
summary. A new task or algorithm implements this class and gets all of that.

    trainer = MyTrainer(config)
    while trainer.done < trainer.total:
        row = trainer.advance()          # one update, and what was measured if a row is due
        ...                              # at any point here: save trainer.state_dict()
    evaluation = trainer.evaluate()

Learning (`update`) and measuring (`measure`, `evaluate`) are apart, so that the loop can say which
of them is going on and break off a measurement without losing what was learnt.

Rules that make a resumed run bit-identical to one that was never stopped:

- Everything that influences the future is in `state_dict()`: weights, optimizer, counters, running
  sums, environment and recurrent states, and the state of every random stream that moves on from
  update to update. Better still, draw from `stream(seed, "name", counter)`, which needs no saving.
- `load_state_dict` runs on a freshly built trainer of the same config.
- `evaluate()` and `measure()` leave all of it untouched: draw from a stream of their own.
- The global torch generator (initial weights, dropout) is seeded and saved by the loop.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stpn import devices
from stpn.config import RunConfig

Row = dict[str, float]
State = dict[str, Any]
"""Nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, booleans and None."""


POWER_POINTS = 200
"""Longest power curve in a summary; of longer episodes or sequences it has means over stretches."""


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches at the end."""

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
    device: torch.device = devices.CPU
    """Where it learns."""
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

    @property
    def position(self) -> dict[str, float]:
        """Where it stands, for whoever reports it."""
        return {"progress": self.progress, "total": self.total}

    @property
    def beyond_total(self) -> bool:
        """Whether a run of length `total` would have ended before this trainer's last update."""
        return self.done > self.total

    def pass_target(self) -> bool:
        """Go on to the length of the configuration; whether the run had ended before it."""
        return False

    def advance(self) -> Row | None:
        """One update; then the row of metrics, if one is due."""
        if not self.update():
            return None
        row = self.measure()
        self.keep(row)
        return row

    @abstractmethod
    def update(self) -> bool:
        """Learn once; return whether a row of metrics is due. That of the last unit always is.

        Check the loss with `stpn.training.finite.check_loss` before the optimizer uses it.
        """

    @abstractmethod
    def measure(self) -> Row:
        """A row of metrics: "step" (== done), "proficiency", "power", "loss" and what else is worth
        a curve; the loop adds "seconds". Deterministic; changes nothing."""

    def keep(self, row: Row) -> None:  # noqa: B027  (not every trainer has averages)
        """The row was measured to its end: averages for the next one begin anew."""

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """The final numbers, as the paper measures them. Deterministic; changes nothing."""

    @abstractmethod
    def state_dict(self) -> State:
        """All that the future depends on; "model" holds the model's own state_dict."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Take up where `state_dict` was taken. Raise CheckpointError for one that does not fit."""

    def on_measuring(self, share: float) -> None:  # noqa: B027
        """Called now and then by a measurement with the share of it that is done; whoever shows
        progress puts a function in its place."""

    def close(self) -> None:  # noqa: B027  (most trainers hold nothing that must be closed)
        """Release environments and the like."""


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A random stream of its own for each name: `stream(seed, "order", epoch)`.

    Independent of all other names and of how often anything was drawn before, so it need not be
    saved.
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
