"""What figures 1 to 4 show, as plain arrays. `figures` draws them for paper, the page on screen."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stpn import experiments, paper
from stpn.report.grid import Grid, Group, columns, power_per_step
from stpn.report.statistics import Array
from stpn.report.style import model_rank, model_style, task_style
from stpn.report.verdicts import percent
from stpn.results import RunResult, thin

CURVE_POINTS = 200
POINTS_PER_RUN = 40
LOG_RATIO = 20.0  # a power axis that spans more than this is logarithmic

MAIN_TASKS = ("art", "maze", "pong", "pendulum")
ABLATION_TASKS = (
    "art",
    "maze-ablation",
    "familiarity-dataset-r3",
    "familiarity-infinite-r3",
    "familiarity-infinite-r6",
)
ABLATION_MODELS = ("stpnr", "stpnf", "ustpnr", "ustpnf", "hebbff", "lstm")


@dataclass(frozen=True)
class Curve:
    """Centre and spread over seeds; NaN in the spread where a single seed remains."""

    model: str
    label: str
    x: Array
    y: Array
    low: Array
    high: Array
    solid_until: float
    """Last x that every seed reached; beyond, the curve is the mean of those that went on."""


@dataclass(frozen=True)
class Cloud:
    """One point per checkpoint of every seed, in the order of training within each seed."""

    model: str
    label: str
    x: Array
    y: Array
    final_x: Array
    final_y: Array


@dataclass(frozen=True)
class Reference:
    """What the paper reports at the end of training: mean and deviation."""

    model: str
    y: float
    y_std: float
    x: float | None = None
    x_std: float | None = None


@dataclass(frozen=True)
class Panel:
    task: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...] = ()
    clouds: tuple[Cloud, ...] = ()
    references: tuple[Reference, ...] = ()
    log_y: bool = False
    mark: float | None = None
    """An x to be marked by a line."""

    @property
    def models(self) -> set[str]:
        return {curve.model for curve in self.curves} | {cloud.model for cloud in self.clouds}


@dataclass(frozen=True)
class Plot:
    """One figure: its panels, the words under it, and the runs that it is made of."""

    number: int
    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    incomplete: tuple[str, ...]  # panels with fewer seeds or shorter runs than the paper's
    not_run: tuple[str, ...]  # titles of tasks that would have a panel
    runs: tuple[str, ...]
    columns: int | None = None
    """Panels beside each other; None: as many as fit."""

    @property
    def stem(self) -> str:
        """Name of its files."""
        return f"figure{self.number}-{self.name}"

    @property
    def models(self) -> list[str]:
        return sorted({model for panel in self.panels for model in panel.models}, key=model_rank)

    @property
    def digest(self) -> str:
        """Of all that is drawn: tells whether a picture on disk still shows it."""
        parts = [
            f"{values.size} {values.round(3).tolist()}"
            for panel in self.panels
            for drawn in (*panel.curves, *panel.clouds)
            for values in vars(drawn).values()
            if isinstance(values, np.ndarray)
        ]
        parts += [f"{reference}" for panel in self.panels for reference in panel.references]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    @property
    def full_caption(self) -> str:
        parts = [self.caption]
        if self.incomplete:
            parts.append(f"Incomplete: {'; '.join(self.incomplete)}.")
        if self.not_run:
            parts.append(f"Not run yet: {', '.join(self.not_run)}.")
        return " ".join(parts)


def plots(grid: Grid) -> list[Plot]:
    """Figures 1 to 4 of the paper, from what has been run."""
    dotted = "dotted beyond the end of the shortest seed"
    spread = (
        f"Mean and standard deviation over seeds (Pong: median and quartiles); {dotted}. Rewards "
        "are running means over a tenth of the measurements."
    )
    paper_mark = "Diamonds: the paper's final numbers, at the end of its training."
    return [
        _plot(
            grid, 1, "proficiency", "Proficiency while training", f"{spread} {paper_mark}",
            [(task, _main_groups(grid, task)) for task in MAIN_TASKS], _training_panel,
        ),
        _plot(
            grid, 2, "power", "Power at each time step",
            "Power of trained models at each time step of a sequence or episode. Mean and "
            f"standard deviation over seeds; {dotted}. Lower is better.",
            [(task, _main_groups(grid, task)) for task in MAIN_TASKS], _power_panel,
        ),
        _plot(
            grid, 3, "power-proficiency", "Power against proficiency",
            "One point per checkpoint during training, all seeds in one colour; outlined: the "
            f"final networks. {paper_mark} Better is right and down.",
            [(task, _main_groups(grid, task)) for task in MAIN_TASKS], _front_panel,
        ),
        _plot(
            grid, 4, "ablation", "Per-synapse and uniform plasticity while training",
            f"{spread} {paper_mark} The LSTM of the maze is the one of the main experiment.",
            [(task, _ablation_groups(grid, task)) for task in ABLATION_TASKS], _ablation_panel,
        ),
    ]  # fmt: skip


def _plot(
    grid: Grid,
    number: int,
    name: str,
    title: str,
    caption: str,
    rows: list[tuple[str, list[Group]]],
    build: Callable[[str, list[Group]], Panel],
) -> Plot:
    built = [(task, groups, build(task, groups)) for task, groups in rows]
    shown = [(groups, panel) for _, groups, panel in built if panel.models]
    drawn = [group for groups, panel in shown for group in groups if group.model in panel.models]
    return Plot(
        number,
        name,
        title,
        caption,
        tuple(panel for _, panel in shown),
        tuple(filter(None, (_shortfall(panel, groups) for groups, panel in shown))),
        tuple(panel.title for _, _, panel in built if not panel.models),
        tuple(dict.fromkeys(grid.name(run) for group in drawn for run in group.used)),
    )


def _shortfall(panel: Panel, groups: list[Group]) -> str:
    """What the runs of a panel lack of the paper's, in words; empty if nothing."""
    drawn = [g for g in groups if g.model in panel.models and g.seeds_wanted is not None]
    lacks = []
    short = [group.reach for group in drawn if group.is_short]
    if short:
        low, high = percent(min(short)), percent(max(short))
        lacks.append(f"{low if low == high else f'{low} to {high}'} of the paper's length")
    few = [len(g.used) for g in drawn if len(g.used) < (g.seeds_wanted or 0)]
    if few:
        counts = f"{min(few)}" if min(few) == max(few) else f"{min(few)} to {max(few)}"
        who = "" if len(few) == len(drawn) else f" for {len(few)} of {len(drawn)} models"
        lacks.append(f"{counts} of {drawn[0].seeds_wanted} seeds{who}")
    return f"{panel.title} ({', '.join(lacks)})" if lacks else ""


