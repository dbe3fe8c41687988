"""A task of one's own in one file: name a cue that was shown some steps ago.

    python examples/own_task.py --model stpnr --delay 30

From then on it is a task like any other: runs that are kept, resumed and evaluated, all models, and

    STPN_PLUGINS=own_task stpn sweep recall --models stpnr lstm --seeds 3     # in this directory

in worker processes. A package names its task in the entry points, group "stpn.tasks".
"""

from __future__ import annotations

import sys
import typing
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import stpn
from stpn.cli import main
from stpn.config import RunConfig, require
from stpn.energy import EnergyMeter
from stpn.tasks.registry import Task
from stpn.training.cores import build_core
from stpn.training.supervised import SequenceModel, SupervisedTrainer, evaluation
from stpn.training.trainer import Evaluation, stream

CUES = 4


@dataclass(frozen=True, kw_only=True)
class RecallConfig(RunConfig):
    """Delayed recall: these fields are flags of `stpn train recall`."""

    iterations: int = 300
    """Gradient steps."""
    delay: int = 20
    """Steps of noise between the cue and the answer."""
    batch_size: int = 64
    """Sequences in a gradient step."""

    total_field: typing.ClassVar[str] = "iterations"

    def check(self) -> None:
        super().check()
        require(self.delay >= 0, "delay", ">= 0", self.delay)
        require(self.batch_size >= 1, "batch_size", ">= 1", self.batch_size)


def sequences(config: RecallConfig, *names: str | int) -> tuple[Tensor, Tensor]:
    """x (B, 1 + delay, CUES) and the cues (B,), a function of the seed and `names` alone."""
    generator = stream(config.seed, *names)
    cue = torch.randint(CUES, (config.batch_size,), generator=generator)
    noise = torch.randn(config.batch_size, config.delay, CUES, generator=generator)
    return torch.cat([functional.one_hot(cue, CUES).unsqueeze(1).float(), 0.1 * noise], 1), cue


class RecallTrainer(SupervisedTrainer[RecallConfig]):
    sample_unit = "iterations"

    def batch(self) -> tuple[Tensor, Tensor]:
        return sequences(self.config, "train", self.updates)

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target)

    def after_update(self) -> bool:
        self.done = self.updates
        return self.done % 20 == 0 or self.done >= self.total

    def validate(self) -> Evaluation:
        return self._measured("validation")

    def evaluate(self) -> Evaluation:
        return self._measured("test")

    def _measured(self, name: str) -> Evaluation:
        x, cue = (part.to(self.device) for part in sequences(self.config, name))
        with EnergyMeter(self.model.core) as meter, torch.no_grad():
            correct = (self.model(x).argmax(1) == cue).float().mean()
        return evaluation(100.0 * float(correct), meter)


class Recall(Task):
    def build_network(self, config: RecallConfig) -> SequenceModel:
        core = build_core(config, CUES, output_size=CUES)
        return SequenceModel(core, CUES, last_only=True)

    def build_trainer(self, config: RecallConfig, *, plain: bool = False) -> RecallTrainer:
        return RecallTrainer(config, self.build_network(config))


stpn.register_task(
    Recall(
        name="recall",
        title="Delayed recall",
        metric="accuracy",
        config=RecallConfig,
        settings={"lr": 1e-2, "hidden_size": 16},
    )
)

if __name__ == "__main__":
    sys.exit(main(["train", "recall", *sys.argv[1:]]))
