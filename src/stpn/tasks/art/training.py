"""Training on associative retrieval: cross-entropy of the answer after the last symbol."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from stpn.energy import EnergyMeter
from stpn.tasks.art import ArtConfig
from stpn.tasks.art.data import NUM_SYMBOLS, Dataset, Split, dataset
from stpn.training.cores import build_core
from stpn.training.supervised import SequenceModel, SupervisedTrainer, evaluation
from stpn.training.trainer import Evaluation, stream

EVALUATION_BATCH = 2_000


def build_network(config: ArtConfig) -> SequenceModel:
    core = build_core(config, NUM_SYMBOLS, output_size=NUM_SYMBOLS)
    return SequenceModel(core, NUM_SYMBOLS, last_only=True)


class ArtTrainer(SupervisedTrainer[ArtConfig]):
    """The training set stays in memory as small integers; an epoch shuffles it once, and a batch
    is a slice of it, one-hot coded by looking rows up in an identity matrix."""

    sample_unit = "sequences"
    proficiency_name = "validation accuracy"

    def __init__(self, config: ArtConfig) -> None:
        super().__init__(config, build_network(config))
        self._updates_per_epoch = -(-config.train_size // config.batch_size)
        self._one_hot = torch.eye(NUM_SYMBOLS, device=self.device)
        self._shuffled_epoch: int | None = None

    @cached_property
    def data(self) -> Dataset:
        """Drawn when it is first needed: who only wants the network does not wait for it."""
        config = self.config
        return dataset(
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
        self._symbols = self.data.train.symbols[order].int().to(self.device)  # (N, T)
        self._answers = self.data.train.answers[order].to(self.device)  # (N,)
        self._shuffled_epoch = self.done

    def _code(self, symbols: Tensor) -> Tensor:
        """(B, T) to one-hot (B, T, 37)."""
        return self._one_hot.index_select(0, symbols.reshape(-1)).view(*symbols.shape, -1)

    def _measure(self, split: Split) -> Evaluation:
        """Accuracy over all sequences, the last partial batch included, and power at each step."""
        symbols = split.symbols.int().to(self.device).split(EVALUATION_BATCH)
        answers = split.answers.to(self.device).split(EVALUATION_BATCH)
        correct = 0
        with EnergyMeter(self.model.core) as meter, torch.no_grad():
            for x, target in zip(map(self._code, symbols), answers, strict=True):
                correct += int((self.model(x).argmax(dim=1) == target).sum())
        return evaluation(100.0 * correct / len(split.answers), meter)
