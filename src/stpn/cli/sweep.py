"""`stpn sweep TASK`: plan a grid, run it in worker processes, say what became of it."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stpn import experiments
from stpn.cli import train
from stpn.cli._format import counted, duration, number
from stpn.cli._progress import emit
from stpn.config import RunConfig
from stpn.errors import ConfigError
from stpn.sweep import Event, Executor, Job, LocalExecutor, Result, plan


@dataclass(frozen=True)
class Sweep:
    """Train a grid of models and seeds; finished runs are skipped, broken ones resumed.

    All flags of `stpn train` apply too, to every run of the grid: --epochs 20 --lr 0.01.
    """

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TASK...")]
    """Tasks (`stpn list`), or memory-suite: all of that comparison."""
    models: tuple[str, ...] = ("all",)
    """Models, or all: those that the paper trained on the task, or that the suite compares."""
    seeds: int | None = None
    """Number of seeds, from 0 on. None: as many as the paper used."""
    jobs: int | None = None
    """Runs at the same time, one process each. None: one; with --ray, as many as there is room."""
    out: Path = Path("runs")
    """Root of the run directories."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""
    dry_run: bool = False
    """Only say what would be done."""
    ray: bool = False
    """Run on a Ray cluster (extra `ray`)."""
    address: str | None = None
    """With --ray: HOST:PORT of the cluster, or auto: one that runs here or that RAY_ADDRESS names,
    and must exist. None: such a one, else an instance for this command alone."""
    cpus: float | None = None
    """With --ray: processors that a run reserves. None: its threads."""
    memory_gb: float | None = None
    """With --ray: memory that a run reserves, in GiB."""
    storage: Literal["auto", "shared", "fetch"] = "auto"
    """With --ray: whether workers see OUT (shared) or send every checkpoint (fetch); auto: they
    look."""


def run(arguments: list[str]) -> int:
    options, flags = tyro.cli(Sweep, args=arguments, prog="stpn sweep", return_unknown_args=True)
    if not options.tasks:
        raise ConfigError(f"name the tasks of the grid: {', '.join(experiments.TASKS)}")
    if options.jobs is not None and options.jobs < 1:
        raise ConfigError(f"jobs must be >= 1, not {options.jobs}")
    jobs = plan(grid(options, flags), options.out)
    if options.dry_run:
        for job in jobs:
            state = {"event": "planned", "run": str(job.path), "state": job.state}
            if job.reason:
                state["reason"] = job.reason
            print(json.dumps(state) if options.json else f"{job.state:<9} {job.reason or job.path}")
        return 0
    for name in {job.config.task for job in jobs if job.state in ("new", "stopped")}:
        experiments.get(name).task.check_extras()  # what is missing is said once
    overview = _Overview(jobs, as_json=options.json)
    with _executor(options) as executor, overview:
        results = executor.execute(jobs, overview.on_event)
    return _conclude(results, as_json=options.json)


@contextmanager
def _executor(options: Sweep) -> Iterator[Executor]:
    if not options.ray:
        for name in ("address", "cpus", "memory_gb"):
            if getattr(options, name) is not None:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is for a sweep on Ray: add --ray")
        if options.storage != "auto":
            raise ConfigError("--storage is for a sweep on Ray: add --ray")
        yield LocalExecutor(1 if options.jobs is None else options.jobs)
        return
    from stpn.scale.cluster import connected

    memory = None if options.memory_gb is None else int(options.memory_gb * 2**30)
    with connected(options.address) as ray:
        from stpn.scale.sweep import RayExecutor

        yield RayExecutor(
            ray, cpus=options.cpus, memory=memory, jobs=options.jobs, storage=options.storage
        )


def grid(options: Sweep, flags: list[str]) -> list[RunConfig]:
    """The configurations, seed by seed: a sweep that is cut short has compared all models."""
    if options.seeds is not None and options.seeds < 1:
        raise ConfigError(f"seeds must be >= 1, not {options.seeds}")
    for flag in ("--model", "--seed", "--config"):
        if any(item == flag or item.startswith(f"{flag}=") for item in flags):
            raise ConfigError(f"{flag} makes no sense for a grid; use --models and --seeds")
    configs = []
    for name, suggested in _tasks(options):
        task = experiments.get(name)
        models = suggested if options.models == ("all",) else options.models
        if not models:
            raise ConfigError(f"the paper has no models for {name}; choose some with --models")
        for seed in range(options.seeds or task.seeds or 1):
            for model in models:
                common = ["--model", model, "--seed", str(seed), "--threads", "1"]
                config, *_ = train.parse([name, *common, *flags])
                configs.append(config)
    return configs


