"""Runs sorted into the grid: partial, short, doubled, damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from synthetic import write_result

from stpn.errors import RunError
from stpn.report.grid import collect, columns, power_per_step
from stpn.runs import Run
from stpn.summary import RunSummary


def test_complete_runs_count_and_others_wait(tmp_path: Path) -> None:
    for seed in range(3):
        write_result(tmp_path, "art", "stpnr", seed, proficiency=90.0 + seed)
    write_result(tmp_path, "art", "stpnr", 3, reach=0.5, finished=False, proficiency=10.0)
    group = collect(tmp_path).group("art", "stpnr")
    assert [run.seed for run in group.used] == [0, 1, 2]
    assert group.left_out == 1
    assert group.seeds_wanted == 5
    assert not group.is_short
    assert group.reach == 1
    estimate = group.estimate("proficiency")
    assert estimate is not None
    assert estimate.mean == 91.0


def test_without_a_complete_run_the_longest_count(tmp_path: Path) -> None:
    for seed, reach in enumerate([0.5, 0.48, 0.1]):
        write_result(tmp_path, "maze", "lstm", seed, reach=reach)
    group = collect(tmp_path).group("maze", "lstm")
    assert [run.seed for run in group.used] == [0, 1]
    assert group.is_short
    assert math.isclose(group.reach, 0.48)
    assert group.left_out == 1


def test_a_run_as_long_as_the_papers_but_unfinished_is_not_complete(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "lstm", 0, finished=False)
    assert collect(tmp_path).group("art", "lstm").is_short


def test_run_directories_and_results_are_read_alike(tmp_path: Path) -> None:
    exported = json.loads(write_result(tmp_path / "a", "art", "rnn", 0).read_text())
    run = Run.create(tmp_path / "b" / "art" / "rnn" / "seed0", exported["config"])
    names = list(exported["curve"])
    for row in zip(*exported["curve"].values(), strict=True):
        run.append(dict(zip(names, row, strict=True)))
    run.write_summary(RunSummary.from_dict(exported["summary"]))
    from_file, from_directory = (collect(tmp_path / name).group("art", "rnn") for name in "ab")
    assert from_file.estimate("power") == from_directory.estimate("power")
    for quantity in ("proficiency", "power"):
        np.testing.assert_array_equal(
            columns(from_file.runs[0], "step", quantity)[1],
            columns(from_directory.runs[0], "step", quantity)[1],
        )


def test_of_two_runs_of_the_same_seed_the_complete_one_counts(tmp_path: Path) -> None:
    write_result(tmp_path / "old", "art", "gru", 0, reach=0.3)
    write_result(tmp_path / "new", "art", "gru", 0, proficiency=55.0)
    grid = collect(tmp_path)
    assert [r.summary.proficiency for r in grid.group("art", "gru").runs] == [55.0]
    (problem,) = grid.problems
    assert "same task, model and seed" in problem
    assert "old" in problem


def test_settings_that_differ_from_the_paper_are_named(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0, config={"lr": 0.01, "hidden_size": 12, "threads": 2})
    write_result(tmp_path, "art", "lstm", 0, config={"lr": 0.001})
    grid = collect(tmp_path)
    assert grid.group("art", "stpnr").deviations == (
        "lr 0.01 instead of 0.001",
        "hidden_size 12 instead of 11",
    )
    assert grid.group("art", "lstm").deviations == ()


def test_models_outside_the_paper_have_no_settings_to_differ_from(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "gru", 0, config={"lr": 0.5})
    group = collect(tmp_path).group("art", "gru")
    assert group.seeds_wanted is None
    assert group.deviations == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "does not hold an object"),
        (b"{}", "not the configuration of a run"),
        (b'{"config": {"task": "art"}, "curve": {}, "summary": {}}', "not the configuration"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50 + b"1" + b"}" * 50, "nested more than 20 levels deep"),
        (b'{"config": {"task": "art", "model": "stpnr", "seed": 1e999}}', "1e999 is not a finite"),
        (b'{"config": {"task": "art", "model": "stpnr", "seed": 1.5}}', "not the configuration"),
        (
            b'{"config": {"task": "art", "model": "stpnr", "seed": 1}, "curve": []}',
            "lacks the curve",
        ),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_read(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    write_result(tmp_path, "art", "stpnr", 0)
    damaged = tmp_path / "art" / "stpnr" / "seed1.json"
    damaged.write_bytes(content)
    grid = collect(tmp_path)
    assert len(grid.group("art", "stpnr").runs) == 1
    (problem,) = grid.problems
    assert str(damaged) in problem
    assert reason in problem


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        ({"done": None}, "'done' must be a whole number"),
        ({"done": 10**400}, "'done' must be a whole number"),
        ({"protocol": "long"}, "'paper_length' must be a whole number"),
        ({"protocol": -5}, "a length in it is negative"),
        ({"proficiency": math.nan}, "NaN is not a finite number"),
        ({"power": "much"}, "'power' must be a number"),
        ({"power_per_step": 3.0}, "'power_per_step' must be a list"),
        ({"paper": {"power": [1.0]}}, "'paper' must hold a mean and a deviation"),
        ({"model": "lstm"}, "of another run"),
    ],
)
def test_a_summary_that_makes_no_sense_is_left_out(
    tmp_path: Path, summary: dict[str, object], reason: str
) -> None:
    write_result(tmp_path, "art", "stpnr", 0)
    write_result(tmp_path, "art", "stpnr", 1, summary=summary)
    grid = collect(tmp_path)
    assert [run.seed for run in grid.group("art", "stpnr").runs] == [0]
    (problem,) = grid.problems
    assert reason in problem
    assert "export its run again" in problem


def test_a_run_that_has_just_started_is_mentioned(tmp_path: Path) -> None:
    Run.create(tmp_path / "art/stpnr/seed0", {"task": "art", "model": "stpnr", "seed": 0})
    grid = collect(tmp_path)
    assert not grid.groups
    (problem,) = grid.problems
    assert "not measured anything yet" in problem


def test_rows_with_gaps_are_skipped(tmp_path: Path) -> None:
    path = write_result(tmp_path, "art", "stpnr", 0, rows=4)
    content = json.loads(path.read_text())
    content["curve"]["proficiency"][1] = None
    path.write_text(json.dumps(content))
    (run,) = collect(tmp_path).group("art", "stpnr").runs
    steps, values = columns(run, "step", "proficiency")
    assert len(steps) == len(values) == 3


def test_power_of_a_long_sequence_stands_in_the_middle_of_its_stretches(tmp_path: Path) -> None:
    measured = {"power_per_step": [1.0, 2.0, 3.0], "power_stretch": 5}
    write_result(tmp_path, "art", "stpnr", 0, summary=measured)
    (run,) = collect(tmp_path).group("art", "stpnr").runs
    steps, power = power_per_step(run)
    assert steps.tolist() == [3.0, 8.0, 13.0]
    assert power.tolist() == [1.0, 2.0, 3.0]


def test_an_empty_directory_is_an_empty_grid(tmp_path: Path) -> None:
    grid = collect(tmp_path)
    assert not grid.groups
    assert not grid.problems


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        collect(tmp_path / "nowhere")


def test_runs_of_unequal_length_outside_the_paper_are_not_averaged(tmp_path: Path) -> None:
    for seed, (done, reward) in enumerate([(2_000, 20.0), (40_000, 300.0), (40_000, 340.0)]):
        config, summary = {"env": "CartPole-v1"}, {"protocol": 0, "done": done}
        path = write_result(
            tmp_path, "art", "stpnr", seed, proficiency=reward, config=config, summary=summary
        )
        path.write_text(path.read_text().replace('"art"', '"gym"'))
    group = collect(tmp_path).group("CartPole-v1", "stpnr")
    assert [run.seed for run in group.used] == [1, 2]
    assert group.left_out == 1
    estimate = group.estimate("proficiency")
    assert estimate is not None
    assert estimate.mean == 320.0
