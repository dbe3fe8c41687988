"""`stpn watch RUN`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Watch:
    """One episode of a trained agent as GIF or MP4, with the power of its core at each step."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or the name of a network of the package (`stpn list`)."""
    out: Path | None = None
    """File to write, .gif or .mp4. None: episode.gif in the run, or NETWORK.gif here."""
    seed: int = 0
    """Which episode."""
    start: int = 1
    """First step that is shown."""
    steps: int = 1000
    """Longest part of the episode that is shown."""
    fps: float | None = None
    """Steps per second. None: the task's own speed."""
    greedy: bool = False
    """Take the most likely actions, or with --no-greedy sampled ones. Neither: as the task
    measures."""
    env: str | None = None
    """Of a run in an environment module:Name the same name again: the module is imported."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Watch, args=arguments, prog="stpn watch")
    from stpn import watch
    from stpn.zoo import is_shipped

    said = {"--greedy", "--no-greedy"} & set(arguments)
    beside = Path(f"{options.run}.gif") if is_shipped(options.run) else options.run / "episode.gif"
    watched = watch.record(
        options.run,
        options.out or beside,
        seed=options.seed,
        start=options.start,
        steps=options.steps,
        fps=options.fps,
        greedy=options.greedy if said else None,
        env=options.env,
    )
    if options.json:
        print(json.dumps(dataclasses.asdict(watched)))
    else:
        end = "" if watched.whole else " (the episode went on)"
        since = f" from step {options.start}" if options.start > 1 else ""
        print(
            f"{watched.steps} steps{since}{end}, reward {watched.reward:g}, "
            f"mean power {watched.power:.4g}: {watched.path}"
        )
    return 0
