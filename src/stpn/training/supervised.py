"""Supervised training: the loop body of ART and continual familiarity.

One update is: a batch, forward, loss, backward, optimizer. Everything else (data, order, one-hot
coding) is prepared in bulk or drawn from streams that depend on nothing but the seed and a counter.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.config import STPN_MODELS, ArtConfig, FamiliarityConfig, RunConfig
from stpn.energy import EnergyMeter
from stpn.nn.core import RecurrentCore
from stpn.tasks import art, familiarity
from stpn.training import checkpoint, finite, optim
from stpn.training.cores import build_core
from stpn.training.trainer import Evaluation, Row, State, Trainer, stream

EVALUATION_BATCH = 2_000
POWER_POINTS = 200
"""Longest power curve in a summary; a longer sequence is averaged over stretches."""

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
        self.model = model
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

    @abstractmethod
    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss of a batch, ()."""

    @abstractmethod
    def after_update(self) -> bool:
        """Count units; whether a row is due."""

    @abstractmethod
    def validate(self) -> Evaluation:
        """The figures of a row."""

    def update(self) -> bool:
        x, target = self.batch()
        if self.parallel is None:
            loss = value = self.loss_of(self.network(x), target)
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
        figures = self.validate()
        return {
            "step": self.done,
            "proficiency": figures.proficiency,
            "power": figures.power,
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


class ArtTrainer(SupervisedTrainer[ArtConfig]):
    """Associative retrieval: cross-entropy of the answer after the last symbol.

    The training set stays in memory as small integers; an epoch shuffles it once, and a batch is a
    slice of it, one-hot coded by looking rows up in an identity matrix.
    """

    sample_unit = "sequences"
    proficiency_name = "validation accuracy"

    def __init__(self, config: ArtConfig) -> None:
        core = build_core(config, art.NUM_SYMBOLS, output_size=art.NUM_SYMBOLS)
        super().__init__(config, SequenceModel(core, art.NUM_SYMBOLS, last_only=True))
        self._updates_per_epoch = -(-config.train_size // config.batch_size)
        self._one_hot = torch.eye(art.NUM_SYMBOLS)
        self._shuffled_epoch: int | None = None

    @cached_property
    def data(self) -> art.Dataset:
        """Drawn when it is first needed: who only wants the network does not wait for it."""
        config = self.config
        return art.dataset(
            config.train_size,
            config.validation_size,
            config.test_size,
            seed=stream(config.seed, "data"),
        )

    @property
    def progress(self) -> float:
        return self.updates / self._updates_per_epoch

    def batch(self) -> tuple[Tensor, Tensor]:
        if self._shuffled_epoch != self.done:
            self._shuffle()
        start = (self.updates - self.done * self._updates_per_epoch) * self.config.batch_size
        rows = slice(start, start + self.config.batch_size)
        return self._code(self._symbols[rows]), self._answers[rows]

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)

    def after_update(self) -> bool:
        if self.updates % self._updates_per_epoch:
            return False
        self.done += 1
        return True

    def validate(self) -> Evaluation:
        return self._measure(self.data.validation)

    def evaluate(self) -> Evaluation:
        return self._measure(self.data.test)

    def _shuffle(self) -> None:
        """The order of an epoch depends on seed and epoch alone: nothing to save."""
        generator = stream(self.config.seed, "order", self.done)
        order = torch.randperm(self.config.train_size, generator=generator)
        self._symbols = self.data.train.symbols[order].int()  # (N, T)
        self._answers = self.data.train.answers[order]  # (N,)
        self._shuffled_epoch = self.done

    def _code(self, symbols: Tensor) -> Tensor:
        """(B, T) to one-hot (B, T, 37)."""
        return self._one_hot.index_select(0, symbols.reshape(-1)).view(*symbols.shape, -1)

    def _measure(self, split: art.Split) -> Evaluation:
        """Accuracy over all sequences, the last partial batch included, and power at each step."""
        symbols = split.symbols.int().split(EVALUATION_BATCH)
        answers = split.answers.split(EVALUATION_BATCH)
        correct = 0
        with EnergyMeter(self.model.core) as meter, torch.no_grad():
            for x, target in zip(map(self._code, symbols), answers, strict=True):
                correct += int((self.model(x).argmax(dim=1) == target).sum())
        return _evaluation(100.0 * correct / len(split.answers), meter)


class FamiliarityTrainer(SupervisedTrainer[FamiliarityConfig]):
    """Continual familiarity: binary cross-entropy at every step of one long sequence."""

    sample_unit = "iterations"

    def __init__(self, config: FamiliarityConfig) -> None:
        options = {}
        if config.model == "hebbff":
            options = {"constraint": "clipped", "init": "familiarity"}
        core = build_core(config, config.input_size, output_size=1, **options)
        model = SequenceModel(core, 1, last_only=False)
        _initialise(model.readout)
        if config.model in STPN_MODELS:
            _initialise(core)
        super().__init__(config, model)
        if config.mode == "dataset":
            self._fixed = self._draw("train")

    def batch(self) -> tuple[Tensor, Tensor]:
        if self.config.mode == "dataset":
            return self._fixed
        return self._draw("train", self.updates)

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output.squeeze(-1), target)

    def after_update(self) -> bool:
        self.done = self.updates
        return self.done % self.config.log_every == 0 or self.done >= self.total

    def validate(self) -> Evaluation:
        return self._measure([self._validation(self.done)])

    def evaluate(self) -> Evaluation:
        if self.config.mode == "dataset":
            return self._measure([self._validation(0)])
        return self._measure(self._draw("test", i) for i in range(self.config.eval_sequences))

    def _validation(self, row: int) -> tuple[Tensor, Tensor]:
        """dataset: always the same separate sequence; infinite: a fresh one for every row."""
        fresh = (row,) if self.config.mode == "infinite" else ()
        return self._draw("validation", *fresh)

    def _draw(self, *names: str | int) -> tuple[Tensor, Tensor]:
        """A sequence from a stream of its own: x (1, T, d), labels (1, T)."""
        config = self.config
        x, labels = familiarity.sequence(
            config.length,
            config.input_size,
            config.distance,
            config.probability,
            seed=stream(config.seed, *names),
        )
        return x.unsqueeze(0), labels.unsqueeze(0)

    def _measure(self, sequences: Iterable[tuple[Tensor, Tensor]]) -> Evaluation:
        correct = total = 0
        with EnergyMeter(self.model.core) as meter, torch.no_grad():
            for x, labels in sequences:
                answers = self.model(x).squeeze(-1) > 0  # the rounded sigmoid
                correct += int((answers == labels.bool()).sum())
                total += labels.numel()
        return _evaluation(100.0 * correct / total, meter)


def _initialise(module: nn.Module) -> None:
    """HebbFF's start, which the task prescribes: weights ~ N(0, 1/fan_in), biases ~ N(0, 1).

    lambda and gamma of an STPN keep their own.
    """
    for name, parameter in module.named_parameters():
        if name.startswith("weight"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name.startswith("bias"):
            nn.init.normal_(parameter)


def _evaluation(accuracy: float, meter: EnergyMeter) -> Evaluation:
    per_step = torch.stack([*meter.per_step.values()]).sum(dim=0)  # (T,), all layers together
    stretch = -(-len(per_step) // POWER_POINTS)
    points = [float(part.mean()) for part in per_step.split(stretch)]
    extras = {} if stretch == 1 else {"power_stretch": stretch}
    return Evaluation(accuracy, meter.power, points, extras)
