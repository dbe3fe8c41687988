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
        "seconds": 20.0, "update_ms": 5.0, "state_size": SIZES[model], "core_parameters": 4000,
    }  # fmt: skip
    curve = {
        "step": [1000, 2000, 4000], "proficiency": [10.0, proficiency, proficiency],
        "power": [3.0] * 3, "loss": [0.1] * 3,
    }  # fmt: skip
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
    assert "2 of 15 tasks" in found.caption
    assert all("memory" not in table.name for table in tables(grid))


def test_the_plot_has_a_point_a_task_and_the_mean_of_common_tasks(root: Path) -> None:
    plot = memory.plot(collect(root))
    lstm, deltanet = plot.panels[0].clouds
    assert (deltanet.x.tolist(), deltanet.y.tolist()) == ([572, 572], [90, 70])
    assert (deltanet.final_x.tolist(), deltanet.final_y.tolist()) == ([572], [90])
    assert lstm.final_y.tolist() == [40]
    assert len(plot.not_run) == 13


def test_without_runs_there_is_neither(tmp_path: Path) -> None:
    assert memory.table(collect(tmp_path)) is None
    assert memory.plot(collect(tmp_path)) is None


def test_the_page_says_who_remembers_what_and_who_needs_how_much(root: Path) -> None:
    text = memory.page(collect(root))
    assert "3 of 180 runs are done" in text
    assert "| | `retrieval-p3` | `cue-reward` |" in text
    assert "| LSTM | 40.0 | – |" in text
    assert "| DeltaNet | **90.0** | 70.0 |" in text
    able = "DeltaNet 572 | DeltaNet 3.0 | DeltaNet 2,000 | DeltaNet 10 |"
    assert f"| Associative retrieval, 3 pairs | 1 of 2 | {able}" in text
    assert "| Cue-reward association | 0 of 1 | best: DeltaNet 70.0 |" in text
    assert "[RESULTS]" not in text
    assert "## Learning rates" not in text


def test_the_page_shows_learning_rates_and_costs_that_lie_beside_the_results(root: Path) -> None:
    beside = root / "memory-suite"
    beside.mkdir()
    losses = {"lstm": {"0.001": 1.5, "0.01": 1.25}}
    losses["gru"] = {"0.001": 1.5, "0.01": 1.0}
    whole = {"gru": {"0.001": 0.25, "0.01": 0.5}}
    rates = {"task": "retrieval-p3", "iterations": 1500, "losses": losses, "whole": whole}
    (beside / "rates.json").write_text(json.dumps(rates))
    costs = {"retrieval-p3": {"lstm": 120.0, "gla": 60.0}, "cue-reward": {"gla": 240.0}}
    (beside / "costs.json").write_text(json.dumps(costs))
    text = memory.page(collect(root))
    assert "| LSTM | 1.5000 | **1.2500** | – | – |" in text
    assert "| GRU | 1.5000 | 1.0000 | **0.2500** | 0.5000 |" in text
    assert "best of 2 rates on `retrieval-p3`" in text
    assert "3 of 180 runs together take 7 minutes of processor time, about 0.1 hours" in text
    assert "| 0 min | 0 min | 2 min |" in text


def test_rates_of_the_suite_are_those_that_won() -> None:
    path = Path(__file__).parents[2] / "results/memory-suite/rates.json"
    rates = json.loads(path.read_text())
    assert set(rates["losses"]) == set(memory.SUITE.models)
    for model, found in {**rates["losses"], **rates["whole"]}.items():
        best = float(min(found, key=found.get))
        for task in memory.SUITE.tasks:
            assert experiments.default_config(task, model).lr == best, (task, model)
