"""Multi-query associative recall (MQAR; Arora et al. 2023, "Zoology").

A sequence opens with pairs of a key and its value, all keys different, and goes on with noise among
which every key comes once more: there the value is asked. How far away is drawn by a power law, so
that most keys come back soon. Keys are the first half of the vocabulary but for the blank 0, values
the second half, each drawn without replacement, as in the paper.
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
class MqarConfig(MemoryConfig):
    """Multi-query associative recall: give the value of each key that comes again."""

    vocabulary: int = 8192
    """Symbols, half of them keys, half of them values."""
    length: int = 64
    """T, steps of a sequence."""
    pairs: int = 4
    """Pairs of a key and a value; each key is asked once."""
    power: float = 0.01
    """Exponent of the law of distances: smaller is sooner."""
    noise: bool = True
    """Random symbols where nothing is asked; else the blank."""
    embedding_size: int = 0
    """Entries of a symbol's trained embedding; 0: one-hot."""

    def check(self) -> None:
        super().check()
        require(self.pairs >= 1, "pairs", ">= 1", self.pairs)
        require(self.length >= 4 * self.pairs, "length", "at least 4 pairs", self.length)
        enough = 2 * self.pairs + 2
        require(self.vocabulary >= enough, "vocabulary", f"at least {enough}", self.vocabulary)
        require(self.power > 0, "power", "> 0", self.power)
        require(self.embedding_size >= 0, "embedding_size", ">= 0", self.embedding_size)

    @property
    def inputs(self) -> int:
        return self.vocabulary

    @property
    def outputs(self) -> int:
        return self.vocabulary

    @property
    def embedding(self) -> int:
        return self.embedding_size

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        half, pairs = self.vocabulary // 2, self.pairs
        keys = 1 + _different(count, half - 1, pairs, generator)  # (N, pairs)
        values = half + _different(count, self.vocabulary - half, pairs, generator)
        x = torch.zeros(count, self.length, dtype=torch.int64)
        if self.noise:
            x = torch.randint(self.vocabulary, x.shape, generator=generator)
        x[:, : 2 * pairs] = torch.stack([keys, values], 2).flatten(1)
        # A question has a place of two steps: the key, and where its value would stand.
        places = (self.length - 2 * pairs) // 2
        distance = torch.arange(1, places + 1, dtype=torch.float64)
        likely = self.power * distance ** (self.power - 1)
        gaps = torch.multinomial(likely.expand(count, -1), pairs, generator=generator)
        at = 2 * pairs + 2 * gaps  # (N, pairs), different ones
        x.scatter_(1, at, keys)
        target = torch.full_like(x, -1).scatter_(1, at, values)
        return x, target


def _different(count: int, symbols: int, wanted: int, generator: torch.Generator) -> Tensor:
    """(count, wanted) numbers below `symbols`, different in each row."""
    import torch

    return torch.rand(count, symbols, generator=generator).topk(wanted, 1).indices


def _task(vocabulary: int, length: int, pairs: int, **settings: int) -> MemoryTask:
    small = "" if vocabulary == 8192 else f"-v{vocabulary}"
    return MemoryTask(
        name=f"mqar-l{length}-k{pairs}{small}",
        title=f"Associative recall, {pairs} keys in {length} steps, {vocabulary:,} symbols",
        metric="accuracy",
        config=MqarConfig,
        settings={
            **SETTINGS, "vocabulary": vocabulary, "length": length, "pairs": pairs, **settings
        },
        model_settings=MODEL_SETTINGS,
    )  # fmt: skip


TASKS = (
    _task(32, 24, 4, iterations=4000),
    _task(64, 48, 8, iterations=4000),
    *(  # the usual sizes; the first two are in the suite
        _task(8192, length, pairs, embedding_size=64, parameters=16_000, iterations=iterations)
        for length, pairs, iterations in ((64, 4, 2000), (128, 8, 2000))
    ),
    *(  # for machines with more time
        _task(8192, length, pairs, embedding_size=64, parameters=50_000, iterations=20_000)
        for length, pairs in ((256, 16), (256, 32), (512, 64))
    ),
)
