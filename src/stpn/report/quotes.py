"""Numbers that notes quote: no number of a run or of the paper's tables is written by hand.

    {art/lstm}               ours, accuracy or reward: mean ± deviation over seeds
    {art/lstm power}         its power
    {art/lstm each}          of every seed, in their order; {art/lstm power each}
    {art/lstm best}          each seed at its best while training
    {maze/stpnr at 1000}     while training, after so many epochs, iterations or steps
    {paper art/lstm}         the paper's; {paper art/lstm power}
    {ablation art/stpnr}     the paper's in the table of its ablation, where it has two

Numbers look as they do in the tables. Other braces are left alone.
"""

from __future__ import annotations

import re

from stpn import experiments, paper
from stpn.errors import ConfigError, unknown
from stpn.report.comparison import decimals
from stpn.report.grid import Grid, Group, Quantity, columns
from stpn.report.statistics import Estimate
from stpn.report.style import TASK_ORDER
from stpn.report.verdicts import number_text, places_for

_QUOTE = re.compile(
    r"\{(?:(?P<whose>paper|ablation)\s+)?(?P<task>[a-z0-9-]+)/(?P<model>[a-z]+)"
    r"(?P<power>\s+power)?(?:\s+(?P<how>each|best)|\s+at\s+(?P<step>\d+))?\}"
)


def fill(notes: str, grid: Grid) -> str:
    """The notes with every quote in place of what asks for it."""
    return _QUOTE.sub(lambda match: _quote(match, grid), notes)


def _quote(match: re.Match[str], grid: Grid) -> str:
    task, model = match["task"], match["model"]
    if task not in TASK_ORDER:
        raise _mistake(match, unknown("task", task, dict.fromkeys(TASK_ORDER)))
    if model not in experiments.get(task).models:
        models = experiments.get(task).hidden_sizes
        raise _mistake(match, unknown("model", model, models))
    quantity: Quantity = "power" if match["power"] else "proficiency"
    if match["whose"]:
        return _of_the_paper(match, quantity)
    group = grid.group(task, model)
    if match["how"] == "best":
        if quantity == "power":
            raise _mistake(match, "a seed is at its best by its accuracy or reward")
        group = group.at_their_best()
    step = match["step"]
    estimate = _at(group, quantity, int(step)) if step else group.estimate(quantity)
    if estimate is None:
        return "(not run yet)"
    places = decimals(task, quantity)
    text = _listed(estimate, places) if match["how"] == "each" else number_text(estimate, places)
    unfinished = not step and not all(run.summary.finished for run in group.used)
    return f"{text} (unfinished)" if unfinished else text


def _of_the_paper(match: re.Match[str], quantity: Quantity) -> str:
    if match["how"] or match["step"]:
        raise _mistake(match, "the paper has means over seeds, at the end of training")
    metric = "power" if quantity == "power" else experiments.get(match["task"]).metric
    table = "ablation" if match["whose"] == "ablation" else None
    number = paper.number(match["task"], match["model"], metric, table=table)
    if number is None:
        raise _mistake(match, "the paper has no such number")
    return str(number)


def _at(group: Group, quantity: Quantity, step: int) -> Estimate | None:
    """At the last measurement until then, of the runs that got there."""
    values = []
    for run in group.used:
        steps, measured = columns(run, "step", quantity)
        if steps.size and steps[0] <= step <= steps[-1]:
            values.append(float(measured[steps <= step][-1]))
    return Estimate(tuple(values)) if values else None


def _listed(estimate: Estimate, places: int) -> str:
    *others, last = (f"{value:.{places_for(value, places)}f}" for value in estimate.values)
    return f"{', '.join(others)} and {last}" if others else last


def _mistake(match: re.Match[str], reason: str) -> ConfigError:
    return ConfigError(f"the notes ask for {match[0]}: {reason}")
