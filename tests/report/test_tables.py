"""Every table of the paper, from one structure, in three formats."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from synthetic import write_grid, write_result

from stpn import experiments, paper
from stpn.report.grid import Grid, collect
from stpn.report.tables import Table, tables


def by_name(grid: Grid) -> dict[str, Table]:
    return {table.name: table for table in tables(grid)}


def records(table: Table) -> dict[tuple[str, str, str], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(table.csv()))
    return {(row["task"], row["model"], row["metric"]): row for row in rows}


def test_every_number_of_the_paper_stands_beside_ours(full_grid: Grid) -> None:
    found = by_name(full_grid)
    for figure in paper.numbers():
        row = records(found[figure.table])[figure.task, figure.model, figure.metric]
        assert float(row["paper_mean"]) == figure.mean
        assert float(row["paper_std"]) == figure.std
        places = 2 if "accuracy" in figure.metric else 1
        printed = f"{figure.mean:.{places}f} ± {figure.std:.{places}f}"
        assert printed in found[figure.table].markdown()
        assert printed in found[figure.table].html()


def test_figures_are_those_of_the_runs(full_grid: Grid) -> None:
    row = records(by_name(full_grid)["proficiency"])["art", "modplast", "test_accuracy"]
    values = [run.summary.proficiency for run in full_grid.group("art", "modplast").runs]
    assert float(row["mean"]) == pytest.approx(np.mean(values), rel=1e-5)
    assert float(row["std"]) == pytest.approx(np.std(values, ddof=1), rel=1e-5)
    assert row["seeds"] == row["seeds_in_paper"] == "5"
    assert [float(v) for v in row["values"].split()] == pytest.approx(values, rel=1e-5)
    printed = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert printed in by_name(full_grid)["proficiency"].markdown()


def test_familiarity_is_also_shown_at_its_best(full_grid: Grid) -> None:
    row = records(by_name(full_grid)["familiarity-best"])[
        "familiarity-infinite-r3", "lstm", "accuracy"
    ]
    runs = full_grid.group("familiarity-infinite-r3", "lstm").runs
    best = [max(run.curve["proficiency"]) for run in runs]
    assert [float(v) for v in row["values"].split()] == pytest.approx(best, rel=1e-5)
    assert float(row["paper_mean"]) == 78.52
    last = records(by_name(full_grid)["familiarity"])["familiarity-infinite-r3", "lstm", "accuracy"]
    assert last["values"] != row["values"]


def test_a_model_in_two_tables_is_judged_against_each(full_grid: Grid) -> None:
    """ART's STPNr stands in the paper twice, with different figures."""
    found = by_name(full_grid)
    key = ("art", "stpnr", "power")
    main, ablation = records(found["efficiency"])[key], records(found["ablation"])[key]
    assert main["mean"] == ablation["mean"]
    assert (main["paper_mean"], ablation["paper_mean"]) == ("10.9", "3.4")
    assert (main["verdict"], ablation["verdict"]) == ("inconclusive", "worse")


def test_partial_grids_are_shown_as_partial(tmp_path: Path) -> None:
    for seed in range(3):
        write_result(tmp_path, "art", "stpnr", seed)
    write_result(tmp_path, "art", "stpnr", 3, reach=0.2, finished=False)
    write_result(tmp_path, "maze", "stpnr", 0, reach=0.31, finished=False)
    table = by_name(collect(tmp_path))["proficiency"]
    for text in (table.markdown(), table.html().replace("&#39;", "'")):
        assert "3 of 5 seeds" in text
        assert "1 more, on the way, left out" in text
        assert "1 of 3 seeds" in text
        assert "† 31% of the paper's length" in text
        assert "unfinished" in text
    assert table.markdown().count("not run yet") == 13  # 15 figures in the table, two of them run


def test_settings_that_differ_are_marked(tmp_path: Path) -> None:
    for model in ("lstm", "rnn"):
        write_result(tmp_path, "art", model, 0, config={"batch_size": 64})
    write_result(tmp_path, "art", "modplast", 0, config={"lr": 0.5})
    write_result(tmp_path, "art", "stpnr", 0)
    table = by_name(collect(tmp_path))["efficiency"]
    assert table.footnotes == ["batch_size 64 instead of 128", "lr 0.5 instead of 0.001"]
    for text in (table.markdown(), table.html()):
        assert text.count("batch_size") == 1  # said once, under the table
        assert text.count("‡1") == 3  # two cells and the footnote
        assert text.count("‡2") == 2


