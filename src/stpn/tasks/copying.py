"""Copying, as in Duan et al. (2023): see a sequence of numbers, wait, give it back.

Each number is uniform between -1 and 1, and comes with a mark; after the delay another mark asks
for one number a step, in the same order. Proficiency is the explained variance of what is given, in
percent: 0 for a network that remembers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stpn.config import require
from stpn.tasks.memory import MODEL_SETTINGS, SETTINGS, MemoryConfig, MemoryTask

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CopyingConfig(MemoryConfig):
    """Copying: see numbers, wait, give them back in order."""

    length: int = 5
    """Numbers to remember."""
    delay: int = 0
    """Steps between the last number and the first answer."""

    def check(self) -> None:
        super().check()
        require(self.length >= 1, "length", ">= 1", self.length)
        require(self.delay >= 0, "delay", ">= 0", self.delay)

    @property
    def inputs(self) -> int:
        return 3  # the number, the mark of showing, the mark of asking

    @property
    def outputs(self) -> int:
        return 1

    @property
    def symbols(self) -> bool:
        return False

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        numbers = 2 * torch.rand(count, self.length, generator=generator) - 1
        steps = 2 * self.length + self.delay
        x = torch.zeros(count, steps, 3)
        x[:, : self.length, 0] = numbers
        x[:, : self.length, 1] = 1
        x[:, steps - self.length :, 2] = 1
        target = torch.full((count, steps, 1), torch.nan)
        target[:, steps - self.length :, 0] = numbers
        return x, target


def _task(length: int, delay: int) -> MemoryTask:
    return MemoryTask(
        name=f"copying-n{length}-d{delay}",
        title=f"Copying {length} numbers, delay {delay}",
        metric="explained_variance",
        config=CopyingConfig,
        settings={**SETTINGS, "length": length, "delay": delay, "iterations": 4000},
        model_settings=MODEL_SETTINGS,
    )


TASKS = (_task(5, 0), _task(5, 20), _task(20, 20))
