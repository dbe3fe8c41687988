"""The arithmetic of the grid, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stpn import experiments
from stpn.scale import costs
from stpn.scale.costs import Cost, span, table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("hours", "cores", "expected"),
    [
        ([1, 1, 1, 1], 2, 2),
        ([3, 1, 1, 1], 2, 3),
        ([4, 3, 3, 2], 2, 6),
        ([5], 64, 5),
    ],
)
def test_runs_fill_the_cores(hours, cores, expected):
    assert span(hours, cores) == expected


def test_a_table_counts_every_seed():
    two = [
        Cost("art", "stpnr", 5, unit_seconds=36, units=100, state_bytes=1, checkpoint_bytes=1),
        Cost("pong", "lstm", 1, unit_seconds=0.36, units=10**6, state_bytes=1, checkpoint_bytes=1),
    ]
    lines = table(two).splitlines()
    assert lines[2] == "| art | 5 | 5.0 | 1.0 h | 1.0 h | 1.0 h | 1.0 h |"
    assert lines[4] == "| **all** | 6 | 105.0 | 4.2 days | 4.2 days | 4.2 days | 4.2 days |"
    assert lines[5].startswith("| all but pong | 5 | 5.0 |")


def test_a_measurement_is_of_the_right_size(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "STRETCH_SECONDS", 0.01)
    monkeypatch.setattr(costs, "STRETCHES", 1)
    cost = costs._measure("art", "stpnr")
    assert cost.state_bytes == 4 * (11 + 11 * 48)
    assert cost.units == 200
    assert 0.05 < cost.unit_seconds < 500
    file = tmp_path / "costs.json"
    costs.write(file, [cost])
    costs.write(file, [Cost(**{**vars(cost), "unit_seconds": 10**6})])
    assert costs.read(file) == [cost]  # the slower one is not believed


def test_the_page_shows_what_was_measured():
    measured = costs.read(DOCS / "scaling.json")
    grid = {(task.name, model) for task in experiments.TASKS.values() for model in task.models}
    assert {(cost.task, cost.model) for cost in measured} == grid
    page = (DOCS / "scaling.md").read_text()
    assert costs.table(measured) in page
    assert costs.bytes_table(measured) in page
