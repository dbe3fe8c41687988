"""Better, within the spread, worse; who wins there and here."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_result

from stpn import experiments, paper
from stpn.report.grid import Grid, collect
from stpn.report.statistics import Estimate
from stpn.report.verdicts import Claim, Verdict, figure_text, judge, percent, verdict, verdicts

THEIRS = paper.Figure("proficiency", "art", "lstm", "test_accuracy", 50.0, 2.0)


def group_of(tmp_path: Path, values: list[float], quantity: str, **settings: object):
    for seed, value in enumerate(values):
        write_result(tmp_path, "art", "lstm", seed, **{quantity: value}, **settings)
    return collect(tmp_path).group("art", "lstm")


@pytest.mark.parametrize(
    ("values", "quantity", "expected"),
    [
        ([55.0], "proficiency", Verdict.BETTER),
        ([45.0], "proficiency", Verdict.WORSE),
        ([55.0], "power", Verdict.WORSE),
        ([45.0], "power", Verdict.BETTER),
        ([52.0], "proficiency", Verdict.WITHIN),  # the edge of the paper's spread belongs to it
        ([52.1], "proficiency", Verdict.BETTER),
        ([48.0, 58.0], "proficiency", Verdict.WITHIN),  # 53 ± 7 reaches it
        ([52.9, 53.1], "proficiency", Verdict.BETTER),  # 53 ± 0.14 does not
    ],
)
def test_a_figure_is_judged_by_the_overlap_of_the_spreads(
    tmp_path: Path, values: list[float], quantity: str, expected: Verdict
) -> None:
    group = group_of(tmp_path, values, quantity)
    assert judge(group, quantity, THEIRS) is expected


def test_a_short_run_is_not_judged(tmp_path: Path) -> None:
    group = group_of(tmp_path, [99.0], "proficiency", reach=0.5)
    assert judge(group, "proficiency", THEIRS) is Verdict.SHORT


def test_without_a_run_or_a_figure_there_is_nothing_to_judge(tmp_path: Path) -> None:
    assert judge(collect(tmp_path).group("art", "lstm"), "power", THEIRS) is Verdict.MISSING
    assert judge(group_of(tmp_path, [1.0], "power"), "power", None) is Verdict.UNPAIRED


def write_art(root: Path, accuracies: dict[str, list[float]]) -> Grid:
    for model, values in accuracies.items():
        for seed, value in enumerate(values):
            write_result(root, "art", model, seed, proficiency=value, power=10.0)
    return collect(root)


def ranking(grid: Grid, table: str = "proficiency"):
    rankings = verdict(grid, "art").rankings
    return next(r for r in rankings if r.table == table and r.quantity == "proficiency")


def test_the_papers_winner_wins_here_too(tmp_path: Path) -> None:
    found = ranking(write_art(tmp_path, {"stpnr": [99.0], "lstm": [50.0]}))
    assert found.claim is Claim.HOLDS
    assert (found.first_there, found.first_here) == ("stpnr", "stpnr")
    assert "2 of 5 models run" in found.sentence


def test_another_winner_within_the_spread_is_a_tie(tmp_path: Path) -> None:
    found = ranking(write_art(tmp_path, {"stpnr": [97.0, 99.0], "lstm": [98.0, 98.8]}))
    assert found.claim is Claim.TIED
    assert found.first_here == "lstm"


def test_another_winner_is_said_plainly(tmp_path: Path) -> None:
    found = ranking(write_art(tmp_path, {"stpnr": [80.0, 81.0], "fastweights": [98.0, 98.1]}))
    assert found.claim is Claim.DIFFERS
    assert found.sentence.startswith("Highest accuracy: Fast Weights (98.05), not STPNr (80.50)")


def test_runs_of_unequal_length_are_not_ranked(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0, reach=0.5, proficiency=90.0)
    write_result(tmp_path, "art", "lstm", 0, reach=0.02, proficiency=30.0)
    grid = collect(tmp_path)
    found = ranking(grid)
    assert found.claim is Claim.UNTESTED
    assert "between runs of 2% and 50% of the protocol: no comparison" in found.sentence
    assert verdict(grid, "art").headline == "Nothing to compare yet"


@pytest.mark.parametrize("models", [{"lstm": [50.0], "rnn": [40.0]}, {"stpnr": [99.0]}, {}])
def test_a_ranking_needs_the_winner_and_a_rival(
    tmp_path: Path, models: dict[str, list[float]]
) -> None:
    found = ranking(write_art(tmp_path, models))
    assert found.claim is Claim.UNTESTED
    assert "no " in found.sentence


def test_a_task_is_complete_when_all_its_seeds_are(full_grid: Grid) -> None:
    for found in verdicts(full_grid):
        experiment = experiments.get(found.task)
        assert found.runs_complete == found.runs_wanted
        assert found.runs_wanted == experiment.seeds * len(experiment.models)
        assert not found.is_partial
        assert sum(found.counts.values()) == sum(f.task == found.task for f in paper.figures())


def test_a_partial_task_says_so(tmp_path: Path) -> None:
    for model in ("stpnr", "lstm"):
        for seed in range(2):
            write_result(tmp_path, "maze", model, seed, reach=0.25)
    found = verdict(collect(tmp_path), "maze")
    assert found.is_partial
    assert found.headline.startswith("So far: ")
    assert "0 of 12 runs complete" in found.completeness
    assert "25% of the protocol" in found.completeness
    assert found.counts[Verdict.SHORT] == 4
    assert found.counts[Verdict.MISSING] == 4


def test_a_task_without_runs_says_so(tmp_path: Path) -> None:
    for found in verdicts(collect(tmp_path)):
        assert found.headline == "Not run yet"
        assert found.claim is Claim.UNTESTED


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.0, "0%"), (0.004, "under 1%"), (0.25, "25%"), (0.9999, "99%"), (1.0, "100%")],
)
def test_parts_of_the_protocol_are_never_rounded_up(part: float, text: str) -> None:
    assert percent(part) == text


@pytest.mark.parametrize(("ours", "verdict"), [(100.0, "within"), (99.0, "worse")])
def test_the_edge_of_the_spread_is_within(tmp_path: Path, ours: float, verdict: str) -> None:
    """99.99 ± 0.01 in the paper: in floating point 100 lies outside by a hair."""
    write_result(tmp_path, "art", "stpnr", 0, proficiency=ours)
    theirs = paper.figure("art", "stpnr", "test_accuracy", table="ablation")
    assert judge(collect(tmp_path).group("art", "stpnr"), "proficiency", theirs).value == verdict


@pytest.mark.parametrize(
    ("values", "text"),
    [((4.26,), "4.3"), ((0.0049,), "0.005"), ((0.0,), "0.0"), ((0.06,), "0.1")],
)
def test_a_small_figure_is_not_written_as_zero(values, text):
    assert figure_text(Estimate(values), 1) == text


def test_the_maze_names_its_reference_points(tmp_path: Path) -> None:
    (line,) = verdict(collect(tmp_path), "maze").figures
    assert "reward: random policy 5.5, agent that keeps account of where it may be 17" in line
    assert line.endswith(", oracle that knows the reward cell 270.4")
    assert verdict(collect(tmp_path), "art").figures == ()
