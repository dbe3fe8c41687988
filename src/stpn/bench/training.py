"""Whole trainers at work: how fast they train, beside the plain loop, and where their time goes.

The trainers are those of `stpn train`, driven update by update without a run on disk. Every number
is the median of at least five stretches after a warm-up (of three where the plain loop takes
seconds an update). The kernels must serve every call: with them a fall back to the plain loop is an
error, not a slow number.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
from rich.markup import escape
from rich.table import Table

import stpn
from stpn import experiments
from stpn._extras import MissingExtra
from stpn.bench.learning_parts import timed_learning
from stpn.errors import ConfigError, unknown
from stpn.tasks import registry
from stpn.tasks.maze import MazeConfig
from stpn.tasks.pendulum import LONGEST_EPISODE, PendulumConfig
from stpn.tasks.pong import PongConfig
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.supervised import SupervisedTrainer
from stpn.training.trainer import Trainer

Row = dict[str, Any]
Shares = dict[str, float]

STRETCHES = 5
NEVER = 10**9
"""Units between two measurements of an agent: these stretches hold none."""
OUTSIDE = "outside forward, backward and optimizer"


def measure(
    tasks: Sequence[str] | None = None, quick: bool = False, say: Callable[[str], None] = print
) -> list[Row]:
    """Numbers of the given tasks, None for all; `quick`: shorter stretches, rougher numbers.

    A row holds task, what, value, unit, target (a comparison, or "" if there is none), reached and
    shares of the time. A task that cannot run here has one row without a value that says why.
    """
    tasks = list(TASKS) if tasks is None else tasks
    for task in tasks:
        if task not in TASKS:
            raise ConfigError(unknown("training benchmark", task, TASKS))
    native = stpn.backends()[0]
    rows = []
    for task in tasks:
        if not native.usable:
            rows.append(_row(task, f"not timed: {native}"))
            continue
        say(f"{task}: {TASKS[task].__doc__}")
        try:
            with stpn.use_backend("native"):
                rows += TASKS[task](quick)
        except MissingExtra as error:
            rows.append(_row(task, f"skipped: {error}"))
    return rows


def _row(
    task: str,
    what: str,
    value: float | None = None,
    unit: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    shares: Shares | None = None,
) -> Row:
    target, reached = "", None
    if value is not None and at_least is not None:
        target, reached = f">= {at_least:g}", value >= at_least
    elif value is not None and at_most is not None:
        target, reached = f"<= {at_most:g}", value <= at_most
    return {
        "task": task,
        "what": what,
        "value": value,
        "unit": unit,
        "target": target,
        "reached": reached,
        "shares": shares or {},
    }


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    result = Table(title="training")
    for column in ("task", "what", "number", "target", "where the time goes"):
        result.add_column(column, justify="right" if column in ("number", "target") else "left")
    for row in rows:
        number = "" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"
        if row["reached"] is not None:
            colour = "green" if row["reached"] else "red"
            number = f"[{colour}]{number}[/{colour}]"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items())
        result.add_row(row["task"], escape(row["what"]), number, row["target"], shares)
    return result


@contextmanager
def _built(task: str, model: str, **settings: Any) -> Iterator[Trainer]:
    config = experiments.default_config(task, model, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        trainer = registry.get(task).build_trainer(config)
        try:
            yield trainer
        finally:
            trainer.close()


def _seconds(trainer: Trainer, updates: int) -> float:
    start = time.perf_counter()
    for _ in range(updates):
        trainer.advance()
    return time.perf_counter() - start


def _art(quick: bool) -> list[Row]:
    """STPNr on the kernels and on the plain loop, in turn, one epoch each"""
    task, sequences = "art", 100_000
    part = 16 if quick else 1  # of an epoch, training and validation alike
    settings = {"train_size": sequences // part, "validation_size": 10_000 // part}
    with _built(task, "stpnr", **settings) as trainer:
        updates = -(-settings["train_size"] // 128)
        native, reference = [], []
        for warm in (False, *[True] * STRETCHES):  # whole epochs: order and validation included
            seconds = _seconds(trainer, updates)
            with stpn.use_backend("reference"):
                baseline = _seconds(trainer, updates)
            if warm:
                native.append(seconds)
                reference.append(baseline)
        shares = _step_shares(trainer, updates // STRETCHES)
    seconds, baseline = statistics.median(native), statistics.median(reference)
    return [
        _row(task, "updates, kernels", updates / seconds, "/s"),
        _row(task, "updates, plain loop", updates / baseline, "/s"),
        _row(task, "epochs, kernels", 1 / (seconds * part), "/s"),
        _row(task, "epochs, plain loop", 1 / (baseline * part), "/s"),
        _row(task, "kernels over plain loop", baseline / seconds, "x", at_least=4),
        _row(task, "200 epochs", 200 * seconds * part / 60, "min", at_most=6),
        _row(task, OUTSIDE, 100 * shares["other"], "%", at_most=25, shares=shares),
    ]


def _familiarity(quick: bool) -> list[Row]:
    """STPNr on the kernels, then some iterations on the plain loop"""
    task = "familiarity-infinite-r3"
    with _built(task, "stpnr") as trainer:
        updates = 10  # one of them measures a row
        _seconds(trainer, updates)
        times = [_seconds(trainer, updates) for _ in range(STRETCHES)]
        shares = _step_shares(trainer, updates)
        with stpn.use_backend("reference"):  # too few iterations for a row: the easier task
            slow = [_seconds(trainer, 1) for _ in range(1 if quick else 4)]
    seconds = statistics.median(times) / updates
    baseline = statistics.median(slow if quick else slow[1:])
    return [
        _row(task, "iterations, kernels", 1 / seconds, "/s", at_least=20),
        _row(task, "iterations, plain loop", 1 / baseline, "/s"),
        _row(task, "kernels over plain loop", baseline / seconds, "x", at_least=60),
        _row(task, OUTSIDE, 100 * shares["other"], "%", at_most=25, shares=shares),
    ]


def _step_shares(trainer: Trainer, updates: int) -> Shares:
    """Where the time of a training step goes, in the stretch with the median remainder.

    Forward includes the loss. Updates that end with a measurement are left out.
    """
    trainer = cast("SupervisedTrainer[Any]", trainer)
    names = ("forward", "backward", "optimizer")
    spent = dict.fromkeys(names, 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            spent[name] += time.perf_counter() - start
            return result

        return run

    stretches = []
    with ExitStack() as stack:
        for owner, attribute, name in (
            (trainer, "network", "forward"),
            (trainer, "loss_of", "forward"),
            (torch.Tensor, "backward", "backward"),
            (trainer.optimizer, "step", "optimizer"),
        ):
            run = timed(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, run))
        for _ in range(STRETCHES):
            spent.update(dict.fromkeys(names, 0.0))
            total = 0.0
            for _ in range(updates):
                before = dict(spent)
                start = time.perf_counter()
                row = trainer.advance()
                if row is None:
                    total += time.perf_counter() - start
                else:
                    spent.update(before)
            shares = {name: seconds / total for name, seconds in spent.items()}
            stretches.append(shares | {"other": 1 - sum(shares.values())})
    return sorted(stretches, key=lambda shares: shares["other"])[STRETCHES // 2]


def _maze(quick: bool) -> list[Row]:
    """STPNr as in the paper, 512 agents, then 64, and the preset fast; acting included"""
    rows = []
    for agents, updates, least in ((512, 3, 1.4), (64, 20, 8.0)):
        updates = 1 if quick else updates
        seconds, shares = _agent("maze", "stpnr", updates, preset="paper", num_envs=agents)
        what = f"updates, {agents} agents"
        rows.append(_row("maze", what, 1 / seconds, "/s", at_least=least, shares=shares))
    config = cast(MazeConfig, experiments.default_config("maze", "stpnr"))
    seconds, shares = _agent("maze", "stpnr", 1 if quick else 8)
    minutes = config.iterations * seconds / 60
    what = f"{config.iterations:,} updates of the preset fast"
    rows.append(_row("maze", what, minutes, "min", shares=shares))
    memory = _memory_of_maze(agents=512, updates=1 if quick else 3) / 1e9
    return [*rows, _row("maze", "peak memory, 512 agents", memory, "GB", at_most=2)]


def _pong(quick: bool) -> list[Row]:
    """STPNr as in the paper, 64 environments and rollouts of 50 steps; then PPO, three epochs"""
    rows = []
    for preset, what, least in (
        ("paper", "steps of agents, A2C", 900),
        ("tuned", "steps of agents, PPO", 1200),
    ):
        config = cast(PongConfig, experiments.default_config("pong", preset=preset))
        rollout = 10 if quick else config.num_steps
        seconds, shares = _agent("pong", "stpnr", 1, preset=preset, num_steps=rollout)
        rate = config.num_envs * rollout / seconds
        rows.append(_row("pong", what, rate, "/s", at_least=least, shares=shares))
    return rows


def _pendulum(quick: bool) -> list[Row]:
    """STPNf, PPO in one environment"""
    task, model = "pendulum", "stpnf"
    config = cast(PendulumConfig, experiments.default_config(task, model))
    rollout = config.num_steps // 8 if quick else config.num_steps
    seconds, shares = _agent(task, model, 1, num_steps=rollout)
    # A measurement is made of episodes as long as the agent can balance: here, the longest.
    play = _acting_seconds(task, model, num_envs=config.eval_episodes, num_steps=LONGEST_EPISODE)
    minutes = config.steps * (seconds / rollout + play / config.eval_every) / 60
    what = "1e6 steps, measurements included"
    return [
        _row(task, "steps", rollout / seconds, "/s", shares=shares),
        _row(task, what, minutes, "min", at_most=12),
    ]


def _agent(task: str, model: str, updates: int, **settings: Any) -> tuple[float, Shares]:
    """Seconds of an update in the median stretch, and what they were spent on."""
    stretches = []
    with _built(task, model, eval_every=NEVER, **settings) as built:
        trainer = cast("ReinforcementTrainer", built)
        trainer.advance()
        for _ in range(STRETCHES):
            before = dict(trainer.seconds)
            with timed_learning(trainer.learner, trainer.optimizer) as parts:
                seconds = _seconds(trainer, updates)
            spent = {name: trainer.seconds[name] - before[name] for name in before}
            rest = spent.pop("learning") - sum(parts.values())
            spent |= {**parts, "other learning": rest}
            stretches.append((seconds / updates, {name: s / seconds for name, s in spent.items()}))
    return sorted(stretches, key=lambda stretch: stretch[0])[STRETCHES // 2]


def _acting_seconds(task: str, model: str, **settings: Any) -> float:
    """Seconds of a rollout without what is learnt from it."""
    with _built(task, model, eval_every=NEVER, update_epochs=1, **settings) as built:
        trainer = cast("ReinforcementTrainer", built)
        trainer.advance()
        return trainer.seconds["environment"] + trainer.seconds["acting"]


def _memory_of_maze(*, agents: int, updates: int) -> int:
    """Largest memory of a process that trains in the maze and does nothing else, in bytes."""
    call = f"_train_maze_alone({agents}, {updates}, {torch.get_num_threads()})"
    code = f"from stpn.bench import training; training.{call}"
    result = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    return int(result.stdout)


def _train_maze_alone(agents: int, updates: int, threads: int) -> None:
    torch.set_num_threads(threads)
    with (
        stpn.use_backend("native"),
        _built("maze", "stpnr", preset="paper", num_envs=agents, eval_every=NEVER) as trainer,
    ):
        _seconds(trainer, updates)
    print(peak_memory())


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    try:
        # On Linux ru_maxrss starts at the peak of the process that started this one.
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


TASKS: dict[str, Callable[[bool], list[Row]]] = {
    "art": _art,
    "familiarity-infinite-r3": _familiarity,
    "maze": _maze,
    "pong": _pong,
    "pendulum": _pendulum,
}
