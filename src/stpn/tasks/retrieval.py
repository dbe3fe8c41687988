"""Associative retrieval, scaled: more pairs than three, and a delay before the question.

`c9k8j3`, then `delay` blanks, then `??k` as in `stpn.tasks.art`. Keys are drawn without replacement
from an alphabet of 26, or twice as many as there are pairs if that is more; values are ten digits.
Only the last step is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stpn.config import require
from stpn.tasks.memory import MODEL_SETTINGS, SETTINGS, MemoryConfig, MemoryTask

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DIGITS = 10
MOST_PAIRS = 1000


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig(MemoryConfig):
    """Scaled associative retrieval: read pairs, wait, answer with one key's digit."""

    pairs: int = 3
    """Pairs of a key and a digit."""
    delay: int = 0
    """Blanks between the last pair and the question."""

    def check(self) -> None:
        super().check()
        require(1 <= self.pairs <= MOST_PAIRS, "pairs", f"between 1 and {MOST_PAIRS}", self.pairs)
        require(self.delay >= 0, "delay", ">= 0", self.delay)

    @property
    def keys(self) -> int:
        return max(26, 2 * self.pairs)

    @property
    def inputs(self) -> int:
        return self.keys + DIGITS + 2  # keys, digits, the question mark, the blank

    @property
    def outputs(self) -> int:
        return DIGITS

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        order = torch.rand(count, self.keys, generator=generator).argsort(1)
        keys = order[:, : self.pairs]  # (N, pairs), different ones
        digits = torch.randint(DIGITS, (count, self.pairs), generator=generator)
        chosen = torch.randint(self.pairs, (count, 1), generator=generator)
        question, blank = self.keys + DIGITS, self.keys + DIGITS + 1
        written = torch.stack([keys, digits + self.keys], 2).flatten(1)
        waiting = torch.full((count, self.delay), blank)
        asking = torch.full((count, 2), question)
        x = torch.cat([written, waiting, asking, keys.gather(1, chosen)], 1)
        target = torch.full_like(x, -1)
        target[:, -1:] = digits.gather(1, chosen)
        return x, target


def _task(pairs: int, delay: int, iterations: int) -> MemoryTask:
    later = f", delay {delay}" if delay else ""
    return MemoryTask(
        name=f"retrieval-p{pairs}" + (f"-d{delay}" if delay else ""),
        title=f"Associative retrieval, {pairs} pairs{later}",
        metric="accuracy",
        config=RetrievalConfig,
        settings={**SETTINGS, "pairs": pairs, "delay": delay, "iterations": iterations},
        model_settings=MODEL_SETTINGS,
    )


TASKS = (
    *(_task(pairs, 0, 6000) for pairs in (3, 8, 16)),
    *(_task(pairs, 0, 4000) for pairs in (32, 64)),
    *(_task(3, delay, 4000) for delay in (20, 60)),
)
