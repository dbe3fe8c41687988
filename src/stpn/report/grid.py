"""The runs found on disk, sorted into the paper's grid: what is there, short, or missing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stpn import cores, experiments
from stpn.config import IDENTITY, MACHINE, MEASUREMENT
from stpn.errors import ConfigError
from stpn.report.statistics import Array, Estimate
from stpn.report.style import TASK_ORDER, model_rank, task_rank, task_style
from stpn.results import RunResult, load_results

Quantity = Literal["proficiency", "power"]
QUANTITIES: tuple[Quantity, ...] = ("proficiency", "power")

# Of runs that all stop short, those within a tenth of the longest are comparable with each other.
COMPARABLE_REACH = 0.9
LATE_MEASUREMENTS = 4  # fewer say no more than the last one


@dataclass(frozen=True)
class Group:
    """The runs of one model on one task, one per seed."""

    task: str
    model: str
    runs: tuple[RunResult, ...]

    @property
    def experiment(self) -> experiments.Experiment | None:
        """The paper's experiment, if this is one: it has the task and trained this model on it. A
        control is held to the experiment of its plain model."""
        experiment = experiments.TASKS.get(self.task)
        return experiment if experiment and cores.base(self.model) in experiment.models else None

    @property
    def seeds_wanted(self) -> int | None:
        """Seeds of the paper; None where the paper has no such experiment."""
        return self.experiment.seeds if self.experiment else None

    @cached_property
    def used(self) -> tuple[RunResult, ...]:
        """The runs whose numbers count: the complete ones, or else those that went furthest."""
        complete = tuple(run for run in self.runs if is_complete(run))
        if complete and self.experiment is not None:
            return complete
        # no length that all should have: only runs of about the same one are averaged
        candidates = complete or self.runs
        furthest = max((run.summary.done for run in candidates), default=0)
        return tuple(run for run in candidates if run.summary.done >= COMPARABLE_REACH * furthest)

    @property
    def is_short(self) -> bool:
        """No run has reached the paper's length."""
        return bool(self.used) and not is_complete(self.used[0])

    @property
    def is_finished(self) -> bool:
        """All runs that count have come to their own end, however long they are."""
        return bool(self.used) and all(run.summary.finished for run in self.used)

    @property
    def reach(self) -> float:
        """Part of the paper's length that the shortest of the used runs went through."""
        return min((run_reach(run) for run in self.used), default=0.0)

    @property
    def left_out(self) -> int:
        """Runs that do not count: they are still on their way, or shorter than the others."""
        return len(self.runs) - len(self.used)

    def estimate(self, quantity: Quantity) -> Estimate | None:
        values = [getattr(run.summary, quantity) for run in self.used]
        measured = tuple(float(value) for value in values if value is not None)
        return Estimate(measured) if measured else None

    @cached_property
    def late(self) -> Estimate | None:
        """Mean reward of each seed over the last fifth of its measurements; None if they are few,
        or if this is no agent."""
        if not task_style(self.task).reinforcement:
            return None
        tails = []
        for run in self.used:
            measured = columns(run, "step", "proficiency")[1]
            tails.append(measured[len(measured) - len(measured) // 5 :])
        if not tails or min(map(len, tails)) < LATE_MEASUREMENTS:
            return None
        return Estimate(tuple(float(tail.mean()) for tail in tails))

    def at_their_best(self) -> Group:
        """The same runs, each with the highest proficiency measured during its training."""

        def best(run: RunResult) -> RunResult:
            measured = columns(run, "step", "proficiency")[1]
            highest = float(measured.max()) if measured.size else run.summary.proficiency
            return replace(run, summary=replace(run.summary, proficiency=highest))

        return replace(self, runs=tuple(map(best, self.runs)))

    @cached_property
    def deviations(self) -> tuple[str, ...]:
        """Settings in which a run differs from the paper's, in words."""
        if self.experiment is None:
            return ()
        found: dict[str, None] = {}
        for run in self.used:
            for sentence in _deviations(run, self.experiment):
                found[sentence] = None
        return tuple(found)


def run_reach(run: RunResult) -> float:
    """Part of the paper's length that a run went through; 1 where the paper has none."""
    return run.summary.share_of_paper


def is_complete(run: RunResult) -> bool:
    """Finished, evaluated, and as long as the paper's."""
    return run.summary.finished and run_reach(run) >= 1


def task_of(run: RunResult) -> str:
    """The task; runs outside the paper go by their environment."""
    return run.task if run.task in TASK_ORDER else str(run.config.get("env", run.task))


@dataclass(frozen=True)
class Grid:
    """Everything that the report is made of."""

    root: Path
    groups: dict[tuple[str, str], Group]
    problems: list[str] = field(default_factory=list)
    """What could not be read or was left out, one sentence each."""

    def group(self, task: str, model: str) -> Group:
        return self.groups.get((task, model)) or Group(task, model, ())

    def models(self, task: str) -> list[str]:
        """Models with runs on the task, in the report's order; controls are told apart below."""
        found = (m for t, m in self.groups if t == task and cores.base(m) == m)
        return sorted(found, key=model_rank)

    def controls(self, task: str) -> list[str]:
        """Variants of cores with runs on the task, by kind and in the order of their cores."""
        found = (m for t, m in self.groups if t == task and cores.base(m) != m)
        return sorted(found, key=lambda m: (m.rpartition("-")[2], model_rank(cores.base(m))))

    @property
    def tasks(self) -> list[str]:
        return sorted({task for task, _ in self.groups}, key=task_rank)

    @property
    def runs(self) -> Iterator[RunResult]:
        for group in self.groups.values():
            yield from group.runs

    def name(self, run: RunResult) -> str:
        """A run's path below the root: how the report names it."""
        try:
            return run.path.relative_to(self.root).as_posix() or run.path.name
        except ValueError:
            return run.path.as_posix()


def collect(root: str | Path) -> Grid:
    """Read all runs under `root`; what is damaged becomes a problem, never an exception."""
    root = Path(root)
    problems: list[str] = []
    kept: dict[tuple[str, str, int], RunResult] = {}
    for run in load_results(root, problems):
        fault = _fault(run)
        if fault:
            problems.append(f"{run.path}: {fault}; the run is left out")
            continue
        key = (task_of(run), run.model, run.seed)
        if key in kept:
            first, second = sorted((kept[key], run), key=_preference)
            problems.append(
                f"{second.path}: the same task, model and seed as {first.path}, which is used"
            )
            run = first
        kept[key] = run
    grouped: dict[tuple[str, str], list[RunResult]] = {}
    for (task, model, _), run in sorted(kept.items()):
        grouped.setdefault((task, model), []).append(run)
    groups = {key: Group(*key, tuple(runs)) for key, runs in grouped.items()}
    return Grid(root=root, groups=groups, problems=problems)


def columns(run: RunResult, x: str, y: str) -> tuple[Array, Array]:
    """Two columns of a run's curve, without the rows in which one is missing or not finite."""
    rows = [(_number(a), _number(b)) for a, b in zip(run.curve[x], run.curve[y], strict=False)]
    pairs = np.array([row for row in rows if all(map(math.isfinite, row))], dtype=np.float64)
    pairs = pairs.reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def power_per_step(run: RunResult) -> tuple[Array, Array]:
    """Time steps, counted from 1, and the power there; empty where it was not measured.

    A summary of a long sequence holds means over stretches of `power_stretch` steps: each stands
    at the middle of its stretch.
    """
    values = np.array([_number(v) for v in run.summary.power_per_step], np.float64)
    stretch = run.summary.power_stretch
    steps: Array = np.arange(values.size, dtype=np.float64) * stretch + (stretch + 1) / 2
    kept = np.isfinite(values)
    return steps[kept], values[kept]


def _number(value: Any) -> float:
    ordinary = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if ordinary else math.nan


def _fault(run: RunResult) -> str | None:
    """Why the run's numbers cannot be used, if they cannot."""
    if not run.curve["step"] and run.summary.proficiency is None:
        return "it has not measured anything yet"
    return None


def _preference(run: RunResult) -> tuple[bool, float, str]:
    """Of two runs of the same seed: the complete one, then the longer one."""
    return (not is_complete(run), -run_reach(run), str(run.path))


def _deviations(run: RunResult, experiment: experiments.Experiment) -> Iterator[str]:
    """Settings of the run that are not the paper's.

    The length of the run is not among them: how far a run went is shown by its reach.
    """
    choice = {"preset": "paper"} if "paper" in experiment.task.presets else {}
    try:
        reference = experiments.default_config(run.task, run.model, **choice)
    except (ImportError, ConfigError):
        return  # the settings of this task live in an extra that is not installed
    ignored = {
        *reference.incidental(IDENTITY, MACHINE, MEASUREMENT),
        reference.total_field,
        "preset",  # whose values are compared themselves
        "hidden_size",  # None there, the size that was taken here: see below
    }
    for name, expected in reference.to_dict().items():
        actual = run.config.get(name, expected)
        if name not in ignored and actual != expected:
            yield f"{name} {actual} instead of {expected}"
    size = experiment.hidden_sizes[cores.base(run.model)]
    if run.config.get("hidden_size", size) not in (size, None):
        yield f"hidden_size {run.config['hidden_size']} instead of {size}"