def _main_groups(grid: Grid, task: str) -> list[Group]:
    """The models of the paper's main comparison, and those that the paper did not try."""
    ablated = {f.model for f in paper.numbers() if f.task == task and f.table == "ablation"}
    main = {f.model for f in paper.numbers() if f.task == task and f.table == "proficiency"}
    return [grid.group(task, model) for model in grid.models(task) if model not in ablated - main]


def _ablation_groups(grid: Grid, task: str) -> list[Group]:
    groups = [grid.group(task, model) for model in ABLATION_MODELS]
    if task == "maze-ablation" and not groups[-1].runs and any(g.runs for g in groups):
        groups[-1] = grid.group("maze", "lstm")
    return [group for group in groups if group.runs]


def _ablation_panel(task: str, groups: list[Group]) -> Panel:
    return _training_panel(task, groups, first="ablation")


def _training_panel(task: str, groups: list[Group], *, first: str = "proficiency") -> Panel:
    """`first`: the paper's table that is asked first; two have other numbers for ART's STPNr."""
    style = task_style(task)
    curves = []
    for group in groups:
        series = [columns(run, "step", "proficiency") for run in group.used]
        if style.reinforcement:
            series = [(steps, _running_mean(values)) for steps, values in series]
        curve = _over_seeds(group, series, quantiles=style.quantiles, possible=style.possible)
        if curve is not None:
            curves.append(curve)
    references = []
    for curve in curves:
        asked = (task, curve.model, _metric(task))
        theirs = paper.number(*asked, table=first) or paper.number(*asked)
        if theirs is not None:
            references.append(Reference(curve.model, theirs.mean, theirs.std))
    return Panel(
        task, style.short, _training_label(task, groups), style.proficiency, tuple(curves), (),
        tuple(references),
    )  # fmt: skip


