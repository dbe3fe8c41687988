"""The paper's own numbers, so that every number of ours can stand beside one of theirs.

>>> number("art", "stpnr", "test_accuracy")
Number(table='proficiency', task='art', model='stpnr', metric='test_accuracy', mean=98.55, std=2.76)
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple


class Number(NamedTuple):
    """One number of one table of the paper: mean and standard deviation over its seeds."""

    table: str  # proficiency | efficiency | ablation | familiarity
    task: str
    model: str
    metric: str  # test_accuracy | accuracy | reward | power
    mean: float
    std: float

    def __str__(self) -> str:
        return spread_text((self.mean, self.std), self.metric)


def spread_text(mean_std: Sequence[float], metric: str) -> str:
    """Mean and deviation with as many decimals as the paper prints: two for accuracies, else one.

    >>> spread_text([4.0, 0.3], "power")
    '4.0 ± 0.3'
    """
    mean, std = mean_std
    places = 2 if "accuracy" in metric else 1
    return f"{mean:.{places}f} ± {std:.{places}f}"


@cache
def numbers() -> tuple[Number, ...]:
    """Every number of the paper, in the order of its tables.

    The maze appears twice in the paper, with other hidden sizes in the ablation; here the second
    is a task of its own, `maze-ablation`.
    """
    text = resources.files("stpn").joinpath("data/paper.csv").read_text(encoding="utf-8")
    rows = []
    for row in csv.DictReader(text.splitlines()):
        ablated_maze = row["table"] == "ablation" and row["task"] == "maze"
        rows.append(
            Number(
                table=row["table"],
                task="maze-ablation" if ablated_maze else row["task"],
                model=row["model"],
                metric=row["metric"],
                mean=float(row["mean"]),
                std=float(row["std"]),
            )
        )
    return tuple(rows)


def number(task: str, model: str, metric: str, *, table: str | None = None) -> Number | None:
    """The paper's number, or None where it has none.

    ART's STPNr stands in two tables with different numbers: without `table` the first one counts
    (the main tables come before the ablation).
    """
    for row in numbers():
        if table in (None, row.table) and row[1:4] == (task, model, metric):
            return row
    return None
