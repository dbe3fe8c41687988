"""Start a run, go on with one, measure one: what the commands, sweeps and clusters call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stpn import devices, experiments
from stpn._json import json_safe
from stpn.config import RunConfig, from_dict, trusted
from stpn.errors import ConfigError, RunError
from stpn.ops.backends import use_backend
from stpn.results import paper_numbers
from stpn.runs import Run
from stpn.summary import Rows, RunSummary
from stpn.tasks import registry
from stpn.training import checkpoint, provenance
from stpn.training.loop import Loop, Reporter, Stop
from stpn.training.trainer import Evaluation, Trainer


@dataclass(frozen=True)
class Outcome:
    """How a session ended; errors are raised, not returned."""

    run: Run
    finished: bool  # False: stopped on request, saved, can be resumed
    summary: RunSummary | None


def start(
    config: RunConfig,
    root: str | Path = "runs",
    *,
    reporter: Reporter | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Train a new run in `root/<task>/<model>/seed<N>`; an existing one there is never touched."""
    run = Run(Path(root) / config.directory)
    _refuse_existing(run)
    with _machine(config) as config, built(config) as trainer, run.lock():
        _refuse_existing(run)
        run = Run.create(run.path, trainer.config.to_dict())
        return _work(Loop(run, trainer, reporter or Reporter(), stop or Stop()))


def resume(
    path: str | Path,
    *,
    total: int | None = None,
    env: str | None = None,
    device: str | None = None,
    reporter: Reporter | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Go on with a run; it ends as if it had never been stopped.

    `total` gives it a new length, also after it has finished or reached its target score, which
    then ends it no more; `device` moves it to another one. A run in an environment of the form
    "module:Name" must be given that name again, as `env`: the module is imported.
    """
    run = Run.open(path)
    config = trusted(from_dict(run.config), env, run.path)
    if total is not None:
        config = from_dict({**run.config, config.total_field: total})
    elif run.summary is not None:
        return Outcome(run, finished=True, summary=run.summary)
    if device is not None:
        config = dataclasses.replace(config, device=device)
        config.check()
    with run.lock(), _machine(config) as config, built(config) as trainer:
        loop = Loop(run, trainer, reporter or Reporter(), stop or Stop())
        loop.restore(lengthen=total is not None)
        goes_on = total is not None and trainer.done < trainer.total
        if goes_on or config.to_dict() != run.config:
            run.rewrite_config(config.to_dict())
        return _work(loop)


def ensure(
    config: RunConfig,
    root: str | Path = "runs",
    *,
    reporter: Reporter | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Bring the run of this configuration to its end, from wherever it is now.

    Starts it, resumes it, lengthens a shorter one, or leaves a finished one alone; refuses to go on
    with a run that has other settings.
    """
    run = Run(Path(root) / config.directory)
    if not run.exists:
        return start(config, root, reporter=reporter, stop=stop)
    present = from_dict(Run.open(run.path).config)
    difference = config.contradiction(present.to_dict())
    if difference:
        raise ConfigError(f"{run.path} holds a run with other settings: {difference}")
    longer = config.total if config.total > present.total else None
    env = getattr(config, "env", None)  # the caller's, which is that of the run
    return resume(run.path, total=longer, env=env, reporter=reporter, stop=stop)


@contextmanager
def restored(path: str | Path, *, env: str | None = None, **settings: Any) -> Iterator[Trainer]:
    """The trainer of a run with its network as saved, to look at, measure or use.

    `settings` change the configuration (`seed`: other data to measure with); `env` as in `resume`.
    Without a `device` among them it is the run's, or the CPU where that one is not there.
    """
    run = Run.open(path)
    config = trusted(from_dict({**run.config, **settings}), env, run.path)
    config = possible_here(config, settings)
    with _machine(config) as config, built(config, plain=True) as trainer:
        with checkpoint.explain_misfit(run.checkpoint, trainer):
            state = checkpoint.read(run.checkpoint)["trainer"]
            trainer.load_state_dict(checkpoint.like(state, trainer.state_dict()))
        yield trainer


def possible_here(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """To look at a network its device may be the CPU, unless `settings` ask for another."""
    if "device" in settings or devices.there(config.device):
        return config
    return dataclasses.replace(config, device="cpu")


def _refuse_existing(run: Run) -> None:
    if not run.exists:
        return
    if run.status == "finished":
        hint = f"it is finished; `stpn show {run.path}`, or another --seed or --out"
    elif run.status == "running":
        hint = "a process trains there right now"
    else:
        hint = f"it can go on: `stpn resume {run.path}`"
    raise RunError(f"{run.path} already holds a run, nothing was changed ({hint})")


def _work(loop: Loop) -> Outcome:
    run, trainer, reporter = loop.run, loop.trainer, loop.reporter
    with loop.stop.on_signals():
        run.write_provenance(provenance.collect())
        reporter.started(run, trainer)
        try:
            summary = _evaluate(loop) if loop.train() else None
        finally:
            reporter.ended()
    if summary is not None:
        run.write_summary(summary)
    return Outcome(run, finished=summary is not None, summary=summary)


def _evaluate(loop: Loop) -> RunSummary | None:
    """The summary; None if interrupted, which loses nothing: the checkpoint is written."""
    loop.reporter.evaluating(loop.trainer)
    try:
        with loop.stop.at_once():
            evaluation = loop.trainer.evaluate()
    except KeyboardInterrupt:
        return None
    return summarise(loop.trainer, evaluation, seconds=loop.seconds, rows=loop.rows)


def summarise(
    trainer: Trainer, evaluation: Evaluation, *, seconds: float | None, rows: Rows | None = None
) -> RunSummary:
    """The content of summary.json."""
    config = trainer.config
    task = experiments.get(config.task)
    content = {
        "task": config.task,
        "model": config.model,
        "seed": config.seed,
        "metric": task.metric,
        "proficiency": evaluation.proficiency,
        "power": evaluation.power,
        "power_per_step": evaluation.power_per_step,
        "done": trainer.done,
        "paper_length": task.length,
        "unit": task.unit,
        "finished": trainer.done >= trainer.total,
        "paper": paper_numbers(task, config.model),
        "seconds": None if seconds is None else round(seconds, 3),
        "parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "rows": None if rows is None else rows.count,
        "rows_checksum": None if rows is None else rows.checksum,
        **evaluation.extras,
        **provenance.collect(),
    }
    return RunSummary.from_dict(json_safe(content))


@contextmanager
def _machine(config: RunConfig) -> Iterator[RunConfig]:
    """Compute as the config says: its device, its threads (or fix the present ones), its
    backend."""
    before = torch.get_num_threads()
    config = dataclasses.replace(config, device=str(devices.find(config.device)))
    if config.threads is None:
        config = dataclasses.replace(config, threads=before)
    with ExitStack() as stack:
        if config.backend != "auto":  # auto leaves the choice to the process
            try:
                stack.enter_context(use_backend(config.backend))
            except ValueError as error:
                raise ConfigError(str(error)) from error
        torch.set_num_threads(config.threads or before)
        stack.callback(torch.set_num_threads, before)
        yield config


@contextmanager
def built(config: RunConfig, *, plain: bool = False) -> Iterator[Trainer]:
    """A new trainer of that configuration; the caller's random stream is left as it was."""
    with devices.own_random_stream(devices.find(config.device)):
        torch.manual_seed(config.seed)
        trainer = registry.get(config.task).build_trainer(config, plain=plain)
        try:
            yield trainer
        finally:
            trainer.close()
