"""Numbers over seeds: few values, so every spread says how many there were.

Two means are compared by Welch's interval, in which both spreads and both numbers of seeds count.
Reinforcement learning also gets the interquartile mean with a bootstrap interval, as Agarwal et al.
(2021) advise for few and brittle runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RESAMPLES = 2000
LEVEL = 0.95


class Spread(NamedTuple):
    """What a comparison needs to know of some seeds."""

    mean: float
    std: float | None  # None: one seed, which has no spread
    seeds: int


@dataclass(frozen=True)
class Estimate:
    """One number, measured once per seed."""

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

    @property
    def spread(self) -> Spread:
        return Spread(self.mean, self.std, self.count)

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


def welch(a: Spread, b: Spread, *, level: float = LEVEL) -> tuple[float, float]:
    """Difference of two means, a - b, and the half width of its confidence interval.

    A single seed is taken to spread as the others do; between two single seeds all is possible.
    """
    std_a, std_b = (b.std if a.std is None else a.std), (a.std if b.std is None else b.std)
    if std_a is None or std_b is None:
        return a.mean - b.mean, math.inf
    part_a, part_b = std_a**2 / a.seeds, std_b**2 / b.seeds
    if part_a + part_b == 0:
        return a.mean - b.mean, 0.0
    if a.std is None or b.std is None:  # a spread that was borrowed brings no freedom of its own
        freedom = float(max(a.seeds, b.seeds) - 1)
    else:
        lost = part_a**2 / (a.seeds - 1) + part_b**2 / (b.seeds - 1)
        freedom = (part_a + part_b) ** 2 / lost
    return a.mean - b.mean, student(0.5 + level / 2, freedom) * math.sqrt(part_a + part_b)


@cache
def student(probability: float, freedom: float) -> float:
    """Quantile of Student's t: with t = sqrt(n) tan(x), the density of x is cos(x)^(n - 1)."""
    x = np.linspace(-math.pi / 2, math.pi / 2, 20_001)
    middle = np.cos((x[1:] + x[:-1]) / 2) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(middle)])
    return math.sqrt(freedom) * math.tan(np.interp(probability, below / below[-1], x))
