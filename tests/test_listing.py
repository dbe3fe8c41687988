"""`stpn list`, `show` and `export`: how far runs are, whole paths, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stpn import results
from stpn.cli import main
from stpn.cli._format import counted, share
from stpn.runs import Run

ART = {"task": "art", "model": "stpnr", "seed": 0, "epochs": 3}
GYM = {"task": "gym", "model": "stpnr", "seed": 0, "env": "CartPole-v1", "steps": 2000}


def make(path: Path, config: dict[str, object], *steps: int, finished: bool = False) -> Run:
    run = Run.create(path, config)
    for step in steps:
        run.append({"step": step, "proficiency": 10.0 * step, "power": 5.0, "seconds": 1.0})
    if finished:
        run.write_summary(replace(results.result_of(run).summary, finished=True))
    return run


def listed(capsys: pytest.CaptureFixture[str], root: Path) -> list[str]:
    assert main(["list", "--runs", str(root)]) == 0
    return capsys.readouterr().out.splitlines()


def test_done_is_told_of_what_was_asked_and_of_the_papers_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "a", ART, 1, 2, 3, finished=True)
    make(tmp_path / "b", GYM, 1500)
    _, art, gym = listed(capsys, tmp_path)
    assert art.split()[1:5] == ["finished", "3/3", "epochs", "1%"]
    assert gym.split()[1:5] == ["new", "1,500/2,000", "steps", "-"]


def test_a_path_is_never_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = tmp_path / "a-directory-with-a-long-name" / "[b]" / ("x" * 60) / "seed0"
    make(path, ART, 1)
    assert any(line.startswith(f"{path} ") for line in listed(capsys, tmp_path))


def test_what_was_saved_counts_where_nothing_was_measured_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stpn.training import checkpoint

    run = make(tmp_path, GYM)
    checkpoint.write(run.checkpoint, {}, done=1024)
    assert "1,024/2,000 steps" in listed(capsys, tmp_path)[1]
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1,024 of 2,000 steps done" in shown
    assert "last row" not in shown


def test_export_names_the_runs_that_another_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, steps in (("a", [1]), ("b", [1, 2, 3]), ("c", [1, 2])):
        make(tmp_path / "runs" / name, ART, *steps, finished=True)
    assert main(["export", str(tmp_path / "runs"), str(tmp_path / "results")]) == 0
    out = capsys.readouterr().out
    assert "1 run written below" in out
    for left_out in "ac":
        used = tmp_path / "runs" / "b"
        assert f"left out: {tmp_path / 'runs' / left_out}, the same task, model and seed as" in out
        assert f"{used}, which went further" in out
    (result,) = results.load_results(tmp_path / "results")
    assert result.summary.done == 3


def test_shipped_networks_are_said_to_be_the_best_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "Trained networks in the package, best seed of each" in capsys.readouterr().out


def test_list_and_show_give_plain_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, ART, 1)
    assert main(["list", "--runs", str(tmp_path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["done"], run["asked"], run["paper_length"]) == (1, 3, 200)
    assert main(["show", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["done"] == 1


def test_numbers_and_their_nouns_agree() -> None:
    assert [counted(n, "run") for n in (0, 1, 1000)] == ["0 runs", "1 run", "1,000 runs"]
    assert [share(part) for part in (0.0, 0.001, 0.5, 0.999, 1.0)] == [
        "0%", "<1%", "50%", "99%", "100%",
    ]  # fmt: skip
