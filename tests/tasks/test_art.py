"""The associative retrieval task: form, statistics, seeds."""

import math
import time

import pytest
import torch

from stpn.tasks import art


@pytest.fixture(scope="module")
def data():
    return art.dataset(seed=0)


def test_sizes_and_types(data):
    assert [len(part.symbols) for part in data] == [100_000, 10_000, 20_000]
    assert [len(part.answers) for part in data] == [100_000, 10_000, 20_000]
    assert data.train.symbols.dtype == torch.uint8
    assert data.train.symbols.shape[1] == 9
    assert data.train.answers.dtype == torch.int64


def test_every_answer_is_the_one_that_the_sequence_asks_for(data):
    for split in data:
        for symbols, answer in zip(split.symbols[:500], split.answers[:500], strict=True):
            text = art.decode(symbols)
            assert art.solve(text) == art.decode(answer), text


def test_no_sequence_occurs_twice_in_any_split(data):
    everything = torch.cat([split.symbols for split in data])
    assert len(everything.unique(dim=0)) == len(everything)


def test_letters_digits_and_asked_pairs_are_uniform(data):
    """Each count lies within five standard deviations of the binomial it should follow."""

    def uniform(values, categories):
        counts = torch.bincount(values, minlength=categories).double()
        n, p = values.numel(), 1 / categories
        assert ((counts - n * p).abs() < 5 * math.sqrt(n * p * (1 - p))).all(), counts

    symbols = data.train.symbols.long()
    for place in (0, 2, 4):
        uniform(symbols[:, place], 26)
        uniform(symbols[:, place + 1] - 26, 10)
    asked = (symbols[:, [0, 2, 4]] == symbols[:, -1:]).long()
    assert (asked.sum(dim=1) == 1).all()  # letters are drawn without replacement
    uniform(asked.argmax(dim=1), 3)
    uniform(data.train.answers - 26, 10)


def test_letters_of_a_sequence_are_independent_of_each_other(data):
    """All 26 x 25 ordered pairs of first and second letter are equally likely."""
    symbols = data.train.symbols.long()
    counts = torch.bincount(symbols[:, 0] * 26 + symbols[:, 2], minlength=26 * 26)
    counts = counts.view(26, 26).double()
    assert counts.diagonal().sum() == 0
    expected = len(symbols) / (26 * 25)
    chi2 = ((counts - expected) ** 2 / expected).sum() - 26 * expected
    degrees = 26 * 25 - 1
    assert abs(chi2 - degrees) < 5 * math.sqrt(2 * degrees)


def test_digits_repeat_within_a_sequence(data):
    digits = data.train.symbols[:, 1:6:2]
    all_different = (digits[:, 0] != digits[:, 1]) & (digits[:, 0] != digits[:, 2])
    all_different &= digits[:, 1] != digits[:, 2]
    assert all_different.float().mean() == pytest.approx(0.72, abs=0.01)


def test_same_seed_same_data_other_seed_other_data():
    first, again, other = (art.dataset(500, 50, 50, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(first.test.symbols, again.test.symbols)
    assert not torch.equal(first.test.symbols, other.test.symbols)


def test_a_generator_moves_on():
    generator = torch.Generator().manual_seed(0)
    first, second = (art.sequences(100, seed=generator) for _ in range(2))
    assert not torch.equal(first.symbols, second.symbols)


def test_the_whole_universe_can_be_drawn():
    """26 letters x 10 digits: with one pair there are 260 sequences, each exactly once."""
    everything = art.sequences(260, pairs=1)
    assert {art.decode(row) for row in everything.symbols} == {
        f"{letter}{digit}??{letter}" for letter in art.LETTERS for digit in art.DIGITS
    }


@pytest.mark.parametrize("pairs", range(1, art.MAX_PAIRS + 1))
def test_any_number_of_pairs(pairs):
    data = art.sequences(200, pairs=pairs)
    assert data.symbols.shape == (200, 2 * pairs + 3)
    for symbols, answer in zip(data.symbols, data.answers, strict=True):
        assert art.solve(art.decode(symbols)) == art.decode(answer)


def test_130_000_sequences_take_less_than_a_second():
    start = time.process_time()
    art.dataset()
    assert time.process_time() - start < 1


def test_one_hot():
    x = art.one_hot(art.encode("a9?"))
    assert x.shape == (3, 37)
    assert x.argmax(dim=1).tolist() == [0, 35, 36]
    assert x.sum() == 3


@pytest.mark.parametrize(
    "text",
    ["", "c9", "c9??", "9c??c", "c9k8??", "c9c8??c", "c9k8?k", "c9k8j3?xk", "cc??c", "c9k8j??k"],
)
def test_text_that_is_no_sequence_is_refused(text):
    with pytest.raises(ValueError, match="is not a sequence"):
        art.solve(text)


def test_a_letter_that_was_not_shown_is_refused():
    with pytest.raises(ValueError, match="asks for 'z'"):
        art.solve("c9k8j3??z")


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="not a symbol of the task: 'C'"):
        art.encode("C9")
    with pytest.raises(ValueError, match="pairs must be between 1 and 7, not 0"):
        art.sequences(1, pairs=0)
    with pytest.raises(ValueError, match="1 pairs make 260 sequences; cannot draw 261"):
        art.sequences(261, pairs=1)