def _tasks(options: Sweep) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every task, those of a suite one by one, and the models that `all` means there."""
    for name in options.tasks:
        suite = experiments.SUITES.get(name)
        if suite is None:
            yield name, experiments.get(name).models
        else:
            yield from ((task, suite.models) for task in suite.tasks)


class _Overview:
    """All of the sweep at a glance: live on a terminal, a line an event elsewhere, or JSON."""

    def __init__(self, jobs: list[Job], *, as_json: bool) -> None:
        self._json = as_json
        self._console = Console(quiet=as_json)
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._jobs = jobs
        self._shares = {job: 1.0 for job in jobs if job.state == "finished"}  # done of each run
        self._before = len(self._shares)
        self._failed = 0
        self._bars: dict[Job, TaskID] = {}
        self._rows: dict[Job, dict[str, Any]] = {}

    def __enter__(self) -> None:
        skipped = f", {self._before} finished before" if self._before else ""
        self._console.print(counted(len(self._jobs), "run") + skipped, highlight=False)
        if self._json:
            emit("planned", runs=len(self._jobs), finished=self._before)
        self._began = time.monotonic()
        self._all = self._live.add_task("all runs", total=len(self._jobs), facts="")
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_event(self, event: Event) -> None:
        job, content = event.job, event.content
        if event.kind == "result":
            self._ended(content["result"])
            return
        if self._json:
            rest = {key: value for key, value in content.items() if key not in ("kind", "run")}
            emit(event.kind, run=str(job.path), **rest)
        if event.kind == "started":
            self._bars[job] = self._live.add_task(job.name, total=content["total"], facts="")
            if not self._console.is_terminal:
                self._console.print(f"{_clock()} started {job.name}", highlight=False)
        elif event.kind == "lost":
            self._lost(job, content["message"])
        elif event.kind == "row":
            self._rows[job] = content
        elif event.kind == "finished":
            self._rows[job] = {**content["summary"], "step": content["summary"]["done"]}
        if "progress" in content:
            self._shares[job] = content["progress"] / content["total"]
            facts = _facts(self._rows.get(job), job)
            self._live.update(self._bars[job], completed=content["progress"], facts=facts)
            self._update_all()

    def _ended(self, result: Result) -> None:
        job = result.job
        if job in self._bars:
            self._live.remove_task(self._bars.pop(job))
        self._failed += result.status == "failed"
        if result.status in ("finished", "failed"):
            self._shares[job] = 1.0
        self._update_all()
        if self._json:
            emit("result", run=str(job.path), status=result.status, message=result.message)
        else:
            facts = result.message or _facts(self._rows.get(job), job)
            style = "red" if result.status == "failed" else None
            line = f"{_clock()} {result.status} {job.name}  {facts}"
            self._live.console.print(
                line, style=style, highlight=False, markup=False, soft_wrap=True
            )

    def _lost(self, job: Job, cause: str) -> None:
        if job in self._bars:
            self._live.remove_task(self._bars.pop(job))
        line = f"{_clock()} lost {job.name}, taken up again from its checkpoint: {cause}"
        self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _update_all(self) -> None:
        worked = sum(self._shares.values())
        ended = sum(share == 1.0 and job not in self._bars for job, share in self._shares.items())
        failed = f", {self._failed} failed" if self._failed else ""
        pace = (time.monotonic() - self._began) / max(worked - self._before, 1e-9)
        left = duration(pace * (len(self._jobs) - worked)) if worked > self._before else "?"
        facts = f"{ended - self._failed} of {len(self._jobs)} finished{failed}, {left} left"
        self._live.update(self._all, completed=worked, facts=facts)


def _conclude(results: list[Result], *, as_json: bool) -> int:
    counts = Counter(result.status for result in results)
    failed = [result for result in results if result.status == "failed"]
    if as_json:
        emit("swept", counts=counts, failures=[str(result.job.path) for result in failed])
    else:
        print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
        for result in failed:
            print(f"failed: {result.job.path}\n  {result.message}")
        if counts["stopped"]:
            print("the same command goes on where this one stopped")
    if failed:
        return 1
    return 128 + signal.SIGINT if counts["stopped"] else 0


def _facts(row: dict[str, Any] | None, job: Job) -> str:
    if row is None:
        return ""
    metric = experiments.get(job.config.task).metric
    proficiency, power = number(row.get("proficiency"), metric), number(row.get("power"), "power")
    return f"{job.config.unit} {row['step']:,}  {proficiency}  power {power}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")
