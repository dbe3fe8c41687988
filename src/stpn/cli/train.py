"""`stpn train TASK`: the flags are the fields of the task's configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from stpn import experiments
from stpn.cli._session import Output, conduct
from stpn.config import RunConfig, from_dict
from stpn.errors import ConfigError

DEFAULT_TASK = "art"
ENVIRONMENT_TASK = "gym"  # `--env NAME` in place of a task of the paper


@dataclass(frozen=True)
class Place:
    """Where a run goes."""

    config: Path | None = None
    """JSON file with settings (one that `stpn tune` or a run's config.json gives); flags win."""
    out: Path = Path("runs")
    """Root of the run directories: OUT/<task>/<model>/seed<N>."""


def run(arguments: list[str]) -> int:
    config, place, output = parse(arguments)
    config.check()
    from stpn.training import session  # after the check: torch takes its time to load

    return conduct(
        lambda reporter, stop: session.start(config, place.out, reporter=reporter, stop=stop),
        output,
    )


def parse(arguments: list[str]) -> tuple[RunConfig, Place, Output]:
    """Two passes: task, model, protocol and config file decide the defaults of all others."""
    defaults = _defaults(arguments)
    parts: list[tuple[str, Any, Any]] = [
        (name, Annotated[type(value), tyro.conf.arg(name="")], field(default=value))
        for name, value in (("settings", defaults), ("place", Place()), ("output", Output()))
    ]
    parsed: Any = tyro.cli(
        make_dataclass("Train", parts),
        args=arguments,
        prog="stpn train",
        description=f"Train a model. Settings and defaults of {defaults.task} with "
        f"{defaults.model}; `stpn train TASK --model MODEL --help` shows those of another.",
    )
    return parsed.settings, parsed.place, parsed.output


def _defaults(arguments: list[str]) -> RunConfig:
    file = _value(arguments, "--config")
    settings = {} if file is None else _read(Path(file))
    task = arguments[0] if arguments and not arguments[0].startswith("-") else None
    model = _value(arguments, "--model")
    if task is None:
        by_environment = _value(arguments, "--env") and ENVIRONMENT_TASK
        task = settings.get("task") or by_environment or DEFAULT_TASK
    if settings.get("task", task) != task:
        raise ConfigError(f"{file} configures {settings['task']}, not {task}")
    if settings and model in (None, settings.get("model")):
        return from_dict({**settings, "task": task})
    # another model than the file's: the file's settings, but that model's own size
    settings.pop("hidden_size", None)
    settings.update(task=task, model=model)
    if (protocol := _value(arguments, "--protocol")) is not None:
        settings["protocol"] = protocol
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
