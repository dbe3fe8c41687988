"""What holds: our figures against the paper's, and the paper's rankings against ours.

Two rules, the same everywhere:

- A figure is within the spread of the paper's when the intervals mean ± standard deviation of the
  two overlap, up to the rounding of the paper's numbers (one seed alone brings no deviation of its
  own); else it is better or worse. Figures of runs that are shorter than the protocol are shown and
  not judged.
- A ranking holds when the model that comes first in the paper comes first here too, or stays within
  the spread of the one that does. Runs are ranked only against others that went equally far.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from stpn import experiments, paper
from stpn.report.grid import COMPARABLE_REACH, QUANTITIES, Grid, Group, Quantity
from stpn.report.statistics import Estimate
from stpn.report.style import POWER_DECIMALS, TASK_ORDER, model_style, task_style


class Verdict(Enum):
    """A figure of ours beside the paper's. The value is the word that names it in CSV and CSS."""

    BETTER = "better"
    WITHIN = "within"
    WORSE = "worse"
    SHORT = "short"
    MISSING = "missing"
    UNPAIRED = "unpaired"

    @property
    def sign(self) -> str:
        return _SIGNS[self]

    @property
    def words(self) -> str:
        return _WORDS[self]


_SIGNS = {
    Verdict.BETTER: "▲",
    Verdict.WITHIN: "≈",
    Verdict.WORSE: "▼",
    Verdict.SHORT: "◔",
    Verdict.MISSING: "○",
    Verdict.UNPAIRED: "",
}

_WORDS = {
    Verdict.BETTER: "better than the paper",
    Verdict.WITHIN: "within the paper's spread",
    Verdict.WORSE: "worse than the paper",
    Verdict.SHORT: "shorter than the protocol, not judged",
    Verdict.MISSING: "not run yet",
    Verdict.UNPAIRED: "no figure in the paper",
}


def quantity_of(metric: str) -> Quantity:
    """Which of a run's two figures the paper's metric is."""
    return "power" if metric == "power" else "proficiency"


def decimals(task: str, quantity: Quantity) -> int:
    return POWER_DECIMALS if quantity == "power" else task_style(task).decimals


def judge(group: Group, quantity: Quantity, theirs: paper.Figure | None) -> Verdict:
    """Our figure against the paper's."""
    ours = group.estimate(quantity)
    if ours is None:
        return Verdict.MISSING
    if group.is_short:
        return Verdict.SHORT
    if theirs is None:
        return Verdict.UNPAIRED
    # half of the paper's last digit: what a reader could not tell apart is no difference
    rounding = 0.5 * 10.0 ** -decimals(group.task, quantity)
    if abs(ours.mean - theirs.mean) <= (ours.std or 0.0) + theirs.std + rounding:
        return Verdict.WITHIN
    higher = ours.mean > theirs.mean
    return Verdict.BETTER if higher == (quantity == "proficiency") else Verdict.WORSE


class Claim(Enum):
    HOLDS = "holds"
    TIED = "tied"
    DIFFERS = "differs"
    UNTESTED = "untested"


@dataclass(frozen=True)
class Ranking:
    """One column of a table of the paper: who comes first there, and here."""

    table: str
    task: str
    quantity: Quantity
    claim: Claim
    first_there: str
    first_here: str | None
    compared: int  # models of the column that have runs
    models: int  # models of the column
    sentence: str


@dataclass(frozen=True)
class TaskVerdict:
    """All that the report has to say about one task of the paper."""

    task: str
    title: str
    headline: str
    claim: Claim
    figures: tuple[str, ...]  # of the model that the paper is about, beside the paper's
    rankings: tuple[Ranking, ...]
    counts: Counter[Verdict]
    runs_complete: int
    runs_wanted: int
    reach: float  # of the shortest group that has runs, as a part of the protocol
    is_partial: bool

    @property
    def completeness(self) -> str:
        text = f"{self.runs_complete} of {self.runs_wanted} runs complete"
        if 0 < self.reach < 1:
            text += f"; shortest at {percent(self.reach)} of the protocol"
        return text


def percent(part: float) -> str:
    """A part in percent that says neither 0% of something nor 100% of something incomplete."""
    if 0 < part < 0.01:
        return "under 1%"
    return f"{min(int(part * 100), 99) if part < 1 else 100}%"


def verdict(grid: Grid, task: str) -> TaskVerdict:
    experiment = experiments.get(task)
    groups = [grid.group(task, model) for model in experiment.models]
    rankings = tuple(
        _ranking(grid, table, task, metric)
        for table, metric in dict.fromkeys(
            (row.table, row.metric) for row in paper.figures() if row.task == task
        )
    )
    counts = Counter(
        judge(grid.group(task, row.model), quantity_of(row.metric), row)
        for row in paper.figures()
        if row.task == task
    )
    complete = sum(len(g.used) for g in groups if not g.is_short)
    wanted = len(groups) * experiment.seeds
    claims = [ranking.claim for ranking in rankings]
    claim = _overall(claims)
    partial = complete < wanted
    return TaskVerdict(
        task=task,
        title=experiment.title,
        headline=_headline(claims, claim, partial, started=any(g.runs for g in groups)),
        claim=claim,
        figures=_main_figures(grid.group(task, experiment.models[0])) + _reference_points(task),
        rankings=rankings,
        counts=counts,
        runs_complete=min(complete, wanted),
        runs_wanted=wanted,
        reach=min((g.reach for g in groups if g.runs), default=0.0),
        is_partial=partial,
    )


