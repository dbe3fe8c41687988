"""`stpn train TASK`: the flags are the fields of the task's configuration."""

from __future__ import annotations

import dataclasses
import json
import signal
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from stpn import cores, experiments
from stpn._extras import need
from stpn.cli._follow import follow
from stpn.cli._session import Output, conclude, conduct
from stpn.config import STPN_SETTINGS, RunConfig, from_dict, trusted
from stpn.errors import ConfigError
from stpn.runs import Run
from stpn.tasks import registry

DEFAULT_TASK = "art"
ENVIRONMENT_TASK = "gym"  # `--env NAME` in place of a task of the paper
LENGTHS = ("epochs", "iterations", "steps")
REINFORCEMENT = """
Reinforcement learning has settings of its own (--algo, --preset, --rllib, ...):
`stpn train maze --help`, or `stpn train --env NAME --help` for any Gymnasium environment."""


@dataclass(frozen=True)
class Place:
    """Where a run goes."""

    config: Path | None = None
    """JSON file with settings (one that `stpn tune` or a run's config.json gives); flags win."""
    out: Path = Path("runs")
    """Root of the run directories: OUT/<task>/<model>/seed<N>."""
    workers: int = 1
    """Processes that share every batch of a task with batches, art (extra `ray`); OUT must be on
    storage that all of them see. The same command goes on with a run that was interrupted."""
    address: str | None = None
    """With --workers: HOST:PORT of a Ray cluster, or auto. None: one that runs here or that
    RAY_ADDRESS names, else an own instance."""


def run(arguments: list[str]) -> int:
    config, place, output = parse(arguments)
    config.check()
    if place.workers != 1:
        return _train_in_parallel(config, place, output)
    if place.address is not None:
        raise ConfigError("--address is for training by several --workers")
    from stpn.training import session  # after the check: torch takes its time to load

    return conduct(
        lambda reporter, stop: session.start(config, place.out, reporter=reporter, stop=stop),
        output,
    )


def _train_in_parallel(config: RunConfig, place: Place, output: Output) -> int:
    need("ray", extra="ray")
    from stpn.scale import data_parallel

    with follow(Run(place.out / config.directory), config, output):
        try:
            outcome = data_parallel.train(
                config, place.out, workers=place.workers, address=place.address
            )
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from the last checkpoint")
            return 128 + signal.SIGINT
    return conclude(outcome, output)


def parse(arguments: list[str]) -> tuple[RunConfig, Place, Output]:
    """Two passes: task, model, preset and config file decide the defaults of all others."""
    defaults = _defaults(arguments)
    _refuse_foreign_flags(arguments, defaults)
    parts: list[tuple[str, Any, Any]] = [
        (name, Annotated[type(value), tyro.conf.arg(name="")], field(default=value))
        for name, value in (("settings", defaults), ("place", Place()), ("output", Output()))
    ]
    parsed: Any = tyro.cli(
        make_dataclass("Train", parts),
        args=arguments,
        prog="stpn train",
        description=f"Train a model. Settings and defaults of {defaults.task} with "
        f"{defaults.model}; `stpn train TASK --model MODEL --help` shows those of another."
        + ("" if hasattr(defaults, "algo") else REINFORCEMENT)
        + (_core_help(defaults.model) if {"-h", "--help"} & set(arguments) else ""),
    )
    if (task := parsed.settings.task) != defaults.task:
        raise ConfigError(f"the task comes first: stpn train {task} ...")
    return parsed.settings, parsed.place, parsed.output


def _core_help(model: str) -> str:
    """What --core takes; only for help, since the classes need torch."""
    options = [o for o in cores.core_options(model).values() if o.name not in STPN_SETTINGS]
    words = (f"{o.name}={o.default}" + (f" ({o.doc})" if o.doc else "") for o in options)
    return f"\nOptions of {model} for --core: {', '.join(words)}." if options else ""


def _refuse_foreign_flags(arguments: list[str], config: RunConfig) -> None:
    """What belongs to another task is answered with what to write instead."""
    flags = {word.partition("=")[0] for word in arguments}
    fields = {field.name for field in dataclasses.fields(config)}
    for name in LENGTHS:
        if f"--{name}" in flags and name not in fields:
            raise ConfigError(
                f"the length of {config.task} is --{config.total_field}, not --{name}"
            )
    if "--env" in flags and "env" not in fields:
        raise ConfigError(
            f"--env stands in place of a task: stpn train --env {_value(arguments, '--env')}"
        )
    for old, new in config.renamed.items():
        old, new = (f"--{name.replace('_', '-')}" for name in (old, new))
        if old in flags:
            raise ConfigError(f"{old} is {new} now")
    known = config.to_dict()
    for name in (flag[2:].replace("-", "_") for flag in flags):
        if name not in known and (sentence := config.elsewhere(name)):
            raise ConfigError(sentence)


def _defaults(arguments: list[str]) -> RunConfig:
    file = _value(arguments, "--config")
    settings = {} if file is None else _read(Path(file))
    task = arguments[0] if arguments and not arguments[0].startswith("-") else None
    model, env = _value(arguments, "--model"), _value(arguments, "--env")
    if task is None:
        task = settings.get("task") or (env and ENVIRONMENT_TASK) or DEFAULT_TASK
    if settings.get("task", task) != task:
        raise ConfigError(f"{file} configures {settings['task']}, not {task}")
    if task == ENVIRONMENT_TASK:
        if env is None and file is not None:
            trusted(from_dict({**settings, "task": task}), None, file)
        asks_for_help = {"-h", "--help"} & set(arguments)
        settings["env"] = env or settings.get("env") or ("NAME" if asks_for_help else "")
    algo = _value(arguments, "--algo")
    if file is not None and model in (None, settings.get("model")):
        if algo is not None:
            cls = registry.get(task).config
            settings = cls.relevant({**cls.migrated(settings), "algo": algo})
        return from_dict({**settings, "task": task})
    # another model than the file's: the file's settings, but that model's own size
    settings.pop("hidden_size", None)
    settings.update(task=task, model=model)
    if (preset := _value(arguments, "--preset")) is not None:
        settings["preset"] = preset
    if "--rllib" in arguments:
        settings["rllib"] = True
    if algo is not None:
        settings["algo"] = algo
    return experiments.default_config(**settings)


def _value(arguments: list[str], flag: str) -> str | None:
    """The value of `--flag VALUE` or `--flag=VALUE`; tyro checks the rest."""
    for index, argument in enumerate(arguments):
        if argument == flag and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} does not hold an object with settings")
    return settings
