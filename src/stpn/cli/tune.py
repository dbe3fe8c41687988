"""`stpn tune TASK`: search for good settings on Ray Tune."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from stpn import experiments
from stpn._extras import need
from stpn.cli import train
from stpn.cli._format import counted
from stpn.cli._progress import emit
from stpn.errors import ConfigError


@dataclass(frozen=True)
class Tune:
    """Try many settings, give up the poor ones early (ASHA), write the best to a file.

    All flags of `stpn train` apply too and hold for every trial: --epochs 20 --hidden-size 16.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """Task (`stpn list`)."""
    search: tuple[str, ...] = ("lr=1e-4:1e-2:log",)
    """What to vary: NAME=LOW:HIGH, NAME=LOW:HIGH:log, or NAME=A,B,C; names as in `stpn train`."""
    trials: int = 20
    """How many settings to try."""
    metric: Literal["proficiency", "power", "loss"] = "proficiency"
    """What is best in the last row: the highest proficiency, the lowest power or loss."""
    grace: int | None = None
    """Units that every trial may train before it can be given up. None: a ninth of all."""
    reduction: float = 3.0
    """One trial in so many goes on after each rung."""
    jobs: int | None = None
    """Trials at the same time. None: as many as there is room."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto. None: one that runs here or that RAY_ADDRESS names,
    else an own instance."""
    trusted: bool = False
    """Go on with a search that was begun in OUT. Ray keeps it as pickles, and reading those
    executes what is in them: only for your own."""
    out: Path = Path("tune")
    """Where the search is kept: OUT/<task>/<model>/best.json, trials.json."""
    json: bool = False
    """Print JSON, one object a line, and nothing else."""


def run(arguments: list[str]) -> int:
    options, flags = tyro.cli(Tune, args=arguments, prog="stpn tune", return_unknown_args=True)
    if any(flag == "--config" or flag.startswith("--config=") for flag in flags):
        raise ConfigError("--config is a result of tune; give settings as flags")
    threads = [] if any(flag.startswith("--threads") for flag in flags) else ["--threads", "1"]
    config, *_ = train.parse([options.task, *threads, *flags])
    config.check()
    need("ray", extra="ray")
    from stpn.scale import space, tune

    found = tune.search(
        config,
        space.parse(options.search, config),
        trials=options.trials,
        out=options.out,
        metric=options.metric,
        grace=options.grace,
        reduction=options.reduction,
        jobs=options.jobs,
        address=options.address,
        trusted=options.trusted,
        on_trial=_on_trial(config.unit, as_json=options.json),
    )
    length = experiments.get(config.task).length
    command = f"stpn train --config {found.path}"
    if config.total < length:
        command += f" --{config.total_field.replace('_', '-')} {length}"
    if options.json:
        emit("tuned", best=found.best.to_dict(), file=str(found.path), finished=found.finished)
    else:
        _print_trials(found.trials, list(found.trials[0].settings))
        print(f"best settings, with the {counted(config.total, config.unit)} of the search:")
        print(f"  {found.path}\ntrain with them as long as the paper:\n  {command}")
    if not found.finished:
        if not options.json:
            print("interrupted; the same command with --trusted goes on where this one stopped")
        return 128 + signal.SIGINT
    return 0


def _on_trial(unit: str, *, as_json: bool) -> Any:
    def tell(name: str, settings: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        if as_json:
            emit("row", trial=name, settings=dict(settings), **row)
            return
        chosen = "  ".join(f"{key} {_short(value)}" for key, value in settings.items())
        numbers = "  ".join(f"{key} {_short(row[key])}" for key in ("proficiency", "power"))
        print(f"{name}  {chosen}  {unit} {row['step']}  {numbers}", flush=True)

    return tell


def _print_trials(trials: list[Any], names: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in (*names, "step", "proficiency", "power", "loss"):
        table.add_column(name, justify="right")
    for trial in trials:
        values = [trial.settings.get(name) for name in names]
        cells = [*values, *(trial.row[name] for name in ("step", "proficiency", "power", "loss"))]
        table.add_row(*map(_short, cells))
    Console().print(table)
    for trial in trials:
        if trial.error is not None:
            print(f"failed: {trial.settings}\n  {trial.error}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
