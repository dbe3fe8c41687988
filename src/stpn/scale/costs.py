"""What the paper's grid costs: seconds of each run, bytes of its state and checkpoint.

    python -m stpn.scale.costs measure docs/scaling.json     # some seconds of every experiment
    python -m stpn.scale.costs table docs/scaling.json       # what all of it needs on n cores

Every run is measured on one thread, as a sweep runs it: a few updates with the paper's settings,
extrapolated to its whole length. Rows of metrics and the final evaluation come on top.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stpn import experiments
from stpn.config import RunConfig, from_dict
from stpn.errors import ConfigError
from stpn.training import checkpoint
from stpn.training.trainer import Trainer

CORES = (8, 64, 512)
STRETCHES, STRETCH_SECONDS = 3, 0.5
"""The fastest of three counts: whatever else runs on a machine only adds."""


@dataclass(frozen=True)
class Cost:
    """One model on one task."""

    task: str
    model: str
    seeds: int
    unit_seconds: float  # of an epoch, iteration or step
    units: int  # of the paper's training
    state_bytes: int  # of the core, for one sequence or environment
    checkpoint_bytes: int

    @property
    def hours(self) -> float:
        """Of one run on one core."""
        return self.unit_seconds * self.units / 3600


def measure(tasks: Sequence[str] | None = None) -> list[Cost]:
    """Every experiment of the paper, or those of some tasks."""
    names = [task.name for task in experiments.TASKS.values() if task.models]
    return [
        _measure(task, model)
        for task in (names if tasks is None else tasks)
        for model in experiments.get(task).models
    ]


def _measure(name: str, model: str) -> Cost:
    task = experiments.get(name)
    settings = {"preset": "paper"} if "paper" in task.task.presets else {}
    config = experiments.default_config(name, model, threads=1, **settings)
    with _one_thread(), closing(task.task.build_trainer(_without_rows(config))) as trainer:
        unit_seconds = _seconds_per_unit(trainer)
        network: Any = trainer.model
        state = network.core.initial_state(1)
        return Cost(
            task=name,
            model=model,
            seeds=task.seeds,
            unit_seconds=unit_seconds,
            units=config.total,
            state_bytes=sum(v.numel() * v.element_size() for layer in state for v in layer),
            checkpoint_bytes=_checkpoint_bytes(trainer),
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _without_rows(config: RunConfig) -> RunConfig:
    """The same training, measured by nobody."""
    names = [name for name in ("log_every", "eval_every") if hasattr(config, name)]
    return from_dict({**config.to_dict(), **dict.fromkeys(names, config.total)})


def _seconds_per_unit(trainer: Trainer) -> float:
    trainer.advance()  # warms up, and fills what is filled once
    return min(_stretch(trainer) for _ in range(STRETCHES))


def _stretch(trainer: Trainer) -> float:
    before, began, seconds = trainer.progress, time.perf_counter(), 0.0
    while seconds < STRETCH_SECONDS:  # one update at least
        trainer.advance()
        seconds = time.perf_counter() - began
    return seconds / (trainer.progress - before)


def _checkpoint_bytes(trainer: Trainer) -> int:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint.safetensors"
        state = {"trainer": trainer.state_dict(), "torch_rng": torch.get_rng_state()}
        checkpoint.write(path, {**state, "config": trainer.config.to_dict()})
        return path.stat().st_size


def span(hours: Iterable[float], cores: int) -> float:
    """Wall-clock hours of runs on one core each, the longest first, each on the next free core."""
    free = [0.0] * cores
    for run in sorted(hours, reverse=True):
        earliest = min(range(cores), key=free.__getitem__)
        free[earliest] += run
    return max(free)


def table(costs: Sequence[Cost]) -> str:
    """A Markdown table: each task and all of them, on so many cores."""
    head = ["experiment", "runs", "core hours", "longest run", *(f"{n} cores" for n in CORES)]
    groups: dict[str, list[Cost]] = {}
    for cost in costs:
        groups.setdefault(cost.task, []).append(cost)
    everything = [*groups.items(), ("**all**", list(costs))]
    without_pong = [cost for cost in costs if cost.task != "pong"]
    if len(without_pong) < len(costs):
        everything.append(("all but pong", without_pong))
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name, members in everything:
        hours = [cost.hours for cost in members for _ in range(cost.seeds)]
        spans = (_hours(span(hours, cores)) for cores in CORES)
        cells = [name, str(len(hours)), f"{sum(hours):,.1f}", _hours(max(hours)), *spans]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bytes_table(costs: Sequence[Cost]) -> str:
    """A Markdown table: one line a task and model."""
    lines = [
        "| task | model | seconds per unit | hours per run | state, bytes | checkpoint, bytes |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for cost in costs:
        unit = experiments.get(cost.task).unit
        cells = [cost.task, cost.model, f"{cost.unit_seconds:.3g} / {unit}", f"{cost.hours:.3g}"]
        cells += [f"{cost.state_bytes:,}", f"{cost.checkpoint_bytes:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> list[Cost]:
    return [Cost(**entry) for entry in json.loads(path.read_text())["costs"]]


def write(path: Path, costs: Sequence[Cost]) -> None:
    """Add to the file; of an experiment that it has already, the faster measurement stays."""
    known = {(cost.task, cost.model): cost for cost in (read(path) if path.exists() else [])}
    for cost in costs:
        before = known.get((cost.task, cost.model), cost).unit_seconds
        faster = dataclasses.replace(cost, unit_seconds=min(before, cost.unit_seconds))
        known[cost.task, cost.model] = faster
    order = list(experiments.TASKS)
    entries = sorted(known.values(), key=lambda cost: order.index(cost.task))
    content = {"costs": [dataclasses.asdict(cost) for cost in entries]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def main(arguments: Sequence[str]) -> None:
    if len(arguments) < 2 or arguments[0] not in ("measure", "table"):
        raise ConfigError("usage: python -m stpn.scale.costs measure|table FILE [TASK...]")
    path = Path(arguments[1])
    if arguments[0] == "measure":
        write(path, measure(arguments[2:] or None))
    costs = read(path)
    print(table(costs), bytes_table(costs), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
