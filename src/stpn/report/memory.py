"""The memory suite in the report: who needs how much state, power and time to remember what."""

from __future__ import annotations

import numpy as np

from stpn import experiments
from stpn.report.grid import Grid, Group
from stpn.report.plots import Cloud, Panel, Plot
from stpn.report.style import model_style
from stpn.report.tables import Cell, Table, group_notes
from stpn.report.verdicts import Verdict

SUITE = experiments.SUITES["memory-suite"]
SIZES = {"state_size": "numbers in the state", "core_parameters": "parameters of the core"}
CAPTION = (
    "One point a task, outlined: the mean of the tasks that all of these cores have run. "
    "Proficiency is accuracy, or explained variance where numbers are remembered."
)


def table(grid: Grid) -> Table | None:
    """A row a core: sizes, proficiency on each task, and what it cost; None: nothing was run."""
    models, tasks = _run(grid)
    if not models:
        return None
    rows = []
    for model in models:
        groups = [grid.group(task, model) for task in tasks]
        cells = [_cell(_mean(groups, name), 0) for name in SIZES]
        cells += [_cell(_mean([g], "proficiency"), 1, group_notes(g)) for g in groups]
        cells += [_cell(_mean(groups, name), 1) for name in ("power", "seconds")]
        rows.append((model_style(model).name, tuple(cells)))
    titles = (experiments.get(task).title for task in tasks)
    columns = ("state", "parameters", *titles, "power", "seconds")
    caption = (
        "Proficiency in percent. Sizes, power and seconds of training are means over the tasks "
        f"that the core has run. {len(tasks)} of {len(SUITE.tasks)} tasks have runs."
    )
    return Table("memory", "Memory suite", caption, columns, tuple(rows), (), compares=False)


def plot(grid: Grid) -> Plot | None:
    """Proficiency against the size of the state and against parameters; None: nothing was run."""
    models, tasks = _run(grid)
    if not models:
        return None
    groups = {(t, m): grid.group(t, m) for t in tasks for m in models}
    common = [t for t in tasks if all(_ended(groups[t, m]) for m in models)]
    panels = []
    for name, label in SIZES.items():
        clouds = []
        for model in models:
            own = [groups[t, model] for t in tasks]
            x, y = _points(own, name)
            shared = _points([groups[t, model] for t in common], name)
            means = [values[:0] if not len(values) else values.mean(keepdims=True)
                     for values in shared]  # fmt: skip
            clouds.append(Cloud(model, model_style(model).name, x, y, *means))
        title = f"against {'state' if name == 'state_size' else 'parameters'}"
        panels.append(Panel("memory-suite", title, label, "proficiency (%)", clouds=tuple(clouds)))
    runs = tuple(grid.name(run) for group in groups.values() for run in group.used)
    waiting = tuple(experiments.get(t).title for t in SUITE.tasks if t not in tasks)
    return Plot(8, "memory", "Memory suite", CAPTION, tuple(panels), (), waiting, runs, columns=2)


def _run(grid: Grid) -> tuple[list[str], list[str]]:
    """Models and tasks of the suite that have finished runs, in its order."""
    ended = {(t, m) for t in SUITE.tasks for m in SUITE.models if _ended(grid.group(t, m))}
    models = [m for m in SUITE.models if any((t, m) in ended for t in SUITE.tasks)]
    tasks = [t for t in SUITE.tasks if any((t, m) in ended for m in SUITE.models)]
    return models, tasks


def _ended(group: Group) -> bool:
    return bool(_values(group, "proficiency"))


def _values(group: Group, name: str) -> list[float]:
    ended = [run.summary for run in group.used if run.summary.finished]
    found = [getattr(summary, name, summary.extras.get(name)) for summary in ended]
    return [float(value) for value in found if isinstance(value, int | float)]


def _mean(groups: list[Group], name: str) -> float | None:
    values = [value for group in groups for value in _values(group, name)]
    return sum(values) / len(values) if values else None


def _cell(value: float | None, places: int, notes: tuple[str, ...] = ()) -> Cell:
    return Cell() if value is None else Cell(f"{value:,.{places}f}", "", Verdict.UNPAIRED, notes)


def _points(groups: list[Group], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and proficiency, one point a task that was run."""
    pairs = [(_mean([group], name), _mean([group], "proficiency")) for group in groups]
    known = [pair for pair in pairs if None not in pair]
    x, y = zip(*known, strict=True) if known else ((), ())
    return np.array(x, dtype=float), np.array(y, dtype=float)
