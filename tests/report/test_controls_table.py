"""Controls in the report: beside the plain model and the paper, judged by the same rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_result

from stpn.report import controls
from stpn.report.build import gather as gather_report
from stpn.report.build import markdown
from stpn.report.grid import Grid, collect
from stpn.report.plots import plots
from stpn.report.tables import Table, tables
from stpn.report.verdicts import Verdict

AROUND = (-0.5, 0.0, 0.5)


def write(root: Path, task: str, model: str, proficiency: float, power: float = 40.0) -> None:
    for seed, shift in enumerate(AROUND):
        numbers = {"proficiency": proficiency + shift, "power": power + shift}
        write_result(root, task, model, seed, **numbers)


def built(root: Path) -> Table:
    found = controls.table(collect(root))
    assert found is not None
    return found


def row(found: Table, heading: str) -> list[str]:
    (cells,) = [cells for name, cells in found.rows if name == heading]
    return [cell.ours for cell in cells]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "art", "stpnr", 99.0, 5.0)
    write(tmp_path, "art", "lstm", 48.0, 70.0)
    write(tmp_path, "art", "lstm-normalized", 60.0, 20.0)
    return tmp_path


def test_a_control_stands_beside_its_model_the_paper_and_the_stpn(root: Path) -> None:
    cells = row(built(root), "ART · LSTM, normalised weights")
    assert cells == [
        "60.00 ± 0.50", "48.00 ± 0.50", "47.28 ± 3.16", "higher", "lower",
        "20.0 ± 0.5", "70.0 ± 0.5", "65.6 ± 3.4", "lower",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "answer"),
    [
        (60.0, "alone does not explain the gain**: still below STPNr (99.00 ± 0.50): LSTM."),
        (
            99.0,
            "alone explains the gain in part**: with it as good as STPNr (99.00 ± 0.50)",
        ),
    ],
)
def test_the_question_is_answered(root: Path, reward: float, answer: str) -> None:
    write(root, "art", "lstm-normalized", reward)
    assert answer in built(root).caption


def test_one_seed_answers_nothing_by_itself_and_a_short_run_neither(tmp_path: Path) -> None:
    for model, reward in (("stpnr", 147.0), ("lstm", 158.0), ("lstm-normalized", 90.0)):
        write_result(tmp_path, "maze", model, 0, reach=0.05, proficiency=reward)
    found = built(tmp_path)
    assert row(found, "Maze · LSTM, normalised weights")[3:5] == ["not compared"] * 2
    assert "Maze: whether normalisation alone explains the gain cannot be told" in found.caption
    assert found.rows[0][1][0].verdict is Verdict.SHORT
    assert "1 of 3 seeds" in found.rows[0][1][0].notes


def test_what_the_public_code_does_is_judged_against_the_paper(root: Path) -> None:
    write(root, "art", "fastweights", 99.5)
    write(root, "art", "fastweights-public", 80.8)
    write(root, "art", "stpnr-public", 98.5, 10.9)
    write(root, "art", "stpnf-public", 89.4)  # registered by nobody here
    found = built(root)
    verdicts = {name: cells[0].verdict for name, cells in found.rows}
    assert verdicts["ART · Fast Weights, updated twice a step"] is Verdict.SAME
    assert verdicts["ART · STPNr, new h associated"] is Verdict.SAME
    assert verdicts["ART · stpnf-public"] is Verdict.SAME
    assert verdicts["ART · LSTM, normalised weights"] is Verdict.UNPAIRED
    assert row(found, "ART · STPNr, new h associated")[4] == ""
    assert row(found, "ART · Fast Weights, updated twice a step")[3] == "lower"
    kinds = [record["model"] for record in found.records[::2]]
    assert kinds == ["lstm-normalized", "stpnr-public", "stpnf-public", "fastweights-public"]


def test_controls_are_in_no_other_table_and_no_figure(root: Path) -> None:
    without = [table.markdown() for table in tables(collect(root))]
    assert not any("normalised weights" in text for text in without)
    grid: Grid = collect(root)
    for plot in plots(grid):
        assert not any("normalized" in run for run in plot.runs)
    page = markdown(gather_report(root))
    assert page.count("### Controls") == 1
    assert "| ART · LSTM, normalised weights | **60.00 ± 0.50**" in page


def test_without_controls_there_is_no_table(tmp_path: Path) -> None:
    write(tmp_path, "art", "lstm", 48.0)
    assert controls.table(collect(tmp_path)) is None
