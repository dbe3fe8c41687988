"""Controls in the report: does normalisation alone explain the gain, and does what the public code
does otherwise explain a number of the paper?

A control is a core with other options (`stpn.cores.variants`). It stands beside our plain model,
the paper's number of that model and our STPN, compared by the rule of `stpn.report.comparison`.
"""

from __future__ import annotations

from dataclasses import replace

from stpn import cores, experiments, paper
from stpn.report.comparison import Outcome, between, comparable, decimals
from stpn.report.grid import QUANTITIES, Grid, Group, Quantity
from stpn.report.style import TASK_ORDER, model_style, task_style
from stpn.report.tables import Cell, Table, cell_of, record_of
from stpn.report.verdicts import Verdict, named, number_text

WORDS = {"higher": "higher", "lower": "lower", "same": "the same", "inconclusive": "inconclusive"}
COLUMNS = (
    "Proficiency", "plain model", "paper, plain", "against plain", "against the STPN",
    "Power", "plain model", "paper, plain", "against plain",
)  # fmt: skip
CAPTION = (
    "Models with one thing changed: *normalised weights* have rows of norm 1, as the paper trained "
    "its baselines for a control; the others do what the public code does where it is not what "
    "the paper says, and are judged against the paper's number of the plain model."
)


def table(grid: Grid) -> Table | None:
    """A row a control, task by task; None: no control was run."""
    rows, records, answers = [], [], []
    for task in TASK_ORDER:
        controls = [grid.group(task, model) for model in grid.controls(task)]
        if not controls:
            continue
        stpn = grid.group(task, experiments.get(task).models[0])
        for group in controls:
            heading = f"{task_style(task).short} · {model_style(group.model).name}"
            rows.append((heading, tuple(_cells(grid, group, stpn))))
            records += [record_of("controls", group, q, q, _theirs(group, q)) for q in QUANTITIES]
        normalised = [g for g in controls if g.model.endswith("-normalized")]
        if normalised:
            answers.append(_answer(grid, normalised, stpn))
    if not rows:
        return None
    caption = " ".join([CAPTION, *answers])
    found = tuple(rows), tuple(records)
    return Table("controls", "Controls", caption, COLUMNS, *found, compares=False)


def _cells(grid: Grid, group: Group, stpn: Group) -> list[Cell]:
    plain = grid.group(group.task, cores.base(group.model))
    cells = []
    for quantity in QUANTITIES:
        theirs = _theirs(group, quantity)
        judged = theirs if group.model.endswith("-public") else None
        cells.append(replace(cell_of(group, quantity, judged), paper=""))
        cells.append(replace(cell_of(plain, quantity, theirs), paper=""))
        places = decimals(group.task, quantity)
        number = theirs and f"{theirs.mean:.{places}f} ± {theirs.std:.{places}f}"
        cells.append(_text(number or "–"))
        cells.append(_text(_against(group, plain, quantity)))
        if quantity == "proficiency":
            same = plain.model == stpn.model
            cells.append(Cell() if same else _text(_against(group, stpn, quantity)))
    return cells


def _text(text: str) -> Cell:
    return Cell(text, verdict=Verdict.UNPAIRED)


def _theirs(group: Group, quantity: Quantity) -> paper.Number | None:
    """The paper's number of the plain model."""
    metric = "power" if quantity == "power" else experiments.get(group.task).metric
    return paper.number(group.task, cores.base(group.model), metric)


def _outcome(a: Group, b: Group, quantity: Quantity) -> Outcome | None:
    """None: one of them has no runs, or they are not comparable."""
    if not (a.used and b.used and comparable([a, b])):
        return None
    return between(a, b, quantity)


def _against(a: Group, b: Group, quantity: Quantity) -> str:
    outcome = _outcome(a, b, quantity)
    return "not compared" if outcome is None else WORDS[outcome]


def _answer(grid: Grid, controls: list[Group], stpn: Group) -> str:
    """Whether normalised weights alone bring baselines to the STPN."""
    below, reached, undecided = [], [], []
    for group in controls:
        plain = grid.group(group.task, cores.base(group.model))
        outcome, before = (_outcome(g, stpn, "proficiency") for g in (group, plain))
        if outcome == "lower":
            below.append(plain.model)
        elif outcome in ("same", "higher") and before == "lower":
            reached.append(plain.model)
        elif outcome not in ("same", "higher"):
            undecided.append(plain.model)
    task = task_style(stpn.task).short
    if not below and not reached:
        return f"{task}: whether normalisation alone explains the gain cannot be told yet."
    estimate = stpn.estimate("proficiency")
    assert estimate is not None  # or nothing would have been compared
    text = number_text(estimate, decimals(stpn.task, "proficiency"))
    own = named((stpn.model,), {stpn.model: text})
    parts = []
    if reached:
        parts.append(f"with it as good as {own}: {named(tuple(reached))}")
    if below:
        parts.append(f"still below {own}: {named(tuple(below))}")
    if undecided:
        parts.append(f"open: {named(tuple(undecided))}")
    verdict = "explains the gain in part" if reached else "does not explain the gain"
    return f"**{task}: normalisation alone {verdict}**: {'; '.join(parts)}."
