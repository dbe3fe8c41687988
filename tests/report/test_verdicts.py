"""Better, the same, worse or inconclusive; who leads there and here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic import write_result

from stpn import experiments, paper
from stpn.report.grid import Grid, collect
from stpn.report.statistics import Estimate
from stpn.report.verdicts import Claim, Verdict, judge, number_text, percent, verdict, verdicts

THEIRS = paper.Number("proficiency", "art", "lstm", "test_accuracy", 50.0, 2.0)  # of five seeds


def group_of(
    tmp_path: Path, values: list[float], quantity: str, model: str = "lstm", **settings: object
):
    for seed, value in enumerate(values):
        write_result(tmp_path, "art", model, seed, **{quantity: value}, **settings)
    return collect(tmp_path).group("art", model)


@pytest.mark.parametrize(
    ("model", "values", "quantity", "expected"),
    [
        ("stpnr", [58.0, 59.0, 60.0], "proficiency", Verdict.BETTER),
        ("stpnr", [40.0, 41.0, 42.0], "proficiency", Verdict.WORSE),
        ("stpnr", [58.0, 59.0, 60.0], "power", Verdict.WORSE),
        ("stpnr", [40.0, 41.0, 42.0], "power", Verdict.BETTER),
        ("lstm", [58.0, 59.0, 60.0], "proficiency", Verdict.HIGHER),  # of a baseline: no praise
        ("lstm", [40.0, 41.0, 42.0], "power", Verdict.LOWER),
        ("lstm", [50.0, 51.0, 52.0], "proficiency", Verdict.SAME),
        ("lstm", [50.9, 50.9, 50.9, 50.9], "proficiency", Verdict.SAME),  # less than a point
        ("lstm", [20.0, 80.0, 50.0], "proficiency", Verdict.INCONCLUSIVE),  # the mean hits, by luck
        ("lstm", [60.0], "proficiency", Verdict.HIGHER),  # one seed: spreads as the paper's
        ("lstm", [54.0], "proficiency", Verdict.SAME),
    ],
)
def test_a_number_is_judged_by_welchs_interval(
    tmp_path: Path, model: str, values: list[float], quantity: str, expected: Verdict
) -> None:
    group = group_of(tmp_path, values, quantity, model)
    metric = "power" if quantity == "power" else "test_accuracy"
    assert judge(group, quantity, THEIRS._replace(model=model, metric=metric)) is expected


def test_a_wide_spread_of_ours_is_no_agreement(tmp_path: Path) -> None:
    """Two seeds of 1000 and 193 say nothing about 985 ± 15, and tie with nobody."""
    for model, rewards in {"stpnf": [1000.0, 192.7], "lstm": [1000.0, 1000.0]}.items():
        for seed, reward in enumerate(rewards):
            write_result(tmp_path, "pendulum", model, seed, proficiency=reward, rows=5)
    grid = collect(tmp_path)
    theirs = paper.number("pendulum", "stpnf", "reward")
    assert judge(grid.group("pendulum", "stpnf"), "proficiency", theirs) is Verdict.INCONCLUSIVE
    ranking = verdict(grid, "pendulum").rankings[0]
    assert ranking.claim is Claim.INCONCLUSIVE
    assert ranking.here.equal == ("lstm",)
    assert ranking.here.open == ("stpnf",)


def test_of_agents_both_rewards_must_agree(tmp_path: Path) -> None:
    for seed, last in enumerate((984.0, 986.0)):
        path = write_result(tmp_path, "pendulum", "stpnf", seed, proficiency=last)
        content = json.loads(path.read_text())
        content["curve"]["proficiency"] = [400.0 + seed] * len(content["curve"]["step"])
        path.write_text(json.dumps(content))
    group = collect(tmp_path).group("pendulum", "stpnf")
    assert group.late.values == (400.0, 401.0)
    theirs = paper.number("pendulum", "stpnf", "reward")
    assert judge(group, "proficiency", theirs) is Verdict.INCONCLUSIVE


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
    found = ranking(write_art(tmp_path, {"stpnr": [98.0, 99.0], "lstm": [50.0, 51.0]}))
    assert found.claim is Claim.HOLDS
    assert (found.there.best, found.here.equal) == ("stpnr", ("stpnr",))
    assert "2 of 5 models run" in found.sentence


def test_a_lead_within_its_uncertainty_is_none(tmp_path: Path) -> None:
    close = {"stpnr": [98.0, 98.4, 98.2], "lstm": [98.1, 98.5, 98.3]}
    found = ranking(write_art(tmp_path, close))
    assert found.claim is Claim.TIED
    assert set(found.here.equal) == {"stpnr", "lstm"}
    assert "here tied: LSTM (98.30 ± 0.20) and STPNr (98.20 ± 0.20)" in found.sentence


def test_too_few_seeds_leave_it_open(tmp_path: Path) -> None:
    found = ranking(write_art(tmp_path, {"stpnr": [80.0, 99.0], "lstm": [98.0, 98.8]}))
    assert found.claim is Claim.INCONCLUSIVE
    single = ranking(write_art(tmp_path / "single", {"stpnr": [99.0], "lstm": [50.0]}))
    assert single.claim is Claim.UNTESTED
    assert "one seed each: no comparison" in single.sentence


def test_another_winner_is_said_plainly(tmp_path: Path) -> None:
    values = {"stpnr": [80.0, 80.5, 81.0], "fastweights": [98.0, 98.0, 98.1]}
    found = ranking(write_art(tmp_path, values))
    assert found.claim is Claim.DIFFERS
    assert found.sentence.startswith(
        "Highest accuracy: Fast Weights (98.03 ± 0.06), not STPNr (80.50 ± 0.50)"
    )


def test_nothing_is_compared_at_the_very_beginning(tmp_path: Path) -> None:
    for model, accuracy in (("stpnr", 30.0), ("lstm", 20.0)):
        for seed in range(3):
            write_result(tmp_path, "art", model, seed, reach=0.01, proficiency=accuracy + seed)
    found = verdict(collect(tmp_path), "art")
    assert found.headline == "Nothing to compare yet"
    assert found.claim is Claim.UNTESTED


def test_runs_of_unequal_length_are_not_ranked(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0, reach=0.5, proficiency=90.0)
    write_result(tmp_path, "art", "lstm", 0, reach=0.02, proficiency=30.0)
    grid = collect(tmp_path)
    found = ranking(grid)
    assert found.claim is Claim.UNTESTED
    assert "at 2% to 50% of its length, one seed each: no comparison" in found.sentence
    assert verdict(grid, "art").headline == "Nothing to compare yet"


@pytest.mark.parametrize("models", [{"lstm": [50.0], "rnn": [40.0]}, {"stpnr": [99.0]}, {}])
def test_a_ranking_needs_the_winner_and_a_baseline(
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
        assert sum(found.counts.values()) == sum(f.task == found.task for f in paper.numbers())


def test_a_partial_task_says_so(tmp_path: Path) -> None:
    for model in ("stpnr", "lstm"):
        for seed in range(2):
            write_result(tmp_path, "maze", model, seed, reach=0.25)
    found = verdict(collect(tmp_path), "maze")
    assert found.is_partial
    assert found.headline.startswith("So far: ")
    assert "0 of 12 runs complete" in found.completeness
    assert "25% of the paper's length" in found.completeness
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
def test_parts_of_a_length_are_never_rounded_up(part: float, text: str) -> None:
    assert percent(part) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [((4.26,), "4.3"), ((0.0049,), "0.005"), ((0.0,), "0.0"), ((0.06,), "0.1")],
)
def test_a_small_figure_is_not_written_as_zero(values, text):
    assert number_text(Estimate(values), 1) == text


def test_the_maze_names_its_reference_points(tmp_path: Path) -> None:
    (line,) = verdict(collect(tmp_path), "maze").numbers
    assert "reward: random policy 5.5, agent that keeps account of where it may be 17" in line
    assert line.endswith(", oracle that knows the reward cell 270.4")
    assert verdict(collect(tmp_path), "art").numbers == ()
