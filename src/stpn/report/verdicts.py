"""What holds: our numbers against the paper's, and the paper's order of models against ours.

The rule of every comparison is in `stpn.report.comparison`. What is shorter than the paper's
training is shown and not judged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from stpn import cores, experiments, paper
from stpn.config import STPN_MODELS
from stpn.report.comparison import (
    NEGLIGIBLE_PART,
    NEGLIGIBLE_POINTS,
    WIDEST_TIE,
    Outcome,
    agreed,
    between,
    comparable,
    compare,
    decimals,
    measured,
    of_the_paper,
    quantity_of,
    rounding,
)
from stpn.report.grid import QUANTITIES, Grid, Group, Quantity
from stpn.report.statistics import Estimate
from stpn.report.style import TASK_ORDER, model_style, task_style


class Verdict(Enum):
    """A number of ours beside the paper's. The value is the word that names it in CSV and CSS."""

    BETTER = "better"
    WORSE = "worse"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
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
    Verdict.WORSE: "▼",
    Verdict.HIGHER: "↑",
    Verdict.LOWER: "↓",
    Verdict.SAME: "≈",
    Verdict.INCONCLUSIVE: "?",
    Verdict.SHORT: "◔",
    Verdict.MISSING: "○",
    Verdict.UNPAIRED: "",
}

_WORDS = {
    Verdict.BETTER: "better than the paper",
    Verdict.WORSE: "worse than the paper",
    Verdict.HIGHER: "baseline higher than in the paper",
    Verdict.LOWER: "baseline lower than in the paper",
    Verdict.SAME: "the same as in the paper",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.SHORT: "shorter than the paper's training, not judged",
    Verdict.MISSING: "not run yet",
    Verdict.UNPAIRED: "no number in the paper",
}


def judge(group: Group, quantity: Quantity, theirs: paper.Number | None) -> Verdict:
    """Our number against the paper's."""
    ours = measured(group, quantity)
    if not ours:
        return Verdict.MISSING
    if group.is_short:
        return Verdict.SHORT
    if theirs is None:
        return Verdict.UNPAIRED
    points = "accuracy" in theirs.metric
    negligible = NEGLIGIBLE_POINTS if points else NEGLIGIBLE_PART * abs(theirs.mean)
    negligible = max(negligible, rounding(group.task, quantity))
    paired = of_the_paper(theirs)
    outcome = agreed(compare(spread, paired, negligible=negligible) for spread in ours)
    if outcome in ("same", "inconclusive") or cores.base(group.model) not in STPN_MODELS:
        return Verdict(outcome)  # of a baseline, more is not better
    good = (outcome == "higher") == (quantity == "proficiency")
    return Verdict.BETTER if good else Verdict.WORSE


class Claim(Enum):
    """Who leads in the paper, against who leads here."""

    HOLDS = "holds"
    TIED = "tied"
    INCONCLUSIVE = "inconclusive"
    DIFFERS = "differs"
    UNTESTED = "untested"


@dataclass(frozen=True)
class Leaders:
    """Who comes first: the best mean, and all that cannot be told from it."""

    best: str
    equal: tuple[str, ...]  # as good as the best, which is among them
    open: tuple[str, ...]  # may be as good: too few or too different seeds


@dataclass(frozen=True)
class Ranking:
    """One column of a table of the paper: who leads there, and here."""

    table: str
    task: str
    quantity: Quantity
    claim: Claim
    there: Leaders
    here: Leaders | None
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
    numbers: tuple[str, ...]  # of the model that the paper is about, beside the paper's
    rankings: tuple[Ranking, ...]
    counts: Counter[Verdict]
    runs_complete: int
    runs_wanted: int
    reach: float  # of the shortest group that has runs, as a part of the paper's length
    is_partial: bool

    @property
    def completeness(self) -> str:
        text = f"{self.runs_complete} of {self.runs_wanted} runs complete"
        if 0 < self.reach < 1:
            text += f"; shortest at {percent(self.reach)} of the paper's length"
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
            (row.table, row.metric) for row in paper.numbers() if row.task == task
        )
    )
    counts = Counter(
        judge(grid.group(task, row.model), quantity_of(row.metric), row)
        for row in paper.numbers()
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
        numbers=_main_numbers(grid.group(task, experiment.models[0])) + _reference_points(task),
        rankings=rankings,
        counts=counts,
        runs_complete=min(complete, wanted),
        runs_wanted=wanted,
        reach=min((g.reach for g in groups if g.runs), default=0.0),
        is_partial=partial,
    )


def _main_numbers(group: Group) -> tuple[str, ...]:
    lines = []
    for quantity in QUANTITIES:
        estimate = group.estimate(quantity)
        if estimate is None:
            continue
        metric = "power" if quantity == "power" else experiments.get(group.task).metric
        theirs = paper.number(group.task, group.model, metric)
        kind = judge(group, quantity, theirs)
        places = decimals(group.task, quantity)
        word = "power" if quantity == "power" else _plain(group.task)
        text = f"{model_style(group.model).name} {word} {number_text(estimate, places)}"
        if quantity == "proficiency" and group.late is not None:
            text += f" (last fifth of training {number_text(group.late, places)})"
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


def number_text(estimate: Estimate, places: int) -> str:
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
    for claim in (Claim.DIFFERS, Claim.INCONCLUSIVE, Claim.TIED, Claim.HOLDS):
        if claim in claims:
            return claim
    return Claim.UNTESTED


