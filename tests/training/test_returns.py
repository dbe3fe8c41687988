"""Returns and advantages against their definitions, written out as sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stpn.training.returns import discounted_returns, generalised_advantages


def rollout(seed: int, batch: int, steps: int, end_chance: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    terminated = rng.random((batch, steps)) < end_chance
    truncated = ~terminated & (rng.random((batch, steps)) < end_chance)
    cut = terminated | truncated
    cut[:, -1] = True
    return {
        "rewards": rng.normal(size=(batch, steps)),
        "values": rng.normal(size=(batch, steps)),
        "ended": terminated | truncated,
        "bootstrap": np.where(cut & ~terminated, rng.normal(size=(batch, steps)), 0.0),
    }


def brute_force_return(data: dict[str, np.ndarray], b: int, t: int, discount: float) -> float:
    total, factor = 0.0, 1.0
    steps = data["rewards"].shape[1]
    while True:
        total += factor * data["rewards"][b, t]
        factor *= discount
        if data["ended"][b, t] or t == steps - 1:
            return total + factor * data["bootstrap"][b, t]
        t += 1


def brute_force_advantage(
    data: dict[str, np.ndarray], b: int, t: int, discount: float, smoothing: float
) -> float:
    """The exponentially weighted sum of n-step errors, as Schulman et al. define it."""
    total, factor = 0.0, 1.0
    steps = data["rewards"].shape[1]
    while True:
        cut = data["ended"][b, t] or t == steps - 1
        following = data["bootstrap"][b, t] if cut else data["values"][b, t + 1]
        delta = data["rewards"][b, t] + discount * following - data["values"][b, t]
        total += factor * delta
        factor *= discount * smoothing
        if cut:
            return total
        t += 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    batch=st.integers(1, 4),
    steps=st.integers(1, 12),
    end_chance=st.sampled_from([0.0, 0.2, 1.0]),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    smoothing=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_against_brute_force(
    seed: int, batch: int, steps: int, end_chance: float, discount: float, smoothing: float
) -> None:
    data = rollout(seed, batch, steps, end_chance)
    without_values = {name: data[name] for name in ("rewards", "ended", "bootstrap")}
    returns = discounted_returns(**without_values, discount=discount)
    advantages = generalised_advantages(**data, discount=discount, smoothing=smoothing)
    for b in range(batch):
        for t in range(steps):
            assert returns[b, t] == pytest.approx(brute_force_return(data, b, t, discount))
            assert advantages[b, t] == pytest.approx(
                brute_force_advantage(data, b, t, discount, smoothing)
            )


def test_smoothing_one_is_the_return_minus_the_value() -> None:
    data = rollout(0, 3, 50, 0.05)
    without_values = {name: data[name] for name in ("rewards", "ended", "bootstrap")}
    returns = discounted_returns(**without_values, discount=0.9)
    advantages = generalised_advantages(**data, discount=0.9, smoothing=1.0)
    np.testing.assert_allclose(advantages, returns - data["values"])


def test_truncation_bootstraps_and_termination_does_not() -> None:
    rewards = np.ones((2, 1))
    ended = np.ones((2, 1), dtype=bool)
    bootstrap = np.array([[0.0], [5.0]])  # terminated, truncated
    returns = discounted_returns(rewards, ended, bootstrap, discount=0.5)
    np.testing.assert_allclose(returns, [[1.0], [3.5]])


def test_nothing_flows_from_one_episode_into_another() -> None:
    data = rollout(1, 1, 6, 0.0)
    data["ended"][0, 2] = True
    before = generalised_advantages(**data, discount=0.9, smoothing=0.9)
    data["rewards"][0, 3:] += 100.0
    data["values"][0, 3:] -= 100.0
    after = generalised_advantages(**data, discount=0.9, smoothing=0.9)
    np.testing.assert_array_equal(before[0, :3], after[0, :3])


def test_arguments_are_left_alone() -> None:
    data = rollout(2, 2, 5, 0.3)
    copies = {name: array.copy() for name, array in data.items()}
    generalised_advantages(**data, discount=0.9, smoothing=0.9)
    discounted_returns(data["rewards"], data["ended"], data["bootstrap"], discount=0.9)
    for name, array in data.items():
        np.testing.assert_array_equal(array, copies[name])
