"""Training on the tasks of the memory suite: a loss at the steps that ask."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.energy import EnergyMeter
from stpn.nn import registry
from stpn.nn.core import RecurrentCore
from stpn.tasks.memory import MemoryConfig
from stpn.training.cores import build_core
from stpn.training.supervised import SequenceModel, SupervisedTrainer, evaluation
from stpn.training.trainer import Evaluation, stream

EVALUATION_BATCH = 250


class MemoryNetwork(SequenceModel):
    """Symbols, one-hot or embedded, or numbers; a core; a linear readout of every step."""

    def __init__(self, core: RecurrentCore, config: MemoryConfig) -> None:
        super().__init__(core, config.outputs, last_only=False)
        self.symbols = config.inputs if config.symbols else 0
        self.embedding = nn.Embedding(config.inputs, config.embedding) if config.embedding else None

    def forward(self, x: Tensor) -> Tensor:
        """Symbols (B, T), or inputs (B, T, I), to (B, T, O)."""
        if self.embedding is not None:
            x = self.embedding(x)
        elif self.symbols:
            x = functional.one_hot(x, self.symbols).to(self.readout.weight.dtype)
        return super().forward(x)


def build_network(config: MemoryConfig) -> MemoryNetwork:
    inputs = config.embedding or config.inputs
    if config.hidden_size is None:
        options = {**config.core_options, "num_layers": config.num_layers}
        size = registry.hidden_size_for(
            config.model, parameters=config.parameters, input_size=inputs, **options
        )
        config = dataclasses.replace(config, hidden_size=size)
    return MemoryNetwork(build_core(config, inputs, output_size=config.outputs), config)


class MemoryTrainer(SupervisedTrainer[MemoryConfig]):
    sample_unit = "sequences"

    def __init__(self, config: MemoryConfig) -> None:
        network = build_network(config)
        super().__init__(config, network)
        self.core = network.core
        if not config.symbols:
            self.proficiency_name = "explained variance"

    def batch(self) -> tuple[Tensor, Tensor]:
        generator = stream(self.config.seed, "train", self.updates)
        return self.config.draw(self.config.batch_size, generator)

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        if self.config.symbols:
            return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-1)
        asked = ~target.isnan()
        return functional.mse_loss(output[asked], target[asked])

    def after_update(self) -> bool:
        self.done = self.updates
        return self.done % self.config.log_every == 0 or self.done >= self.total

    def validate(self) -> Evaluation:
        return self._measure("validation", -(-self.config.eval_sequences // 8))

    def evaluate(self) -> Evaluation:
        return self._measure("test", self.config.eval_sequences)

    def _measure(self, name: str, count: int) -> Evaluation:
        """Accuracy, or explained variance, over all steps that ask, in percent."""
        core = self.core
        x, target = self.config.draw(count, stream(self.config.seed, name))
        with EnergyMeter(core) as meter, torch.no_grad():
            output = torch.cat([self.model(part) for part in x.split(EVALUATION_BATCH)])
        if self.config.symbols:
            asked = target >= 0
            right = (output.argmax(-1) == target)[asked].float().mean()
        else:
            asked = ~target.isnan()
            right = 1 - functional.mse_loss(output[asked], target[asked]) / target[asked].var()
        figures = evaluation(100.0 * float(right), meter)
        figures.extras["state_size"] = core.state_size
        figures.extras["core_parameters"] = sum(p.numel() for p in core.parameters())
        return figures
