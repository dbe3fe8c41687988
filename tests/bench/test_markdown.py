"""The numbers of speed in docs/speed.md are those of docs/bench.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stpn.bench import engine, markdown
from stpn.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_measured_figures() -> None:
    result = json.loads((ROOT / "docs/bench.json").read_text())
    page = (ROOT / "docs/speed.md").read_text()
    assert markdown.filled(page, result) == page


def test_every_case_has_a_row() -> None:
    result = json.loads((ROOT / "docs/bench.json").read_text())
    rows = markdown.table(result).splitlines()[2:]
    assert [row["case"] for row in result["cases"]] == engine.names()
    assert len(rows) == len(engine.names())


def test_a_file_without_marks_is_refused() -> None:
    with pytest.raises(ConfigError, match="lacks <!-- speed -->"):
        markdown.filled("# Nothing here\n", {"cases": []})
