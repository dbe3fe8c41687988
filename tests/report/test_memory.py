"""The memory suite in the report: finished runs of its tasks, and nothing without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stpn import experiments
from stpn.report import memory
from stpn.report.grid import collect
from stpn.report.tables import tables

SIZES = {"lstm": 34, "deltanet": 572}


def write(root: Path, task: str, model: str, proficiency: float, finished: bool = True) -> None:
    config = experiments.default_config(task, model)
    summary = {
        "task": task, "model": model, "seed": 0, "metric": "accuracy", "power": 3.0, "done": 4000,
        "proficiency": proficiency, "paper_length": 0, "unit": "iteration", "finished": finished,
        "seconds": 20.0, "state_size": SIZES[model], "core_parameters": 4000,
    }  # fmt: skip
    curve = {"step": [4000], "proficiency": [proficiency], "power": [3.0], "loss": [0.1]}
    path = root / task / model / "seed0.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"config": config.to_dict(), "curve": curve, "summary": summary}
    path.write_text(json.dumps(content))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "retrieval-p3", "lstm", 40.0)
    write(tmp_path, "retrieval-p3", "deltanet", 90.0)
    write(tmp_path, "cue-reward", "deltanet", 70.0)
    write(tmp_path, "cue-reward", "lstm", 5.0, finished=False)
    return tmp_path


def test_the_table_has_sizes_proficiency_and_costs(root: Path) -> None:
    grid = collect(root)
    found = memory.table(grid)
    rows = {name: [cell.ours for cell in cells] for name, cells in found.rows}
    assert rows["LSTM"] == ["34", "4,000", "40.0", "", "3.0", "20.0"]
    assert rows["DeltaNet"] == ["572", "4,000", "90.0", "70.0", "3.0", "20.0"]
    assert "**90.0**" in found.markdown()
    assert "2 of 13 tasks" in found.caption
    assert all("memory" not in table.name for table in tables(grid))


def test_the_plot_has_a_point_a_task_and_the_mean_of_common_tasks(root: Path) -> None:
    plot = memory.plot(collect(root))
    lstm, deltanet = plot.panels[0].clouds
    assert (deltanet.x.tolist(), deltanet.y.tolist()) == ([572, 572], [90, 70])
    assert (deltanet.final_x.tolist(), deltanet.final_y.tolist()) == ([572], [90])
    assert lstm.final_y.tolist() == [40]
    assert len(plot.not_run) == 11


def test_without_runs_there_is_neither(tmp_path: Path) -> None:
    assert memory.table(collect(tmp_path)) is None
    assert memory.plot(collect(tmp_path)) is None
