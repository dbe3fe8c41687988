"""Supervised training: the loop body that tasks with sequences and targets share.

One update is: a batch, forward, loss, backward, optimizer. Everything else (data, order, one-hot
coding) is prepared in bulk or drawn from streams that depend on nothing but the seed and a counter.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from stpn import devices
from stpn.config import RunConfig
from stpn.energy import EnergyMeter
from stpn.nn.core import RecurrentCore
from stpn.training import checkpoint, finite, optim
from stpn.training.trainer import POWER_POINTS, Evaluation, Row, State, Trainer

Config = TypeVar("Config", bound=RunConfig)
LossAndValue: TypeAlias = tuple[Tensor, Tensor]  # (), ()


class SequenceModel(nn.Module):
    """A recurrent core and a linear readout of every step, or of the last one alone."""

    def __init__(self, core: RecurrentCore, outputs: int, *, last_only: bool) -> None:
        super().__init__()
        self.core = core
        self.readout = nn.Linear(core.hidden_size, outputs)
        self.last_only = last_only

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, I) to logits (B, T, C), or (B, C) of the last step."""
        y, _ = self.core(x)  # (B, T, H)
        return self.readout(y[:, -1] if self.last_only else y)


class Parallel(Protocol):
    """Several processes that train one model on a part of every batch each."""

    def loss(self, trainer: SupervisedTrainer[Any], x: Tensor, target: Tensor) -> LossAndValue:
        """Of a batch that all processes have: what this one must differentiate, and its loss."""


class SupervisedTrainer(Trainer, Generic[Config]):
    """Gradient steps on batches. A task says what a batch, the loss and a row are."""

    config: Config
    proficiency_name = "accuracy"

    def __init__(self, config: Config, model: SequenceModel) -> None:
        self.config = dataclasses.replace(config, hidden_size=model.core.hidden_size)
        self.device = devices.find(config.device)
        self.model = model.to(self.device)
        self.network: nn.Module = model
        """What computes; a data-parallel wrapper of `model` may take its place."""
        self.parallel: Parallel | None = None
        """Who works with this process, if anyone."""
        self.optimizer = optim.build(config.optimizer, model.parameters(), lr=config.lr)
        self.updates = self.samples = self.done = 0
        self.loss = float("nan")
        self._loss_sum, self._loss_count = 0.0, 0  # since the last row

    @abstractmethod
    def batch(self) -> tuple[Tensor, Tensor]:
        """Input and target of the next update, a function of seed and `updates` alone."""

    def output_of(self, x: Tensor, target: Tensor) -> Tensor:
        """What the loss is taken of; a task may leave out what `target` does not ask."""
        output: Tensor = self.network(x)
        return output

    @abstractmethod
    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss of a batch, ()."""

    @abstractmethod
    def after_update(self) -> bool:
        """Count units; whether a row is due."""

    @abstractmethod
    def validate(self) -> Evaluation:
        """The numbers of a row."""

    def update(self) -> bool:
        x, target = (part.to(self.device, non_blocking=True) for part in self.batch())
        if self.parallel is None:
            loss = value = self.loss_of(self.output_of(x, target), target)
        else:
            loss, value = self.parallel.loss(self, x, target)
        self.loss = finite.check_loss(value.detach(), self.model, self._when())
        optim.forget_gradients(self.optimizer)
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        self.samples += len(x)
        self._loss_sum += self.loss
        self._loss_count += 1
        return self.after_update()

    def measure(self) -> Row:
        found = self.validate()
        return {
            "step": self.done,
            "proficiency": found.proficiency,
            "power": found.power,
            "loss": self._loss_sum / self._loss_count,
        }

    def keep(self, row: Row) -> None:
        self._loss_sum, self._loss_count = 0.0, 0

    def state_dict(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "samples": self.samples,
            "done": self.done,
            "loss_sum": self._loss_sum,
            "loss_count": self._loss_count,
        }

    def load_state_dict(self, state: State) -> None:
        checkpoint.load_module(self.model, state["model"])
        checkpoint.load_optimizer(self.optimizer, state["optimizer"])
        self.updates, self.samples, self.done = (
            state[name] for name in ("updates", "samples", "done")
        )
        self._loss_sum, self._loss_count = state["loss_sum"], state["loss_count"]

    def _when(self) -> str:
        return f"update {self.updates + 1} ({self.config.unit} {self.done + 1})"


def evaluation(accuracy: float, meter: EnergyMeter) -> Evaluation:
    """Accuracy in percent and the power of what the meter watched, over the steps of a sequence."""
    per_step = torch.stack([*meter.per_step.values()]).sum(dim=0)  # (T,), all layers together
    stretch = -(-len(per_step) // POWER_POINTS)
    points = [float(part.mean()) for part in per_step.split(stretch)]
    extras = {} if stretch == 1 else {"power_stretch": stretch}
    return Evaluation(accuracy, meter.power, points, extras)
