"""Grids of synthetic runs, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_grid

from stpn.report.grid import Grid, collect


@pytest.fixture(scope="session")
def full_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grid(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def full_grid(full_results: Path) -> Grid:
    return collect(full_results)
