"""`stpn eval RUN`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress

from stpn.errors import ConfigError
from stpn.summary import RunSummary

if TYPE_CHECKING:
    from stpn.training.trainer import Trainer
    from stpn.zoo import Card


@dataclass(frozen=True)
class Evaluate:
    """Measure a network again: that of a run, as in its checkpoint, or one of the package."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, which is left as it was, or the name of a network (`stpn list`)."""
    seed: int | None = None
    """Measure with data, episodes and actions of this seed. None: those of the run's final
    evaluation."""
    episodes: int | None = None
    """Episodes that an agent plays. None: as many as in the final evaluation."""
    device: str | None = None
    """Where the network computes: auto, cpu, cuda or another of torch's; agents play on the CPU.
    None: as in training, or on the CPU where that device is not there."""
    env: str | None = None
    """Of a run in an environment module:Name the same name again: the module is imported."""
    device_profile: str | None = None
    """Measure it on devices with faults: a profile (`stpn energy profiles`) or a TOML file."""
    device_seed: int = 0
    """Which devices are drawn."""
    device_time: float = 0.0
    """Seconds since the weights were programmed."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Evaluate, args=arguments, prog="stpn eval")
    from stpn.cli._results import print_numbers, print_summary
    from stpn.zoo import card_of

    card = card_of(options.run)
    summary, title = _measure(options, card)
    if options.json:
        print(json.dumps(summary.to_dict(), allow_nan=False))
    elif card is not None:
        print_numbers(summary, title)
        print(card)
    else:
        print_summary(summary, options.run, title)
    return 0


def _measure(options: Evaluate, card: Card | None) -> tuple[RunSummary, str]:
    """The summary of this measurement, and which run it is of."""
    from stpn.config import from_dict
    from stpn.runs import Run
    from stpn.training import session
    from stpn.zoo import opened, settings_of

    saved = settings_of(options.run)
    with opened(options.run, env=options.env, **_changes(options, saved)) as trainer:
        with _shown(trainer, quiet=options.json), _on_devices(trainer, options):
            evaluation = trainer.evaluate()
        rows = Run.open(options.run).metrics() if card is None else []
        seconds = rows[-1].get("seconds") if rows else None
        summary = session.summarise(trainer, evaluation, seconds=seconds)
        title = trainer.config.title
    if card is not None:
        summary = dataclasses.replace(summary, done=card.done, finished=True)
    if options.seed is not None:
        extras = {**summary.extras, "measured_with_seed": options.seed}
        summary = dataclasses.replace(summary, seed=saved["seed"], extras=extras)
        title = f"{from_dict(saved).title}, measured with seed {options.seed}"
    if options.device_profile is not None:
        devices = {"profile": options.device_profile, "seed": options.device_seed}
        extras = {**summary.extras, "devices": {**devices, "seconds": options.device_time}}
        summary = dataclasses.replace(summary, extras=extras)
        title = f"{title}, on {options.device_profile} devices of seed {options.device_seed}"
    return summary, title


@contextmanager
def _on_devices(trainer: Trainer, options: Evaluate) -> Iterator[None]:
    """The trainer's network on devices, if that is asked for; their noise follows the seed."""
    if options.device_profile is None:
        if options.device_seed or options.device_time:
            raise ConfigError("--device-seed and --device-time need a --device-profile")
        yield
        return
    import torch

    from stpn import analog
    from stpn.energy import profile

    if not 0 <= options.device_time < math.inf:
        raise ConfigError(f"device_time must be >= 0 seconds, not {options.device_time}")
    device, seed = profile(options.device_profile), options.device_seed
    analog.convert(trainer.model, device, seed, time=options.device_time, inplace=True).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _changes(options: Evaluate, saved: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if options.seed is not None:
        changes["seed"] = options.seed
    if options.device is not None:
        changes["device"] = options.device
    if options.episodes is not None:
        if "final_episodes" not in saved:
            raise ConfigError(f"{saved['task']} has no episodes: leave out --episodes")
        changes["final_episodes"] = options.episodes
    return changes


@contextmanager
def _shown(trainer: Trainer, *, quiet: bool) -> Iterator[None]:
    """A bar while the trainer measures, where there is somebody to see it."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)
        trainer.on_measuring = lambda share: bar.update(  # type: ignore[method-assign]
            task, completed=share
        )
        yield