def _training_label(task: str, groups: list[Group]) -> str:
    """What training counts, and where the paper's ended if ours do before."""
    unit = experiments.TASKS[task].unit
    label = "environment step" if unit == "step" else unit
    if not any(group.is_short for group in groups):
        return label
    return f"{label} (paper: {short_number(experiments.TASKS[task].length)})"


def short_number(value: float) -> str:
    """50k, 1.5M: what an axis has room for."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _running_mean(values: Array) -> Array:
    """Over the last tenth of the measurements, or as many as there are yet."""
    window = max(len(values) // 10, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _power_panel(task: str, groups: list[Group]) -> Panel:
    curves = []
    for group in groups:
        curve = _over_seeds(group, [power_per_step(run) for run in group.used])
        if curve is not None:
            curves.append(curve)
    style, log = task_style(task), _wide([curve.y for curve in curves])
    return Panel(task, style.short, style.time, _power_label(log), tuple(curves), log_y=log)


def _front_panel(task: str, groups: list[Group]) -> Panel:
    clouds, references = [], []
    for group in groups:
        points = [_checkpoints(run) for run in group.used]
        ends = [
            (run.summary.proficiency, run.summary.power)
            for run in group.used
            if run.summary.proficiency is not None and run.summary.power is not None
        ]
        if not ends and not any(len(p) for p in points):
            continue
        xy = np.concatenate([*points, np.empty((0, 2))])
        final = np.array(ends, dtype=np.float64).reshape(-1, 2)
        clouds.append(
            Cloud(
                group.model, model_style(group.model).name, xy[:, 0], xy[:, 1],
                final[:, 0], final[:, 1],
            )
        )  # fmt: skip
        skill = paper.number(task, group.model, _metric(task))
        power = paper.number(task, group.model, "power")
        if skill is not None and power is not None:
            references.append(Reference(group.model, power.mean, power.std, skill.mean, skill.std))
    style = task_style(task)
    spans = [np.concatenate([cloud.y, cloud.final_y]) for cloud in clouds]
    log = _wide(spans)
    return Panel(
        task, style.short, style.proficiency, _power_label(log), (), tuple(clouds),
        tuple(references), log_y=log,
    )  # fmt: skip


def _power_label(log: bool) -> str:
    return "power (log scale)" if log else "power"


def _checkpoints(run: RunResult) -> Array:
    """(n, 2): proficiency and power, thinned evenly over the training."""
    skill, power = columns(run, "proficiency", "power")
    kept = thin(len(skill), POINTS_PER_RUN)
    return np.stack([skill[kept], power[kept]], axis=1) if len(skill) else np.empty((0, 2))


def _over_seeds(
    group: Group,
    series: Sequence[tuple[Array, Array]],
    *,
    quantiles: bool = False,
    possible: tuple[float | None, float | None] = (0, None),
) -> Curve | None:
    """Centre and spread on the union of all steps, each seed within its own reach.

    The spread is cut off at what is `possible`; a power is never negative.
    """
    series = [(x, y) for x, y in series if x.size]
    if not series:
        return None
    steps = np.unique(np.concatenate([x for x, _ in series]))
    steps = steps[thin(len(steps), CURVE_POINTS)]
    values = np.full((len(series), len(steps)), np.nan)  # (seeds, steps)
    for row, (x, y) in zip(values, series, strict=True):
        inside = (steps >= x[0]) & (steps <= x[-1])
        row[inside] = np.interp(steps[inside], x, y)
    present = np.isfinite(values).sum(axis=0)
    steps, values, present = steps[present > 0], values[:, present > 0], present[present > 0]
    if quantiles:
        low, centre, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)
    else:
        centre = np.nanmean(values, axis=0)
        squares = np.nansum((values - centre) ** 2, axis=0)
        deviation = np.sqrt(squares / np.maximum(present - 1, 1))
        low, high = (np.clip(centre + sign * deviation, *possible) for sign in (-1, 1))
    low, high = (np.where(present > 1, bound, np.nan) for bound in (low, high))
    return Curve(
        group.model, model_style(group.model).name, steps, centre, low, high,
        float(min(x[-1] for x, _ in series)),
    )  # fmt: skip


def _wide(arrays: Sequence[Array]) -> bool:
    values = np.concatenate([*arrays, np.empty(0)])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() / values.min() > LOG_RATIO)


def _metric(task: str) -> str:
    return experiments.TASKS[task].metric
