"""The attacks, with few cases; `python -m tests.attack --cases 100000` is the long form."""

from __future__ import annotations

from random import Random

import pytest

from . import Broken, attack, devices, layers, operators, run, run_here  # noqa: F401 (enter attacks)


def test_outcomes_are_counted_and_failures_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attack.ATTACKS", {})

    @attack("dice")
    def dice(random: Random) -> str:
        number = random.randrange(3)
        if number == 0:
            raise Broken("a promise")
        return {1: "right"}[number]

    report = run("dice", cases=60, seed=1)
    assert report.cases == 60
    assert report.outcomes["right"] + len(report.failures) == 60
    assert any(line.endswith("a promise") for line in report.failures)
    assert any("KeyError" in line for line in report.failures)  # an error nobody expected
    again = run("dice", cases=1, seed=1, first=7)
    assert again.failures == [line for line in report.failures if line.startswith("case 7:")]


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        pytest.param("layers", 150, marks=pytest.mark.slow),
        pytest.param("memories", 60, marks=pytest.mark.slow),
        ("operators", 800),
        ("devices", 300),
    ],
)
def test_no_promise_is_broken(name: str, cases: int) -> None:
    report = run(name, cases=cases, seed=0)
    assert report.cases == cases
    assert not report.failures, str(report)


@pytest.mark.parametrize(
    ("name", "seed", "case"),
    [
        pytest.param("layers", 2, 88, id="a weight of one dimension was an IndexError"),
        pytest.param("layers", 2, 3443, id="nearer to the truth than the specification itself"),
        pytest.param("layers", 3, 5330, id="one draw of the specification's errors was small"),
        pytest.param("memories", 0, 385, id="so was a convolution of one dimension"),
        pytest.param("memories", 3, 15, id="so was a weight of gradient plasticity"),
    ],
)
def test_what_failed_once(name: str, seed: int, case: int) -> None:
    assert not next(run_here(name, 1, seed, case))[1]
