"""Numbers that notes quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_result

from stpn.errors import ConfigError
from stpn.report.build import gather
from stpn.report.grid import Grid, collect
from stpn.report.quotes import fill


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    root = tmp_path_factory.mktemp("results")
    for seed, accuracy in enumerate((40.0, 50.0, 61.234)):
        write_result(root, "art", "lstm", seed, proficiency=accuracy, power=70.0 + seed)
    write_result(root, "pendulum", "stpnf", 0, proficiency=1000.0, power=0.00483)
    write_result(root, "pong", "stpnr", 0, reach=0.01, finished=False, proficiency=-13.1)
    return collect(root)


@pytest.mark.parametrize(
    ("quote", "text"),
    [
        ("{art/lstm}", "50.41 ± 10.62"),
        ("{art/lstm power}", "71.0 ± 1.0"),
        ("{art/lstm each}", "40.00, 50.00 and 61.23"),
        ("{art/lstm\npower each}", "70.0, 71.0 and 72.0"),
        ("{pendulum/stpnf}", "1000.0"),
        ("{pendulum/stpnf power each}", "0.005"),
        ("{pong/stpnr}", "-13.1 (unfinished)"),
        ("{maze/stpnr}", "(not run yet)"),
        ("{paper art/stpnr}", "98.55 ± 2.76"),
        ("{paper art/stpnr power}", "10.9 ± 3.8"),
        ("{ablation art/stpnr power}", "3.4 ± 0.4"),
        ("{a}, `{x/}`, {}", "{a}, `{x/}`, {}"),
    ],
)
def test_what_can_be_quoted(grid: Grid, quote: str, text: str) -> None:
    assert fill(f"It is {quote}%.", grid) == f"It is {text}%."


def test_at_its_best(grid: Grid) -> None:
    (run,) = grid.group("pendulum", "stpnf").runs
    assert fill("{pendulum/stpnf best}", grid) == f"{max(run.curve['proficiency']):.1f}"


def test_while_training(grid: Grid) -> None:
    (run,) = grid.group("pendulum", "stpnf").runs
    step, expected = run.curve["step"][10], run.curve["proficiency"][10]
    assert fill(f"{{pendulum/stpnf at {step}}}", grid) == f"{expected:.1f}"
    assert fill(f"{{pendulum/stpnf at {step + 1}}}", grid) == f"{expected:.1f}"
    assert fill("{pendulum/stpnf at 2000000}", grid) == "(not run yet)"


@pytest.mark.parametrize(
    ("quote", "reason"),
    [
        ("{arts/lstm}", "unknown task 'arts' .did you mean 'art'"),
        ("{art/ltsm}", "unknown model 'ltsm' .did you mean 'lstm'"),
        ("{paper art/lstm each}", "the paper has means"),
        ("{paper art/lstm best}", "the paper has means"),
        ("{art/lstm power best}", "a seed is at its best by"),
        ("{ablation art/lstm}", "the paper has no such number"),
    ],
)
def test_what_cannot_be_quoted(grid: Grid, quote: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"the notes ask for \{quote[:-1]}\}}: {reason}"):
        fill(quote, grid)


def test_the_report_has_them(grid: Grid, tmp_path: Path) -> None:
    assert gather(grid.root, notes="LSTM: {art/lstm}").notes == "LSTM: 50.41 ± 10.62"