def test_a_model_that_the_paper_did_not_try_gets_a_row_once(tmp_path: Path) -> None:
    write_grid(tmp_path, tasks=["art"], seeds=1)
    write_result(tmp_path, "art", "gru", 0, proficiency=12.34, power=43.2)
    found = by_name(collect(tmp_path))
    homes = [name for name, table in found.items() if "GRU" in table.markdown()]
    assert homes == ["proficiency", "efficiency"]
    assert "12.34" in found["proficiency"].markdown()
    assert records(found["proficiency"])["art", "gru", "test_accuracy"]["verdict"] == "unpaired"


def test_quartiles_where_the_paper_uses_them(full_grid: Grid) -> None:
    values = [run.summary.proficiency for run in full_grid.group("pong", "lstm").runs]
    low, high = np.quantile(values, [0.25, 0.75])
    text = by_name(full_grid)["proficiency"].markdown()
    assert f"quartiles {low:.1f} to {high:.1f}" in text
    assert text.count("quartiles") == 2  # Pong's two models, nobody else


def test_reinforcement_learning_has_robust_statistics(full_grid: Grid) -> None:
    table = by_name(full_grid)["reinforcement"]
    groups = {(task, model) for task, model, _ in records(table)}
    expected = {
        (task, model)
        for task in ("maze", "maze-ablation", "pong", "pendulum")
        for model in experiments.get(task).models
    }
    assert groups == expected
    row = records(table)["pong", "stpnr", "reward"]
    assert float(row["iqm_low"]) <= float(row["iqm"]) <= float(row["iqm_high"])
    printed = f"{float(row['iqm']):.1f} [{float(row['iqm_low']):.1f}, {float(row['iqm_high']):.1f}]"
    assert printed in table.markdown()


def test_tasks_outside_the_paper_have_a_table(tmp_path: Path) -> None:
    for name, reward in (("CartPole-v1", 321.5), ("Acrobot-v1", -80.0)):
        config, summary = {"env": name}, {"protocol": 0}
        path = write_result(
            tmp_path / name, "art", "stpnr", 0, proficiency=reward, config=config, summary=summary
        )
        path.write_text(path.read_text().replace('"art"', '"gym"'))
    grid = collect(tmp_path)
    assert not grid.problems
    text = by_name(grid)["other"].markdown()
    assert re.search(r"CartPole-v1 · STPNr \| \*\*321\.50\*\*<br>1 seed ", text)
    assert re.search(r"Acrobot-v1 · STPNr \| \*\*-80\.00\*\*", text)


def test_an_empty_grid_still_shows_the_paper(tmp_path: Path) -> None:
    for table in tables(collect(tmp_path)):
        assert "not run yet" in table.html()
    assert "98.55 ± 2.76" in by_name(collect(tmp_path))["proficiency"].markdown()


def test_markdown_rows_are_of_equal_width(full_grid: Grid) -> None:
    for table in tables(full_grid):
        rows = [line for line in table.markdown().splitlines() if line.startswith("|")]
        widths = {len(re.split(r"(?<!\\)\|", row)) for row in rows}
        assert len(widths) == 1


class Counter(HTMLParser):
    """Checks that elements are closed in order, and counts cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[int] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.cells.append(0)
        if tag in ("td", "th"):
            self.cells[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed(full_grid: Grid) -> None:
    for table in tables(full_grid):
        counter = Counter()
        counter.feed(table.html())
        assert not counter.open
        assert set(counter.cells) == {1 + len(table.columns)}


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    path = write_result(
        tmp_path, "art", "stpnr", 0, config={"env": "x<b>|x"}, summary={"protocol": 0}
    )
    path.write_text(path.read_text().replace('"art"', '"gym"'))
    table = by_name(collect(tmp_path))["other"]
    assert "<b>|x" not in table.html()
    assert "&lt;b&gt;|x" in table.html()
    assert r"&lt;b&gt;\|x" in table.markdown()
    assert "<b>" not in table.markdown()
