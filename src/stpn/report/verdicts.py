"""What holds: our numbers against the paper's, and the paper's order of models against ours.

One rule for every comparison, of a number with the paper's and of one model with another:

- The difference of the two means has a confidence interval of 95% (Welch), from both spreads and
  both numbers of seeds. A single seed is taken to spread as much as the other side.
- Different: the interval leaves out zero. A difference from the paper must also be more than one
  point of accuracy, or 2% of a reward or of a power.
- Else the same, if the interval is narrow enough to say so: at most a fifth of the value to each
  side, between models that would share the lead 5%. Wider ones are inconclusive.
- Of agents two rewards count, that of the last network and the mean over the last fifth of the
  measurements while training; where they disagree, it is inconclusive.
- What is shorter than the paper's training is shown and not judged; below a tenth of it models are
  not compared with each other either, nor are those that went unequally far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from stpn import experiments, paper
from stpn.config import STPN_MODELS
from stpn.report.grid import COMPARABLE_REACH, QUANTITIES, Grid, Group, Quantity
from stpn.report.statistics import Estimate, Spread, welch
from stpn.report.style import POWER_DECIMALS, TASK_ORDER, model_style, task_style

NEGLIGIBLE_POINTS = 1.0  # of accuracy
NEGLIGIBLE_PART = 0.02
WIDEST_PART = 0.2
WIDEST_TIE = 0.05
LEAST_REACH = 0.1

RULE = (
    "Compared by the 95% confidence interval of the difference of two means (Welch), from both "
    "spreads and both numbers of seeds: different if it leaves out zero, and from the paper only "
    f"if by more than {NEGLIGIBLE_POINTS:g} point of accuracy or {NEGLIGIBLE_PART:.0%} of a reward "
    "or power; else the same, or inconclusive if the interval is wider than a fifth of the value "
    "to each side. Of agents both rewards must agree, that of the last network and the mean over "
    "the last fifth of the measurements. A model leads only where its lead exceeds the interval; "
    "tied are those within 5%, and a wider interval leaves it open."
)


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

Outcome = Literal["higher", "lower", "same", "inconclusive"]


def compare(a: Spread, b: Spread, *, negligible: float, widest: float = WIDEST_PART) -> Outcome:
    """`a` against `b`, by the rule above; differences up to `negligible` are none."""
    difference, half = welch(a, b)
    if abs(difference) > max(half, negligible):
        return "higher" if difference > 0 else "lower"
    return "same" if half <= widest * max(abs(a.mean), abs(b.mean)) else "inconclusive"


def quantity_of(metric: str) -> Quantity:
    """Which of a run's two numbers the paper's metric is."""
    return "power" if metric == "power" else "proficiency"


def decimals(task: str, quantity: Quantity) -> int:
    return POWER_DECIMALS if quantity == "power" else task_style(task).decimals


def judge(group: Group, quantity: Quantity, theirs: paper.Number | None) -> Verdict:
    """Our number against the paper's."""
    ours = _measured(group, quantity)
    if not ours:
        return Verdict.MISSING
    if group.is_short:
        return Verdict.SHORT
    if theirs is None:
        return Verdict.UNPAIRED
    points = "accuracy" in theirs.metric
    negligible = NEGLIGIBLE_POINTS if points else NEGLIGIBLE_PART * abs(theirs.mean)
    negligible = max(negligible, _rounding(group.task, quantity))
    paired = _of_the_paper(theirs)
    outcome = _agreed(compare(spread, paired, negligible=negligible) for spread in ours)
    if outcome in ("same", "inconclusive") or group.model not in STPN_MODELS:
        return Verdict(outcome)  # of a baseline, more is not better
    good = (outcome == "higher") == (quantity == "proficiency")
    return Verdict.BETTER if good else Verdict.WORSE


def _measured(group: Group, quantity: Quantity) -> tuple[Spread, ...]:
    """What is compared: the number of the last networks, of agents also their late mean reward."""
    late = group.late if quantity == "proficiency" else None
    return tuple(e.spread for e in (group.estimate(quantity), late) if e is not None)


def _agreed(outcomes: Iterable[Outcome]) -> Outcome:
    different = set(outcomes)
    return different.pop() if len(different) == 1 else "inconclusive"


def _rounding(task: str, quantity: Quantity) -> float:
    """Half of the last digit: what a reader could not tell apart is no difference."""
    return 0.5 * 10.0 ** -decimals(task, quantity)


def _of_the_paper(number: paper.Number) -> Spread:
    return Spread(number.mean, number.std, experiments.get(number.task).seeds)


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


def _leaders(task: str, quantity: Quantity, measured: dict[str, tuple[Spread, ...]]) -> Leaders:
    sign = 1 if quantity == "proficiency" else -1
    best = max(measured, key=lambda model: sign * measured[model][0].mean)
    negligible = _rounding(task, quantity)
    outcomes = {
        model: _agreed(
            compare(a, b, negligible=negligible, widest=WIDEST_TIE)
            for a, b in zip(spreads, measured[best], strict=False)
        )
        for model, spreads in measured.items()
        if model != best
    }
    equal = tuple(model for model, outcome in outcomes.items() if outcome == "same")
    undecided = tuple(model for model, outcome in outcomes.items() if outcome == "inconclusive")
    return Leaders(best, (best, *equal), undecided)


def _ranking(grid: Grid, table: str, task: str, metric: str) -> Ranking:
    rows = [r for r in paper.numbers() if (r.table, r.task, r.metric) == (table, task, metric)]
    quantity = quantity_of(metric)
    there = _leaders(task, quantity, {row.model: (_of_the_paper(row),) for row in rows})
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
            task, quantity, {model: _measured(groups[model], quantity) for model in ours}
        )
        far = min(reaches) >= max(COMPARABLE_REACH * max(reaches), LEAST_REACH)
        comparable = far and any(estimate.count > 1 for estimate in ours.values())
        claim = _claim(there, here) if comparable else Claim.UNTESTED
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
    perhaps = f", perhaps {_names(there.open)}," if there.open else ""
    inside = f"{_names(there.equal)}{perhaps} in the paper"
    if here is None:
        missing = "no run yet" if there.best not in ours else "no baseline run yet"
        return f"{what}: {inside}; {missing}."
    places = decimals(task, quantity)

    def valued(models: tuple[str, ...]) -> str:
        return _names(models, {m: number_text(ours[m], places) for m in models})

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


def _names(models: tuple[str, ...], values: dict[str, str] | None = None) -> str:
    """STPNr, or STPNr (98.5) and LSTM (97.0)."""
    texts = [
        model_style(model).name + (f" ({values[model]})" if values else "") for model in models
    ]
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _plain(task: str) -> str:
    return task_style(task).proficiency.split(" (")[0]
