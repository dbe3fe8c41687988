"""The paper's tables, ours beside theirs: built once, printed as Markdown, CSV or HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stpn import experiments, paper
from stpn.report import templates
from stpn.report.comparison import decimals, quantity_of
from stpn.report.grid import QUANTITIES, Grid, Group, Quantity
from stpn.report.statistics import LEVEL
from stpn.report.style import TASK_ORDER, model_rank, model_style, task_style
from stpn.report.templates import markdown_text
from stpn.report.verdicts import Verdict, judge, number_text, percent, places_for

TITLES = {
    "proficiency": "Proficiency of trained models",
    "efficiency": "Power of trained models",
    "ablation": "Per-synapse and uniform plasticity",
    "familiarity": "Continual familiarity",
}

CAPTIONS = {
    "proficiency": "Accuracy (%) or reward at inference. Higher is better.",
    "efficiency": "Power of the recurrent layer, mean over time and episodes. Lower is better.",
    "ablation": "Accuracy (%) or reward, and power, of models with equal parameter counts.",
    "familiarity": "Accuracy (%) on vectors that were not trained on. Higher is better.",
}

SIGNS = " · ".join(f"{v.sign} {v.words}" for v in Verdict if v.sign)
LEGEND = (
    f"Ours: mean ± standard deviation over seeds, beside the paper's. {SIGNS}. †: part of the "
    "paper's length that was trained. ‡: settings that differ from the paper's, under the table."
)

FAMILIARITY = tuple(task for task in TASK_ORDER if task.startswith("familiarity"))

RECORD_FIELDS = (
    "table", "task", "model", "metric", "mean", "std", "median", "quartile_25", "quartile_75",
    "iqm", "iqm_low", "iqm_high", "seeds", "seeds_in_paper", "reach", "paper_mean", "paper_std",
    "verdict", "deviations", "values", "late_mean", "late_std",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """What stands at one place of a table."""

    ours: str = ""
    paper: str = ""
    verdict: Verdict | None = None  # None: nothing to compare at this place
    notes: tuple[str, ...] = ()  # seeds, marks and the like
    deviations: tuple[str, ...] = ()  # settings that are not the paper's


@dataclass(frozen=True)
class Table:
    """A table that is ready to print. `records` holds the same numbers as plain rows, for CSV."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]  # headings of the columns after the first
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # heading of the row, cells
    records: tuple[dict[str, Any], ...]
    compares: bool = True  # ours beside the paper's; else our numbers alone

    @property
    def footnotes(self) -> list[str]:
        """Settings that differ from the paper's, each set of them once."""
        cells = (cell for _, row in self.rows for cell in row)
        return list(dict.fromkeys(", ".join(c.deviations) for c in cells if c.deviations))

    def notes(self, cell: Cell) -> list[str]:
        """What stands below the number of a cell."""
        if not cell.deviations:
            return list(cell.notes)
        number = 1 + self.footnotes.index(", ".join(cell.deviations))
        return [*cell.notes, f"‡{number}"]

    def markdown(self) -> str:
        if self.compares:
            head = [part for column in self.columns for part in (markdown_text(column), "paper")]
        else:
            head = list(map(markdown_text, self.columns))
        lines = [_markdown_row(["", *head]), _markdown_row(["---"] * (1 + len(head)))]
        for heading, cells in self.rows:
            parts = [markdown_text(heading)]
            for cell in cells:
                parts.append(_markdown_cell(cell, self.notes(cell)))
                if self.compares:
                    parts.append(cell.paper or "–")
            lines.append(_markdown_row(parts))
        for number, text in enumerate(self.footnotes, 1):
            lines += ["", f"‡{number} {markdown_text(text)}."]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, RECORD_FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()

    def html(self) -> str:
        return templates.render("table.html", table=self)


def tables(grid: Grid) -> list[Table]:
    """Every table of the paper, then the statistics of reinforcement learning, then other runs."""
    built = [_paper_table(grid, name) for name in TITLES]
    built += [_familiarity_best_table(grid), _familiarity_power_table(grid)]
    built += [_reinforcement_table(grid)]
    suites = {task for suite in experiments.SUITES.values() for task in suite.tasks}  # elsewhere
    others = [task for task in grid.tasks if task not in TASK_ORDER and task not in suites]
    return built + ([_other_table(grid, others)] if others else [])


def group_notes(group: Group) -> tuple[str, ...]:
    """What a reader must know about the runs behind a number."""
    notes = [seeds_text(group)]
    if group.is_short:
        notes.append(f"† {percent(group.reach)} of the paper's length")
        if not all(run.summary.finished for run in group.used):
            notes.append("unfinished")
    if group.left_out:
        short = "shorter" if group.experiment is None else "on the way"
        notes.append(f"{group.left_out} more, {short}, left out")
    return tuple(notes)


