"""Continual familiarity: at each step, has this vector been seen R steps ago?

A stream of random vectors of -1 and +1. At each step a coin falls: with probability p, and if the
vector R steps ago was itself new, that vector comes again (label 1), else a new one (label 0).

>>> x, labels = sequence(5000, 100, distance=3, probability=0.5, seed=0)
>>> x.shape, labels.shape
(torch.Size([5000, 100]), torch.Size([5000]))
"""

from __future__ import annotations

import importlib
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stpn.config import MEASUREMENT, RunConfig, require
from stpn.tasks.registry import Task

if TYPE_CHECKING:
    from stpn.tasks.familiarity.data import Sequence as Sequence
    from stpn.tasks.familiarity.data import repetitions as repetitions
    from stpn.tasks.familiarity.data import sequence as sequence
    from stpn.tasks.familiarity.training import FamiliarityTrainer as FamiliarityTrainer
    from stpn.training.supervised import SequenceModel


@dataclass(frozen=True, kw_only=True)
class FamiliarityConfig(RunConfig):
    """Continual familiarity: has this vector been seen R steps ago?"""

    mode: Literal["dataset", "infinite"] = "infinite"
    """dataset: one fixed training sequence; infinite: a new one at each iteration."""
    distance: int = 3
    """R, the steps between a vector and its repetition."""
    iterations: int = 1600
    """Gradient steps, one sequence each."""
    length: int = 5000
    """T, steps of a sequence."""
    input_size: int = 100
    """d, entries of a vector, each -1 or +1."""
    probability: float = 0.5
    """p, chance of repeating where a repetition is possible."""
    log_every: int = field(default=10, metadata=MEASUREMENT)
    """Iterations between two rows of metrics."""
    eval_sequences: int = 10
    """New sequences of the final evaluation (infinite; dataset has one validation sequence)."""

    total_field: typing.ClassVar[str] = "iterations"

    def check(self) -> None:
        super().check()
        for name in ("distance", "length", "input_size", "log_every", "eval_sequences"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        require(0 <= self.probability <= 1, "probability", "between 0 and 1", self.probability)
        require(self.distance < self.length, "distance", "smaller than length", self.distance)


class Familiarity(Task):
    def build_network(self, config: FamiliarityConfig) -> SequenceModel:
        from stpn.tasks.familiarity.training import build_network

        return build_network(config)

    def build_trainer(
        self, config: FamiliarityConfig, *, plain: bool = False
    ) -> FamiliarityTrainer:
        from stpn.tasks.familiarity.training import FamiliarityTrainer

        return FamiliarityTrainer(config)


def _task(mode: str, distance: int, iterations: int) -> Familiarity:
    return Familiarity(
        name=f"familiarity-{mode}-r{distance}",
        title=f"Continual familiarity, {mode}, R = {distance}",
        metric="accuracy",
        config=FamiliarityConfig,
        settings={"mode": mode, "distance": distance, "iterations": iterations},
    )


TASKS = (_task("dataset", 3, 3000), _task("infinite", 3, 1600), _task("infinite", 6, 3500))


def __getattr__(name: str) -> Any:
    """Data and training need torch, settings do not."""
    module = "training" if name == "FamiliarityTrainer" else "data"
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
