"""Grids of synthetic runs, built once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import write_grid

from stpn.report.grid import Grid, collect


@pytest.fixture(scope="session")
def full_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real run directories, trained for a moment: <root>/<task>/<model>/seed0."""
    from stpn.experiments import default_config
    from stpn.training import session

    root = tmp_path_factory.mktemp("runs")
    short: dict[str, Any] = {"epochs": 1, "train_size": 64, "validation_size": 8, "test_size": 8}
    for model, settings in {
        "stpnr": {},
        "ustpnf": {},
        "stpnl": {"num_layers": 2, "hidden_size": 3},
        "lstm": {},
        "modplast": {},
        "gru": {},
    }.items():
        session.start(default_config("art", model, **short, **settings), root)
    long: dict[str, Any] = {"iterations": 1, "length": 30, "eval_sequences": 1}
    session.start(default_config("familiarity-infinite-r3", "stpnf", **long), root)
    return root


@pytest.fixture(scope="session")
def full_grid(full_results: Path) -> Grid:
    return collect(full_results)
