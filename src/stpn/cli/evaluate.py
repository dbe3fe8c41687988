"""`stpn eval RUN`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Evaluate:
    """Measure a run's network, as it is in its checkpoint, again; the run is left as it was."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Evaluate, args=arguments, prog="stpn eval")
    from stpn.cli._results import print_summary
    from stpn.runs import Run
    from stpn.training import session

    with session.restored(options.run) as trainer:
        rows = Run.open(options.run).metrics()
        seconds = rows[-1]["seconds"] if rows else 0.0
        summary = session.summarise(trainer, trainer.evaluate(), seconds=seconds)
    if options.json:
        print(json.dumps(summary))
    else:
        print_summary(summary, options.run)
    return 0