def _headline(claims: list[Claim], claim: Claim, partial: bool, *, started: bool) -> str:
    if claim is Claim.UNTESTED:
        return "Nothing to compare yet" if started else "Not run yet"
    tested = [c for c in claims if c is not Claim.UNTESTED]
    counts: Counter[Claim] = Counter(tested)
    same = {Claim.HOLDS: "Same leader as in the paper", Claim.TIED: "The paper's leader is tied"}
    if len(counts) == 1:
        text = {**same, Claim.DIFFERS: "Another leader than in the paper",
                Claim.INCONCLUSIVE: "Who leads cannot be told"}[claim]  # fmt: skip
    else:
        words = {Claim.HOLDS: "same leader as in the paper", Claim.TIED: "tied",
                 Claim.DIFFERS: "another leader", Claim.INCONCLUSIVE: "open"}  # fmt: skip
        parts = [f"{words[c]} in {counts[c]}" for c in words if counts[c]]
        text = f"Of {len(tested)} comparisons: {', '.join(parts)}"
    return f"So far: {text[0].lower()}{text[1:]}" if partial else text


def _leaders(
    quantity: Quantity, means: Mapping[str, float], outcome: Callable[[str, str], Outcome]
) -> Leaders:
    """`outcome(a, b)`: one model against another."""
    sign = 1 if quantity == "proficiency" else -1
    best = max(means, key=lambda model: sign * means[model])
    outcomes = {model: outcome(model, best) for model in means if model != best}
    equal = tuple(model for model, found in outcomes.items() if found == "same")
    undecided = tuple(model for model, found in outcomes.items() if found == "inconclusive")
    return Leaders(best, (best, *equal), undecided)


def _ranking(grid: Grid, table: str, task: str, metric: str) -> Ranking:
    rows = [r for r in paper.numbers() if (r.table, r.task, r.metric) == (table, task, metric)]
    quantity = quantity_of(metric)
    theirs = {row.model: of_the_paper(row) for row in rows}
    negligible = rounding(task, quantity)
    there = _leaders(
        quantity,
        {model: spread.mean for model, spread in theirs.items()},
        lambda a, b: compare(theirs[a], theirs[b], negligible=negligible, widest=WIDEST_TIE),
    )
    groups = {row.model: grid.group(task, row.model) for row in rows}
    ours = {
        model: estimate
        for model, group in groups.items()
        if (estimate := group.estimate(quantity)) is not None
    }
    reaches = [min(groups[model].reach, 1.0) for model in ours]
    claim, here = Claim.UNTESTED, None
    if there.best in ours and len(ours) > 1:
        here = _leaders(
            quantity,
            {model: estimate.mean for model, estimate in ours.items()},
            lambda a, b: between(groups[a], groups[b], quantity),
        )
        if comparable(groups[model] for model in ours):
            claim = _claim(there, here)
    sentence = _sentence(table, task, quantity, claim, there, here, ours, reaches)
    if here is not None and len(ours) < len(rows):
        sentence += f" {len(ours)} of {len(rows)} models run."
    return Ranking(table, task, quantity, claim, there, here, len(ours), len(rows), sentence)


def _claim(there: Leaders, here: Leaders) -> Claim:
    first = {*there.equal, *there.open}  # who may be first in the paper, by its own numbers
    if first.isdisjoint((*here.equal, *here.open)):
        return Claim.DIFFERS
    if first.isdisjoint(here.equal) or not first.issuperset(here.open):
        return Claim.INCONCLUSIVE
    return Claim.HOLDS if first.issuperset(here.equal) else Claim.TIED


def _sentence(
    table: str,
    task: str,
    quantity: Quantity,
    claim: Claim,
    there: Leaders,
    here: Leaders | None,
    ours: dict[str, Estimate],
    reaches: list[float],
) -> str:
    what = "Lowest power" if quantity == "power" else f"Highest {_plain(task)}"
    if table == "ablation" and len({f.table for f in paper.numbers() if f.task == task}) > 1:
        what += " in the ablation"
    perhaps = f", perhaps {named(there.open)}," if there.open else ""
    inside = f"{named(there.equal)}{perhaps} in the paper"
    if here is None:
        missing = "no run yet" if there.best not in ours else "no baseline run yet"
        return f"{what}: {inside}; {missing}."
    places = decimals(task, quantity)

    def valued(models: tuple[str, ...]) -> str:
        return named(models, {m: number_text(ours[m], places) for m in models})

    if claim is Claim.UNTESTED:
        low, high = percent(min(reaches)), percent(max(reaches))
        reasons = [f"at {low if low == high else f'{low} to {high}'} of its length"]
        if all(estimate.count == 1 for estimate in ours.values()):
            reasons.append("one seed each")
        reason = ", ".join(reasons)
        return f"{what}: {inside}; here {valued((here.best,))} so far, {reason}: no comparison."
    here_text = valued(here.equal) + (f", perhaps {valued(here.open)}" if here.open else "")
    if claim is Claim.HOLDS:
        return f"{what}: {here_text}, as in the paper."
    if claim is Claim.TIED:
        return f"{what}: {inside}; here tied: {here_text}."
    if claim is Claim.DIFFERS:
        return f"{what}: {here_text}, not {valued((there.best,))} as in the paper."
    return f"{what}: {inside}; open here: {here_text}."


def named(models: tuple[str, ...], values: dict[str, str] | None = None) -> str:
    """STPNr, or STPNr (98.5) and LSTM (97.0)."""
    texts = [
        model_style(model).name + (f" ({values[model]})" if values else "") for model in models
    ]
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _plain(task: str) -> str:
    return task_style(task).proficiency.split(" (")[0]
