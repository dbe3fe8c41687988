"""The page as a file: self-contained, escaped, readable in light and dark."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_result
from test_style import contrast

from stpn.report.grid import Grid, collect
from stpn.report.page import render
from stpn.report.plots import plots
from stpn.report.style import DARK_PAGE, LIGHT_PAGE
from stpn.report.tables import tables
from stpn.report.verdicts import verdicts


def page_of(grid: Grid, networks: list[dict[str, Any]] | None = None) -> str:
    return render(grid, verdicts(grid), tables(grid), plots(grid), networks or [], ["GRU: x"])


def data_of(page: str) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S
    )
    assert found is not None
    return json.loads(found[1])


def test_the_page_needs_nothing_but_itself(full_grid: Grid) -> None:
    page = page_of(full_grid)
    addresses = set(re.findall(r"(?:https?:)?//[a-z][^\s\"'<>`]*", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"<(?:link|script|img|iframe)[^>]+(?:src|href)=\"(?!data:)", page)
    assert "default-src 'none'" in page
    assert not re.search(r"\{\{\w+\}\}", page)


def test_it_opens_with_the_verdicts(full_grid: Grid) -> None:
    page = page_of(full_grid)
    places = [page.index(f'<section id="{name}"') for name in
              ("verdicts", "tables", "figures", "synapses", "runs")]  # fmt: skip
    assert places == sorted(places)
    for verdict in verdicts(full_grid):
        assert f'id="verdict-{verdict.task}"' in page


def test_it_stays_light(full_grid: Grid) -> None:
    assert len(page_of(full_grid)) < 500_000


def test_its_data_are_those_of_the_figures(full_grid: Grid) -> None:
    data = data_of(page_of(full_grid))
    assert [figure["number"] for figure in data["figures"]] == [1, 2, 3, 4]
    for figure, plot in zip(data["figures"], plots(full_grid), strict=True):
        for panel, expected in zip(figure["panels"], plot.panels, strict=True):
            for curve, original in zip(panel["curves"], expected.curves, strict=True):
                assert curve["x"] == pytest.approx(original.x, rel=1e-4)
                assert curve["y"] == pytest.approx(original.y, rel=1e-4)


def test_every_figure_names_its_runs(full_grid: Grid) -> None:
    page = page_of(full_grid)
    for plot in plots(full_grid):
        for run in plot.runs:
            assert f"<li><code>{run}</code></li>" in page


def test_all_runs_are_listed_with_their_length(tmp_path: Path) -> None:
    write_result(tmp_path, "maze", "lstm", 2, reach=0.5, finished=False)
    page = page_of(collect(tmp_path))
    assert "25,000 iterations, 50% of the paper&#39;s length, unfinished" in page
    assert "<code>maze/lstm/seed2.json</code>" in page


def test_an_empty_directory_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = page_of(collect(tmp_path))
    assert page.count("Not run yet") >= 8
    assert "98.55 ± 2.76" in page
    assert "stpn train art" in page
    assert "No run was found" in page


def test_problems_stand_at_the_top(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0)
    (tmp_path / "art/stpnr/seed1.json").write_text("{")
    page = page_of(collect(tmp_path))
    assert "1 problem with the run directory" in page
    assert page.index("seed1.json") < page.index('<section id="tables"')


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "x</script><script>alert(1)</script>{{ data }}{% raw %}"
    config, summary = {"env": hostile}, {"protocol": 0}
    path = write_result(tmp_path / "a<i>b", "art", "stpnr", 0, config=config, summary=summary)
    path.write_text(path.read_text().replace('"art"', '"gym"'))
    write_result(tmp_path / "a<i>b", "art", "lstm", 0)
    page = page_of(collect(tmp_path))
    assert "<script>alert" not in page
    assert "a<i>b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{ data }}{% raw %}" in page
    assert data_of(page)["figures"]


def stylesheet() -> str:
    return resources.files("stpn.report").joinpath("assets/page.css").read_text(encoding="utf-8")


COLOURS = dict(re.findall(r"--([\w-]+): light-dark\(([^)]*)\)", stylesheet()))


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("text", "page"), ("text", "card"), ("soft", "page"), ("soft", "card"), ("accent", "page"),
        ("text", "tip"), ("soft", "better-back"), ("soft", "same-back"), ("soft", "worse-back"),
        ("soft", "idle-back"), ("better", "better-back"), ("same", "same-back"),
        ("worse", "worse-back"), ("idle", "idle-back"), ("better", "card"), ("same", "card"),
        ("worse", "card"), ("text", "worse-back"),
    ],
)  # fmt: skip
def test_text_stands_out_from_its_ground(text: str, back: str, scheme: int) -> None:
    one, other = (COLOURS[name].split(", ")[scheme] for name in (text, back))
    assert contrast(one, other) >= 4.5


def test_models_are_drawn_on_the_page_that_their_colours_were_chosen_for() -> None:
    assert COLOURS["page"] == f"{LIGHT_PAGE}, {DARK_PAGE}"
