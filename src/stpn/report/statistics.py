"""Figures over seeds: few values, so every spread says how many there were.

Reinforcement learning also gets the interquartile mean with a bootstrap interval, as Agarwal et
al. (2021) advise for few and brittle runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """One figure, measured once per seed."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("an estimate needs at least one value")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"an estimate needs finite values, got {list(self.values)}")

    @property
    def count(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @cached_property
    def std(self) -> float | None:
        """Standard deviation of the sample (n - 1); one seed has no spread, not a spread of 0."""
        return float(np.std(self.values, ddof=1)) if self.count > 1 else None

    @cached_property
    def median(self) -> float:
        return float(np.median(self.values))

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float(low), float(high)

    @cached_property
    def interquartile_mean(self) -> float:
        return float(interquartile_mean(np.asarray(self.values)))

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Bootstrap interval of the interquartile mean; one seed cannot be resampled."""
        if self.count == 1:
            return None
        return bootstrap_interval(self.values, interquartile_mean)


def interquartile_mean(values: Array) -> Array:
    """Mean of the middle half along the last axis.

    A quarter of the values, rounded down, is cut at each end: of five seeds the middle three
    count, of two or three seeds all.
    """
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Array], Array],  # (..., n) -> (...)
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap: the same values give the same interval on every machine."""
    sample = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(sample.size, size=(resamples, sample.size))
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(sample[picks]), [tail, 1 - tail])
    return float(low), float(high)
