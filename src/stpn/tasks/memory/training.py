"""Training on the tasks of the memory suite: a loss at the steps that ask."""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.energy import EnergyMeter
from stpn.errors import ConfigError
from stpn.nn import registry
from stpn.nn.core import RecurrentCore
from stpn.tasks.memory import MemoryConfig
from stpn.training.cores import build_core, options_of
from stpn.training.supervised import SequenceModel, SupervisedTrainer, evaluation
from stpn.training.trainer import Evaluation, stream

EVALUATION_BATCH = 250


class MemoryNetwork(SequenceModel):
    """Symbols, one-hot or embedded, or numbers; a core; a linear readout of every step."""

    def __init__(self, core: RecurrentCore, config: MemoryConfig) -> None:
        super().__init__(core, config.outputs, last_only=False)
        self.symbols = config.inputs if config.symbols else 0
        self.embedding = nn.Embedding(config.inputs, config.embedding) if config.embedding else None

    def forward(self, x: Tensor, asked: Tensor | None = None) -> Tensor:
        """Symbols (B, T), or inputs (B, T, I), to (B, T, O); with a mask (B, T) of the steps that
        ask, to the (N, O) of these alone: with thousands of symbols the rest is most of the
        work."""
        if self.embedding is not None:
            x = self.embedding(x)
        elif self.symbols:
            x = functional.one_hot(x, self.symbols).to(self.readout.weight.dtype)
        if asked is None:
            return super().forward(x)
        y, _ = self.core(x)  # (B, T, H)
        return self.readout(y[asked])


def build_network(config: MemoryConfig) -> MemoryNetwork:
    inputs = config.embedding or config.inputs
    if config.hidden_size is None:
        options_of(config)  # an unknown one is refused by name
        options = {**config.core_options, "num_layers": config.num_layers}
        try:
            size = registry.hidden_size_for(
                config.model, parameters=config.parameters, input_size=inputs, **options
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{config.model} refuses its settings: {error}") from error
        config = dataclasses.replace(config, hidden_size=size)
    return MemoryNetwork(build_core(config, inputs, output_size=config.outputs), config)


class MemoryTrainer(SupervisedTrainer[MemoryConfig]):
    sample_unit = "sequences"

    def __init__(self, config: MemoryConfig) -> None:
        network = build_network(config)
        super().__init__(config, network)
        self.core = network.core
        self._seconds, self._timed = 0.0, 0  # processor time of updates, of this process alone
        if not config.symbols:
            self.proficiency_name = "explained variance"

    def batch(self) -> tuple[Tensor, Tensor]:
        generator = stream(self.config.seed, "train", self.updates)
        return self.config.draw(self.config.batch_size, generator)

    def output_of(self, x: Tensor, target: Tensor) -> Tensor:
        output: Tensor = self.network(x, self._asked(target))
        return output

    def update(self) -> bool:
        began = time.process_time()
        due = super().update()
        self._seconds += time.process_time() - began
        self._timed += 1
        return due

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        answers = target[self._asked(target)]
        if self.config.symbols:
            return functional.cross_entropy(output, answers)
        return functional.mse_loss(output, answers)

    def _asked(self, target: Tensor) -> Tensor:
        """The steps (B, T) that ask."""
        return target >= 0 if self.config.symbols else ~target.isnan().any(-1)

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
            output = torch.cat([
                self.model(part, asked)
                for part, asked in zip(
                    x.split(EVALUATION_BATCH), self._asked(target).split(EVALUATION_BATCH),
                    strict=True,
                )
            ])  # fmt: skip
        answers = target[self._asked(target)]
        if self.config.symbols:
            right = (output.argmax(-1) == answers).float().mean()
        else:
            right = 1 - functional.mse_loss(output, answers) / answers.var()
        found = evaluation(100.0 * float(right), meter)
        found.extras["state_size"] = core.state_size
        found.extras["core_parameters"] = sum(p.numel() for p in core.parameters())
        if self._timed:  # not wall time: runs share the machine with each other and with others
            found.extras["update_ms"] = round(1e3 * self._seconds / self._timed, 3)
        return found
