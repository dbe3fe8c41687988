"""One rule for every comparison, of a number with the paper's and of one model with another.

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

from collections.abc import Iterable
from typing import Literal

from stpn import experiments, paper
from stpn.report.grid import COMPARABLE_REACH, Group, Quantity
from stpn.report.statistics import Spread, welch
from stpn.report.style import POWER_DECIMALS, task_style

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


def measured(group: Group, quantity: Quantity) -> tuple[Spread, ...]:
    """What is compared: the number of the last networks, of agents also their late mean reward."""
    late = group.late if quantity == "proficiency" else None
    return tuple(e.spread for e in (group.estimate(quantity), late) if e is not None)


def agreed(outcomes: Iterable[Outcome]) -> Outcome:
    different = set(outcomes)
    return different.pop() if len(different) == 1 else "inconclusive"


def rounding(task: str, quantity: Quantity) -> float:
    """Half of the last digit: what a reader could not tell apart is no difference."""
    return 0.5 * 10.0 ** -decimals(task, quantity)


def of_the_paper(number: paper.Number) -> Spread:
    return Spread(number.mean, number.std, experiments.get(number.task).seeds)


def comparable(groups: Iterable[Group]) -> bool:
    """Whether models went far enough, equally far, and with more than one seed in all."""
    groups = list(groups)
    reaches = [min(group.reach, 1.0) for group in groups]
    far = min(reaches) >= max(COMPARABLE_REACH * max(reaches), LEAST_REACH)
    return far and any(len(group.used) > 1 for group in groups)


def between(a: Group, b: Group, quantity: Quantity) -> Outcome:
    """One model of a task against another."""
    pairs = zip(measured(a, quantity), measured(b, quantity), strict=False)
    negligible = rounding(a.task, quantity)
    return agreed(compare(x, y, negligible=negligible, widest=WIDEST_TIE) for x, y in pairs)
