"""The continual familiarity task against its sequential definition, and its statistics."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stpn.tasks import familiarity


def sequential(coins, distance):
    """The definition, step by step."""
    labels = []
    for t, coin in enumerate(coins):
        labels.append(bool(coin) and t >= distance and not labels[t - distance])
    return labels


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 70))
def test_repetitions_follow_the_sequential_definition(coins, distance):
    assert familiarity.repetitions(torch.tensor(coins), distance).tolist() == sequential(
        coins, distance
    )


@pytest.mark.parametrize("distance", [1, 3, 6])
@pytest.mark.parametrize("size", [8, 100])
def test_a_sequence_is_what_the_definition_says(distance, size):
    x, labels = familiarity.sequence(400, size, distance, seed=3)
    assert x.shape == (400, size)
    assert labels.shape == (400,)
    assert set(x.unique().tolist()) == {-1.0, 1.0}
    assert set(labels.unique().tolist()) == {0.0, 1.0}
    repeated = labels.bool()
    assert not repeated[:distance].any()
    steps = repeated.nonzero().squeeze(1)
    assert torch.equal(x[steps], x[steps - distance])
    assert not repeated[steps - distance].any()  # only what was new comes again


def test_new_vectors_are_new():
    """100 random bits never coincide by chance: as many vectors as labels say."""
    x, labels = familiarity.sequence(5000, 100, 3, seed=0)
    assert len(x.unique(dim=0)) == int((1 - labels).sum())


def test_entries_are_fair_coins():
    x, labels = familiarity.sequence(20_000, 20, 3, seed=1)
    fresh = x[labels == 0]
    assert fresh.mean(dim=0).abs().max() < 5 / len(fresh) ** 0.5
    correlation = (fresh.T @ fresh / len(fresh)).fill_diagonal_(0)
    assert correlation.abs().max() < 5.5 / len(fresh) ** 0.5


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
def test_share_of_repetitions(probability):
    """A chain repeats with probability p after a new vector, never after a repetition.

    Its stationary share s of repetitions therefore solves s = p (1 - s).
    """
    labels = familiarity.sequence(100_000, 1, 3, probability, seed=2).labels
    assert labels.mean() == pytest.approx(probability / (1 + probability), abs=0.006)


def test_seeds_and_generators():
    first, again, other = (familiarity.sequence(50, 10, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    generator = torch.Generator().manual_seed(0)
    a, b = (familiarity.sequence(50, 10, seed=generator) for _ in range(2))
    assert not torch.equal(a.x, b.x)


def test_5000_by_100_takes_less_than_5_ms():
    familiarity.sequence()
    seconds = []
    for seed in range(20):
        start = time.thread_time()  # other work on the machine does not count
        familiarity.sequence(5000, 100, seed=seed)
        seconds.append(time.thread_time() - start)
    assert min(seconds) < 0.005


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "at least 1"),
        ({"distance": 0}, "at least 1"),
        ({"probability": 1.5}, "between 0 and 1"),
    ],
)
def test_impossible_requests_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        familiarity.sequence(**arguments)
