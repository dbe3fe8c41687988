"""The memory suite in the report: who needs how much state, power and time to remember what."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stpn import experiments
from stpn._files import read_file
from stpn.report.grid import Grid, Group, columns
from stpn.report.plots import Cloud, Panel, Plot
from stpn.report.style import model_style
from stpn.report.tables import Cell, Table, group_notes
from stpn.report.templates import asset
from stpn.report.verdicts import Verdict

SUITE = experiments.SUITES["memory-suite"]
REMEMBERS = 90.0  # percent
MOST_BYTES = 1_000_000  # of a file beside the results
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


def page(grid: Grid) -> str:
    """What memory-suite.md says."""
    return asset("memory-suite.md").replace("[RESULTS]", "\n".join(_results(grid)).strip())


def _results(grid: Grid) -> Iterable[str]:
    models, tasks = _run(grid)
    planned = len(SUITE.tasks) * len(SUITE.models)
    done = sum(_ended(grid.group(t, m)) for t in tasks for m in models)
    yield from ("## Who remembers what", "")
    yield f"{done} of {planned} runs are done, one seed each."
    if models:
        yield f"Proficiency in percent; bold from {REMEMBERS:.0f} on, – where nothing was run yet."
        yield ""
        yield from _grid_of(grid, models, tasks)
        yield from ("", "## Who needs how much", "")
        yield (
            f"Of the cores that reach {REMEMBERS:.0f}%: whose state is smallest, whose power "
            "lowest, who needs the fewest updates to get there, and the least processor time for "
            "them (one thread; of the runs that were timed)."
        )
        yield ""
        yield from _needs(grid, tasks)
        yield ""
        yield "![Memory suite](figures/figure8-memory.svg)"
        yield from ("", CAPTION)
    yield from _costs(grid)
    yield from _rates(grid)


def _grid_of(grid: Grid, models: list[str], tasks: list[str]) -> Iterable[str]:
    yield f"| | {' | '.join(f'`{task}`' for task in tasks)} |"
    yield f"|---|{'---|' * len(tasks)}"
    for model in models:
        values = [_mean([grid.group(task, model)], "proficiency") for task in tasks]
        cells = ["–" if v is None else f"{v:.1f}" for v in values]
        bold = [v is not None and v >= REMEMBERS for v in values]
        shown = (f"**{c}**" if b else c for c, b in zip(cells, bold, strict=True))
        yield f"| {model_style(model).name} | {' | '.join(shown)} |"


def _needs(grid: Grid, tasks: list[str]) -> Iterable[str]:
    yield "| task | reach it | smallest state | lowest power | fewest updates | least time (s) |"
    yield "|---|---|---|---|---|---|"
    for task in tasks:
        groups = [g for m in SUITE.models if _ended(g := grid.group(task, m))]
        able = [g for g in groups if (_mean([g], "proficiency") or 0) >= REMEMBERS]
        cells = [f"{len(able)} of {len(groups)}"]
        if able:
            cells.append(_least(able, lambda g: _mean([g], "state_size"), 0))
            cells.append(_least(able, lambda g: _mean([g], "power"), 1))
            cells += [_least(able, _updates, 0), _least(able, _seconds, 0)]
        else:
            best = max(groups, key=lambda g: _mean([g], "proficiency") or 0)
            named = f"best: {model_style(best.model).name} {_mean([best], 'proficiency'):.1f}"
            cells += [named, "", "", ""]
        yield f"| {experiments.get(task).title} | {' | '.join(cells)} |"


def _least(groups: list[Group], of: Callable[[Group], float | None], places: int) -> str:
    known = [(value, model_style(g.model).name) for g in groups if (value := of(g)) is not None]
    if not known:
        return "–"
    value, name = min(known)
    return f"{name} {value:,.{places}f}"


def _updates(group: Group) -> float | None:
    """Until a measurement while training first was high enough."""
    found = []
    for run in group.used:
        steps, measured = columns(run, "step", "proficiency")
        found += steps[measured >= REMEMBERS][:1].tolist()
    return sum(found) / len(found) if found else None


def _seconds(group: Group) -> float | None:
    updates, each = _updates(group), _mean([group], "update_ms")
    return None if updates is None or each is None else 1e-3 * each * updates


def _beside(grid: Grid, name: str) -> dict[str, Any] | None:
    """A file of `examples/memory_suite.py` beside the results."""
    path = grid.root / "memory-suite" / name
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(read_file(path, most=MOST_BYTES))
    return found


def _costs(grid: Grid) -> Iterable[str]:
    costs = _beside(grid, "costs.json")
    if costs is None:
        return
    known = [(t, m) for t in SUITE.tasks for m in SUITE.models if m in costs.get(t, ())]
    minutes = dict.fromkeys(SUITE.models, 0.0)
    for task, model in known:
        minutes[model] += costs[task][model] / 60
    total, planned = sum(minutes.values()), len(SUITE.tasks) * len(SUITE.models)
    runs = "All runs" if len(known) == planned else f"{len(known)} of {planned} runs"
    yield from ("", "## What it costs", "")
    yield (
        f"{runs} together take {total:.0f} minutes of processor time, about {total / 120:.1f} "
        "hours on two quiet cores: reckoned from a few updates and one measurement of each run "
        "(`examples/memory_suite.py costs`). By core:"
    )
    yield ""
    yield f"| {' | '.join(model_style(m).name for m in minutes)} |"
    yield f"|{'---|' * len(minutes)}"
    yield f"| {' | '.join(f'{value:.0f} min' for value in minutes.values())} |"


def _rates(grid: Grid) -> Iterable[str]:
    rates = _beside(grid, "rates.json")
    if rates is None:
        return
    losses, whole = rates["losses"], rates.get("whole", {})
    known = list(dict.fromkeys(rate for row in losses.values() for rate in row))
    later = list(dict.fromkeys(rate for row in whole.values() for rate in row))
    yield from ("", "## Learning rates", "")
    yield (
        f"Adam; each core has its best of {len(known)} rates on `{rates['task']}`, by the loss of "
        f"the last 250 of {rates['iterations']:,} updates (`examples/memory_suite.py rates`), and "
        "keeps it on all tasks. Where the highest won, whole runs decided between it and the next."
    )
    yield ""
    yield f"| | {' | '.join([*known, *(f'{rate}, whole run' for rate in later)])} |"
    yield f"|---|{'---|' * len([*known, *later])}"
    for model in (m for m in SUITE.models if m in losses):
        decided = whole.get(model, losses[model])
        cells = [_loss(losses[model].get(rate), decided) for rate in known]
        cells += [_loss(whole.get(model, {}).get(rate), decided) for rate in later]
        yield f"| {model_style(model).name} | {' | '.join(cells)} |"


def _loss(value: float | None, decided: dict[str, float]) -> str:
    """Bold: the least of those that decided."""
    if value is None:
        return "–"
    return f"**{value:.4f}**" if value == min(decided.values()) else f"{value:.4f}"