def seeds_text(group: Group) -> str:
    count, wanted = len(group.used), group.seeds_wanted
    if wanted is None:
        return f"{count} seed" + ("s" if count > 1 else "")
    return f"{count} of {wanted} seeds" if count <= wanted else f"{count} seeds (paper: {wanted})"


def _paper_table(grid: Grid, name: str) -> Table:
    """One table of the paper.

    A model that we ran and the paper did not gets a row in the first table that has the column.
    """
    columns = list(dict.fromkeys((f.task, f.metric) for f in paper.numbers() if f.table == name))
    models = {f.model for f in paper.numbers() if f.table == name}
    for task, metric in columns:
        models |= {m for m in grid.models(task) if _is_extra(name, task, m, metric)}
    rows, records = [], []
    for model in sorted(models, key=model_rank):
        cells = []
        for task, metric in columns:
            theirs = paper.number(task, model, metric, table=name)
            if theirs is None and not _is_extra(name, task, model, metric):
                cells.append(Cell())
                continue
            group, quantity = grid.group(task, model), quantity_of(metric)
            cells.append(cell_of(group, quantity, theirs))
            records.append(record_of(name, group, quantity, metric, theirs))
        rows.append((model_style(model).name, tuple(cells)))
    both = len({metric for _, metric in columns}) > 1
    headings = tuple(
        f"{task_style(task).short}{f', {_metric_word(task, metric)}' if both else ''}"
        for task, metric in columns
    )
    return Table(name, TITLES[name], CAPTIONS[name], headings, tuple(rows), tuple(records))


def _metric_word(task: str, metric: str) -> str:
    return "power" if metric == "power" else task_style(task).proficiency.split(" (")[0]


def _is_extra(table: str, task: str, model: str, metric: str) -> bool:
    """Whether a model outside the paper's experiments on this task is shown in this table."""
    if any((f.task, f.model) == (task, model) for f in paper.numbers()):
        return False
    homes = [f.table for f in paper.numbers() if (f.task, f.metric) == (task, metric)]
    return homes[:1] == [table]


def cell_of(group: Group, quantity: Quantity, theirs: paper.Number | None) -> Cell:
    places = decimals(group.task, quantity)
    beside = "" if theirs is None else f"{theirs.mean:.{places}f} ± {theirs.std:.{places}f}"
    estimate = group.estimate(quantity)
    verdict = judge(group, quantity, theirs)
    if estimate is None:
        in_grid = theirs is not None or group.experiment is not None
        return Cell(paper=beside, verdict=verdict if in_grid else None)
    notes = group_notes(group)
    if quantity == "proficiency" and group.late is not None:
        notes += (f"last fifth of training {number_text(group.late, places)}",)
    if task_style(group.task).quantiles and estimate.count > 1:
        low, high = estimate.quartiles
        notes += (f"quartiles {low:.{places}f} to {high:.{places}f}",)
    return Cell(number_text(estimate, places), beside, verdict, notes, group.deviations)


def _familiarity_best_table(grid: Grid) -> Table:
    """For readers who ask whether the paper's numbers are those of the last network."""
    name, rows, records = "familiarity-best", [], []
    for model in _familiarity_models(grid):
        cells = []
        for task in FAMILIARITY:
            metric = experiments.get(task).metric
            group = grid.group(task, model).at_their_best()
            theirs = paper.number(task, model, metric)
            cells.append(cell_of(group, "proficiency", theirs))
            records.append(record_of(name, group, "proficiency", metric, theirs))
        rows.append((model_style(model).name, tuple(cells)))
    return Table(
        name,
        "Continual familiarity, at its best",
        "The highest accuracy (%) that each seed had while training, on one sequence. All other "
        "tables have the network at the end; the paper does not say which it reports. The maximum "
        "over many measurements is higher than what the network can do: chance lifts it.",
        tuple(task_style(task).short for task in FAMILIARITY),
        tuple(rows),
        tuple(records),
    )


def _familiarity_power_table(grid: Grid) -> Table:
    """Power where the paper measured accuracy alone."""
    name, rows, records = "familiarity-power", [], []
    for model in _familiarity_models(grid):
        groups = [grid.group(task, model) for task in FAMILIARITY]
        rows.append(
            (model_style(model).name, tuple(cell_of(group, "power", None) for group in groups))
        )
        records += [record_of(name, group, "power", "power", None) for group in groups]
    return Table(
        name,
        "Continual familiarity, power",
        "Power of the recurrent layer, which the paper does not report for this task.",
        tuple(task_style(task).short for task in FAMILIARITY),
        tuple(rows),
        tuple(records),
        compares=False,
    )


def _familiarity_models(grid: Grid) -> list[str]:
    known = (m for task in FAMILIARITY for m in (*experiments.get(task).models, *grid.models(task)))
    return sorted(set(known), key=model_rank)


