"""Training on continual familiarity: binary cross-entropy at every step of one long sequence."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn import cores
from stpn.config import STPN_MODELS
from stpn.energy import EnergyMeter
from stpn.tasks.familiarity import FamiliarityConfig, data
from stpn.training.cores import build_core
from stpn.training.supervised import SequenceModel, SupervisedTrainer, evaluation
from stpn.training.trainer import Evaluation, stream


def build_network(config: FamiliarityConfig) -> SequenceModel:
    options = {}
    if cores.base(config.model) == "hebbff":
        options = {"constraint": "clipped", "init": "familiarity"}
    core = build_core(config, config.input_size, output_size=1, **options)
    model = SequenceModel(core, 1, last_only=False)
    _initialise(model.readout)
    if config.model in STPN_MODELS:
        _initialise(core)
    return model


def _initialise(module: nn.Module) -> None:
    """HebbFF's start, which the task prescribes: weights ~ N(0, 1/fan_in), biases ~ N(0, 1).

    lambda and gamma of an STPN keep their own.
    """
    for name, parameter in module.named_parameters():
        if name.startswith("weight"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name.startswith("bias"):
            nn.init.normal_(parameter)


class FamiliarityTrainer(SupervisedTrainer[FamiliarityConfig]):
    sample_unit = "iterations"

    def __init__(self, config: FamiliarityConfig) -> None:
        super().__init__(config, build_network(config))
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
        x, labels = data.sequence(
            config.length,
            config.input_size,
            config.distance,
            config.probability,
            seed=stream(config.seed, *names),
        )
        return x.unsqueeze(0).to(self.device), labels.unsqueeze(0).to(self.device)

    def _measure(self, sequences: Iterable[tuple[Tensor, Tensor]]) -> Evaluation:
        correct = total = 0
        with EnergyMeter(self.model.core) as meter, torch.no_grad():
            for x, labels in sequences:
                answers = self.model(x).squeeze(-1) > 0  # the rounded sigmoid
                correct += int((answers == labels.bool()).sum())
                total += labels.numel()
        return evaluation(100.0 * correct / total, meter)
