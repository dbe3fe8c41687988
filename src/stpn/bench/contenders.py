"""Contenders in a race, each in a process of its own, that take turns.

How fast an allocation is depends on everything that a process did before: nn.LSTM on the maze takes
0.19 s in a heap that the plain loop has left behind and 0.37 s by itself. So each has a process to
itself, as a user would. They take turns because a machine's speed drifts, and their ratios should
not drift with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from stpn.bench.machine import median_seconds

SLOW = 1.0
"""Seconds of a call that needs no further call before it to be timed."""

_race: Callable[[], object]  # of a contender's process


class Contender:
    """`build(*arguments)` makes, in a new process with as many threads as here, what is timed.

    Used in a `with` block, which ends the process.
    """

    def __init__(self, build: Callable[..., Callable[[], object]], *arguments: Any) -> None:
        start = (torch.get_num_threads(), build, arguments)
        self._process = ProcessPoolExecutor(1, get_context("spawn"), _prepare, start)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.shutdown()

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call in the contender's process."""
        return self._process.submit(function, *arguments).result()

    def seconds(self, warm_up: int, at_least: float) -> float:
        """Median seconds of a call, over so many seconds at least."""
        return float(self.do(_turn, warm_up, at_least))


def medians_in_turns(
    contenders: Mapping[str, Contender], turns: int, at_least: float = 1.0
) -> dict[str, float]:
    """Median seconds of a call of each, over so many turns of so many seconds at least."""
    first = {name: contender.seconds(0, 0) for name, contender in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, contender in contenders.items():
            warm_up = int(first[name] < SLOW)  # to find caches and threads as it leaves them
            times[name].append(contender.seconds(warm_up, at_least))
    return {name: statistics.median(medians) for name, medians in times.items()}


def _prepare(threads: int, build: Callable[..., Callable[[], object]], arguments: Any) -> None:
    global _race
    torch.set_num_threads(threads)
    _race = build(*arguments)


def _turn(warm_up: int, at_least: float) -> float:
    return median_seconds(_race, 1, warm_up, at_least)