def _reinforcement_table(grid: Grid) -> Table:
    """Statistics that forgive a single bad run, for every task learnt by reinforcement."""
    rows, records = [], []
    for task in TASK_ORDER:
        if not task_style(task).reinforcement:
            continue
        metric = experiments.get(task).metric
        known = list(experiments.get(task).models)
        for model in sorted({*known, *grid.models(task)}, key=model_rank):
            group = grid.group(task, model)
            cells: list[Cell] = []
            for name in (metric, "power"):
                cells += _robust_cells(group, quantity_of(name))
                theirs = paper.number(task, model, name)
                records.append(record_of("reinforcement", group, quantity_of(name), name, theirs))
            rows.append((f"{task_style(task).short} · {model_style(model).name}", tuple(cells)))
    interval = f"IQM [{LEVEL:.0%} interval]"
    return Table(
        "reinforcement",
        "Reinforcement learning, robust statistics",
        "Interquartile mean (IQM) over seeds with bootstrap interval, and median with quartiles; "
        "reward or score of the last network, then its power. One seed has no interval.",
        (f"Reward, {interval}", "Reward, median (quartiles)", f"Power, {interval}",
         "Power, median (quartiles)"),
        tuple(rows),
        tuple(records),
        compares=False,
    )  # fmt: skip


def _robust_cells(group: Group, quantity: Quantity) -> list[Cell]:
    estimate = group.estimate(quantity)
    if estimate is None:
        return [Cell(verdict=Verdict.MISSING), Cell()]
    places = places_for(estimate.interquartile_mean, decimals(group.task, quantity))
    verdict = Verdict.SHORT if group.is_short else Verdict.UNPAIRED
    robust = f"{estimate.interquartile_mean:.{places}f}"
    if estimate.interval is not None:
        robust += f" [{estimate.interval[0]:.{places}f}, {estimate.interval[1]:.{places}f}]"
    middle = f"{estimate.median:.{places}f}"
    if estimate.count > 1:
        middle += f" ({estimate.quartiles[0]:.{places}f} to {estimate.quartiles[1]:.{places}f})"
    first = Cell(robust, verdict=verdict)
    if quantity == "proficiency":
        first = replace(first, notes=group_notes(group), deviations=group.deviations)
    return [first, Cell(middle, verdict=Verdict.UNPAIRED)]


def _other_table(grid: Grid, tasks: Iterable[str]) -> Table:
    rows, records = [], []
    for task in tasks:
        for model in grid.models(task):
            group = grid.group(task, model)
            rows.append(
                (
                    f"{task} · {model_style(model).name}",
                    tuple(cell_of(group, quantity, None) for quantity in QUANTITIES),
                )
            )
            records += [record_of("other", group, q, q, None) for q in QUANTITIES]
    return Table(
        "other", "Other runs", "Tasks that are not in the paper.", ("Proficiency", "Power"),
        tuple(rows), tuple(records), compares=False,
    )  # fmt: skip


def record_of(
    table: str, group: Group, quantity: Quantity, metric: str, theirs: paper.Number | None
) -> dict[str, Any]:
    estimate = group.estimate(quantity)
    record: dict[str, Any] = {
        "table": table,
        "task": group.task,
        "model": group.model,
        "metric": metric,
        "seeds": len(group.used),
        "seeds_in_paper": group.seeds_wanted,
        "reach": f"{group.reach:.4g}",
        "paper_mean": None if theirs is None else theirs.mean,
        "paper_std": None if theirs is None else theirs.std,
        "verdict": judge(group, quantity, theirs).value,
        "deviations": "; ".join(group.deviations),
    }
    if estimate is not None:
        interval = estimate.interval or (None, None)
        numbers = {
            "mean": estimate.mean,
            "std": estimate.std,
            "median": estimate.median,
            "quartile_25": estimate.quartiles[0],
            "quartile_75": estimate.quartiles[1],
            "iqm": estimate.interquartile_mean,
            "iqm_low": interval[0],
            "iqm_high": interval[1],
        }
        if quantity == "proficiency" and group.late is not None:
            numbers |= {"late_mean": group.late.mean, "late_std": group.late.std}
        record |= {name: None if v is None else f"{v:.6g}" for name, v in numbers.items()}
        record["values"] = " ".join(f"{value:.6g}" for value in estimate.values)
    return record


def _markdown_cell(cell: Cell, notes: list[str]) -> str:
    if cell.verdict is None:
        return "–"
    if not cell.ours:
        return f"{cell.verdict.sign} {cell.verdict.words}"
    text = f"{cell.verdict.sign} **{cell.ours}**".strip()
    return text + (f"<br>{markdown_text(', '.join(notes))}" if notes else "")


def _markdown_row(parts: Sequence[str]) -> str:
    return f"| {' | '.join(parts)} |"
