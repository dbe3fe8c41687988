"""What README and start page say of results in words is what the result files say in numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import stpn
from stpn.report.grid import Grid, Quantity, collect, run_reach

ROOT = Path(__file__).parents[2]


@cache
def grid() -> Grid:
    return collect(ROOT / "results")


def each(task: str, model: str, quantity: Quantity = "proficiency") -> np.ndarray:
    estimate = grid().group(task, model).estimate(quantity)
    assert estimate is not None
    return np.array(estimate.values)


def mean(task: str, model: str, quantity: Quantity = "proficiency") -> float:
    return float(each(task, model, quantity).mean())


def power_ratio(task: str, model: str) -> float:
    """Of a baseline to STPNr."""
    return mean(task, model, "power") / mean(task, "stpnr", "power")


def parameters(name: str) -> int:
    return stpn.pretrained.card(name).parameters


def every_question_right() -> bool:
    accuracy = each("art", "stpnr")
    return len(accuracy) == 5 and bool((accuracy.round(2) == 100).all())


def lstm_answers_half() -> bool:
    alike = abs(parameters("art-lstm") / parameters("art-stpnr") - 1) < 0.1
    return alike and 40 < mean("art", "lstm") < 60


def lstm_and_modplast_earn_more() -> bool:
    others = ("lstm", "modplast")
    return all(mean("maze", other) > mean("maze", "stpnr") for other in others)


def at_many_times_the_power() -> bool:
    return all(power_ratio("maze", other) > 3 for other in ("lstm", "modplast"))


def maze_is_shorter_than_the_papers() -> bool:
    models = ("stpnr", "lstm", "modplast")
    return all(run_reach(run) < 1 for m in models for run in grid().group("maze", m).used)


CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    ("README.md", "answer every question right (five seeds)", every_question_right),
    ("README.md", "an LSTM with as many parameters answers half", lstm_answers_half),
    ("README.md", "a seventeenth of its power", lambda: round(power_ratio("art", "lstm")) == 17),
    ("README.md", "trained for less than the paper did", maze_is_shorter_than_the_papers),
    ("README.md", "LSTM and ModPlast earn more", lstm_and_modplast_earn_more),
    ("README.md", "at many times the power", at_many_times_the_power),
    ("docs/index.md", "An LSTM with as many parameters answers half", lstm_answers_half),
    ("docs/index.md", "seventeen times the power", lambda: round(power_ratio("art", "lstm")) == 17),
]  # fmt: skip


@pytest.mark.parametrize(("page", "words", "holds"), CLAIMS)
def test_a_claim_in_words_is_that_of_the_results(
    page: str, words: str, holds: Callable[[], bool]
) -> None:
    """A claim that is worded anew, or is not made any more, changes here too."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert words in text
    assert holds()