def _main_figures(group: Group) -> tuple[str, ...]:
    lines = []
    for quantity in QUANTITIES:
        estimate = group.estimate(quantity)
        if estimate is None:
            continue
        metric = "power" if quantity == "power" else experiments.get(group.task).metric
        theirs = paper.figure(group.task, group.model, metric)
        kind = judge(group, quantity, theirs)
        places = decimals(group.task, quantity)
        word = "power" if quantity == "power" else _plain(group.task)
        text = f"{model_style(group.model).name} {word} {figure_text(estimate, places)}"
        if theirs is not None:
            text += f", paper {theirs.mean:.{places}f} ± {theirs.std:.{places}f}"
        if kind.sign:
            text += f": {kind.sign} {kind.words}"
        lines.append(f"{text} ‡" if group.deviations else text)
    return tuple(lines)


def _reference_points(task: str) -> tuple[str, ...]:
    points = experiments.get(task).task.reference_points()
    named = ", ".join(
        f"{name} {value:.{decimals(task, 'proficiency')}f}" for name, value in points.items()
    )
    return (f"Reference points of the {_plain(task)}: {named}",) if points else ()


def figure_text(estimate: Estimate, places: int) -> str:
    """Mean ± deviation; one seed has no deviation to show."""
    places = places_for(estimate.mean, places)
    spread = "" if estimate.std is None else f" ± {estimate.std:.{places}f}"
    return f"{estimate.mean:.{places}f}{spread}"


def places_for(value: float, places: int) -> int:
    """`places`, or as many as show the first digit of a value that would round to zero."""
    if 0 < abs(value) < 0.5 * 10**-places:
        return math.ceil(-math.log10(abs(value)))
    return places


def verdicts(grid: Grid) -> list[TaskVerdict]:
    """One for each task of the paper, in the paper's order."""
    return [verdict(grid, task) for task in TASK_ORDER]


def _overall(claims: list[Claim]) -> Claim:
    tested = [claim for claim in claims if claim is not Claim.UNTESTED]
    if not tested:
        return Claim.UNTESTED
    if Claim.DIFFERS in tested:
        return Claim.DIFFERS
    return Claim.TIED if Claim.TIED in tested else Claim.HOLDS


def _headline(claims: list[Claim], claim: Claim, partial: bool, *, started: bool) -> str:
    if claim is Claim.UNTESTED:
        return "Nothing to compare yet" if started else "Not run yet"
    tested = [c for c in claims if c is not Claim.UNTESTED]
    good = sum(c is not Claim.DIFFERS for c in tested)
    if good == len(tested):
        tied = ", or tied" if claim is Claim.TIED else ""
        text = f"Same winner as in the paper{tied}"
    elif good:
        text = f"Same winner in {good} of {len(tested)} rankings"
    else:
        text = "Another winner than in the paper"
    return f"So far: {text[0].lower()}{text[1:]}" if partial else text


def _ranking(grid: Grid, table: str, task: str, metric: str) -> Ranking:
    rows = [r for r in paper.figures() if (r.table, r.task, r.metric) == (table, task, metric)]
    quantity = quantity_of(metric)
    sign = 1 if quantity == "proficiency" else -1
    there = max(rows, key=lambda row: sign * row.mean)
    ours = {
        row.model: estimate
        for row in rows
        if (estimate := grid.group(task, row.model).estimate(quantity)) is not None
    }
    reaches = [min(grid.group(task, model).reach, 1.0) for model in ours]
    claim, here = Claim.UNTESTED, None
    if there.model in ours and len(ours) > 1:
        here = max(ours, key=lambda model: sign * ours[model].mean)
        if min(reaches) < COMPARABLE_REACH * max(reaches):
            claim = Claim.UNTESTED
        elif here == there.model:
            claim = Claim.HOLDS
        else:
            claim = Claim.TIED if _overlap(ours[here], ours[there.model]) else Claim.DIFFERS
    return Ranking(
        table, task, quantity, claim, there.model, here, len(ours), len(rows),
        _sentence(table, task, quantity, claim, there.model, here, ours, len(rows), reaches),
    )  # fmt: skip


def _overlap(a: Estimate, b: Estimate) -> bool:
    return abs(a.mean - b.mean) <= (a.std or 0.0) + (b.std or 0.0)


def _sentence(
    table: str,
    task: str,
    quantity: Quantity,
    claim: Claim,
    there: str,
    here: str | None,
    ours: dict[str, Estimate],
    models: int,
    reaches: list[float],
) -> str:
    what = "Lowest power" if quantity == "power" else f"Highest {_plain(task)}"
    if table == "ablation" and len({f.table for f in paper.figures() if f.task == task}) > 1:
        what += " in the ablation"
    name = model_style(there).name
    if here is None:
        missing = "no run yet" if there not in ours else "no rival run yet"
        return f"{what}: {name} in the paper; {missing}."
    places = decimals(task, quantity)
    value = f"{ours[here].mean:.{places_for(ours[here].mean, places)}f}"
    if claim is Claim.UNTESTED:
        text = (
            f"{what}: {name} in the paper; so far {model_style(here).name} ({value}), between runs "
            f"of {percent(min(reaches))} and {percent(max(reaches))} of the protocol: no comparison"
        )
    elif claim is Claim.HOLDS:
        text = f"{what}: {name} ({value}), as in the paper"
    elif claim is Claim.TIED:
        text = (
            f"{what}: {model_style(here).name} ({value}), with {name} "
            f"({ours[there].mean:.{places}f}), the paper's first, within the spread"
        )
    else:
        text = (
            f"{what}: {model_style(here).name} ({value}), not {name} "
            f"({ours[there].mean:.{places}f}) as in the paper"
        )
    return text + (f"; {len(ours)} of {models} models run." if len(ours) < models else ".")


def _plain(task: str) -> str:
    return task_style(task).proficiency.split(" (")[0]
