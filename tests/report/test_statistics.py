"""Statistics over seeds against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stpn.report.statistics import (
    Estimate,
    Spread,
    bootstrap_interval,
    interquartile_mean,
    student,
    welch,
)


def brute_interquartile_mean(values: list[float]) -> float:
    """Throw away the lowest and the highest, a quarter of them at each end."""
    kept = sorted(values)
    for _ in range(len(values) // 4):
        kept.remove(min(kept))
        kept.remove(max(kept))
    return sum(kept) / len(kept)


@pytest.mark.parametrize("count", range(1, 14))
def test_interquartile_mean_equals_brute_force(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    assert math.isclose(interquartile_mean(values), brute_interquartile_mean(values.tolist()))


def test_interquartile_mean_forgives_one_bad_run() -> None:
    assert interquartile_mean(np.array([20.0, 20.0, 20.0, 20.0, -21.0])) == 20.0


def test_interquartile_mean_works_along_the_last_axis() -> None:
    values = np.random.default_rng(0).normal(size=(7, 5))
    expected = [brute_interquartile_mean(row.tolist()) for row in values]
    np.testing.assert_allclose(interquartile_mean(values), expected)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_bootstrap_interval_equals_that_of_all_resamples(count: int) -> None:
    """With few seeds every resample can be listed: the drawn ones must have the same quantiles."""
    values = np.random.default_rng(count).normal(size=count).tolist()
    everything = [
        brute_interquartile_mean(list(s)) for s in itertools.product(values, repeat=count)
    ]
    exact = np.quantile(everything, [0.025, 0.975], method="inverted_cdf")
    drawn = bootstrap_interval(values, interquartile_mean, resamples=40_000)
    spread = max(values) - min(values)
    np.testing.assert_allclose(drawn, exact, atol=0.03 * spread)


def test_bootstrap_interval_is_the_same_every_time() -> None:
    values = np.random.default_rng(5).normal(size=9).tolist()
    first = bootstrap_interval(values, interquartile_mean)
    assert first == bootstrap_interval(values, interquartile_mean)
    assert first != bootstrap_interval(values, interquartile_mean, seed=1)


def test_bootstrap_interval_holds_the_statistic_and_stays_within_the_values() -> None:
    values = np.random.default_rng(3).normal(size=9)
    low, high = bootstrap_interval(values.tolist(), interquartile_mean)
    assert values.min() <= low <= interquartile_mean(values) <= high <= values.max()


def test_an_estimate_of_several_seeds() -> None:
    estimate = Estimate((1.0, 2.0, 3.0, 4.0))
    assert estimate.count == 4
    assert estimate.mean == 2.5
    assert math.isclose(estimate.std, math.sqrt(5 / 3))  # of a sample: n - 1
    assert estimate.median == 2.5
    assert estimate.quartiles == (1.75, 3.25)


def test_one_seed_has_no_spread() -> None:
    estimate = Estimate((7.0,))
    assert estimate.std is None
    assert estimate.interval is None
    assert estimate.interquartile_mean == 7.0


@pytest.mark.parametrize("values", [(), (1.0, math.nan), (math.inf,)])
def test_an_estimate_refuses_what_is_not_a_measurement(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="an estimate needs"):
        Estimate(values)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423)]
)
def test_students_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert student(0.975, freedom) == pytest.approx(quantile, rel=1e-4)
    assert student(0.025, freedom) == pytest.approx(-quantile, rel=1e-4)


def test_welchs_interval() -> None:
    """Worked by hand: variances 4/4 and 9/9, so a standard error of sqrt(2) and 6.55 degrees."""
    difference, half = welch(Spread(10.0, 2.0, 4), Spread(7.0, 3.0, 9))
    assert difference == 3.0
    freedom = 2**2 / (1 / 3 + 1 / 8)
    assert half == pytest.approx(student(0.975, freedom) * math.sqrt(2))


def test_one_seed_borrows_the_spread_of_the_other_side() -> None:
    _, half = welch(Spread(10.0, None, 1), Spread(7.0, 2.0, 5))
    assert half == pytest.approx(student(0.975, 4) * 2 * math.sqrt(1 + 1 / 5))
    assert welch(Spread(10.0, None, 1), Spread(7.0, None, 1)) == (3.0, math.inf)
    assert welch(Spread(10.0, 0.0, 2), Spread(7.0, 0.0, 2)) == (3.0, 0.0)
