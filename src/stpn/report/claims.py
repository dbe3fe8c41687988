"""What holds of the paper: its claims one by one, with what was measured for and against each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stpn import experiments, paper
from stpn.report.comparison import between, comparable, measured
from stpn.report.grid import Grid, Group, Quantity
from stpn.report.style import TASK_ORDER, model_rank, model_style, task_style

if TYPE_CHECKING:
    from stpn.report.synapses import Rates

# (task, model that the claim is about, the one that it is compared with)
Pair = tuple[str, str, str]

_KINDS = ("For", "Against", "Tied", "Open", "No comparison")


@dataclass(frozen=True)
class PaperClaim:
    """One claim of the paper and the evidence of our runs, a line each."""

    title: str
    statement: str
    evidence: tuple[str, ...]


def claims(grid: Grid, rates: Rates | None = None) -> list[PaperClaim]:
    """`rates`: lambda and gamma of a trained STPNr on associative retrieval, if there is one."""
    tasks = [task for task in TASK_ORDER if _models(task, "proficiency")]
    main = [(task, *_against_baselines(task)) for task in tasks]
    baselines = [(task, ours, other) for task, ours, others in main for other in others]
    return [
        PaperClaim(
            "Proficiency",
            "The STPN reaches a higher accuracy or reward than every baseline.",
            _evidence(grid, baselines, "proficiency", more=True),
        ),
        PaperClaim(
            "Efficiency",
            "It does so at a lower power than every baseline.",
            _evidence(grid, baselines, "power", more=False),
        ),
        PaperClaim(
            "Stability",
            "Its seeds differ less than those of the baselines.",
            _spreads(grid, main),
        ),
        PaperClaim(
            "Rates of each synapse",
            "A lambda and a gamma for each synapse do better than one for the layer.",
            _evidence(grid, _pairs(("stpnr", "ustpnr"), ("stpnf", "ustpnf")), "proficiency"),
        ),
        PaperClaim(
            "Recurrence",
            "Synapses between the neurons do better than those from the input alone.",
            _evidence(grid, _pairs(("stpnr", "stpnf"), ("ustpnr", "ustpnf")), "proficiency"),
        ),
        PaperClaim(
            "Learning to forget",
            "How fast a synapse forgets is worth learning, and differs from synapse to synapse.",
            _forgetting(rates),
        ),
    ]


def _models(task: str, table: str) -> list[str]:
    found = {row.model for row in paper.numbers() if (row.task, row.table) == (task, table)}
    return sorted(found, key=model_rank)


def _against_baselines(task: str) -> tuple[str, list[str]]:
    """The STPN of a task's main comparison, and those that it is compared with."""
    ours = experiments.get(task).models[0]
    return ours, [model for model in _models(task, "proficiency") if model != ours]


def _pairs(*models: tuple[str, str]) -> list[Pair]:
    """These models on every task of the paper that has both."""
    return [
        (task, a, b)
        for task in TASK_ORDER
        for a, b in models
        if {a, b} <= set(experiments.get(task).models)
    ]


def _evidence(
    grid: Grid, pairs: Iterable[Pair], quantity: Quantity, *, more: bool = True
) -> tuple[str, ...]:
    """Which pairs speak for the claim and which do not, by task."""
    found: dict[str, list[Pair]] = {kind: [] for kind in _KINDS}
    for task, ours, other in pairs:
        kind = _outcome(grid.group(task, ours), grid.group(task, other), quantity, more=more)
        found[kind].append((task, ours, other))
    return tuple(f"{kind}: {_listed(which)}." for kind, which in found.items() if which)


def _outcome(ours: Group, other: Group, quantity: Quantity, *, more: bool) -> str:
    if not measured(ours, quantity) or not measured(other, quantity):
        return "No comparison"
    if not comparable((ours, other)):
        return "No comparison"
    outcome = between(ours, other, quantity)
    if outcome in ("higher", "lower"):
        return "For" if (outcome == "higher") == more else "Against"
    return "Tied" if outcome == "same" else "Open"


def _listed(pairs: Iterable[Pair]) -> str:
    """ART (STPNr vs. LSTM, RNN); Maze (...)."""
    tasks: dict[str, dict[str, list[str]]] = {}
    for task, ours, other in pairs:
        tasks.setdefault(task, {}).setdefault(ours, []).append(model_style(other).name)
    return "; ".join(
        f"{task_style(task).short} ("
        + ", ".join(f"{model_style(m).name} vs. {', '.join(names)}" for m, names in models.items())
        + ")"
        for task, models in tasks.items()
    )


def _spreads(grid: Grid, tasks: Iterable[tuple[str, str, list[str]]]) -> tuple[str, ...]:
    """Standard deviations over seeds, which so few seeds tell no more than roughly."""
    lines = []
    for task, ours, others in tasks:
        known = {}
        for model in (ours, *others):
            estimate = grid.group(task, model).estimate("proficiency")
            if estimate is not None and estimate.std is not None:
                known[model] = estimate.std
        if ours in known and len(known) > 1:
            places = task_style(task).decimals
            parts = (f"{model_style(m).name} {std:.{places}f}" for m, std in known.items())
            lines.append(f"{task_style(task).short}, deviation over seeds: {', '.join(parts)}.")
    return tuple(lines) or ("No task has several seeds of the STPN and of a baseline yet.",)


def _forgetting(rates: Rates | None) -> tuple[str, ...]:
    if rates is None:
        return ("There is no trained STPNr on associative retrieval to look at.",)
    values = rates.lambda_.ravel()
    low, middle, high = np.quantile(values, [0.0, 0.5, 1.0])
    beyond, below = (values > 1).mean(), (values < 0).mean()
    return (
        f"A trained STPNr on associative retrieval has lambdas from {low:.2f} to {high:.2f} with a "
        f"median of {middle:.2f}; they start between 0 and 1, and {beyond:.0%} have gone above 1, "
        f"{below:.0%} below 0.",
        "What it is worth is the claim on rates of each synapse, above.",
    )
