"""`stpn eval RUN`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stpn.summary import RunSummary


@dataclass(frozen=True)
class Evaluate:
    """Measure a network again: that of a run, as in its checkpoint, or one of the package."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, which is left as it was, or the name of a network (`stpn list`)."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Evaluate, args=arguments, prog="stpn eval")
    from stpn.cli._results import print_figures, print_summary
    from stpn.zoo import is_shipped, pretrained

    shipped = is_shipped(options.run)
    summary = _shipped(str(options.run)) if shipped else _trained(options.run)
    if options.json:
        print(json.dumps(summary.to_dict(), allow_nan=False))
    elif shipped:
        print_figures(summary)
        print(pretrained.card(str(options.run)))
    else:
        print_summary(summary, options.run)
    return 0


def _trained(path: Path) -> RunSummary:
    from stpn.runs import Run
    from stpn.training import session

    with session.restored(path) as trainer:
        rows = Run.open(path).metrics()
        seconds = rows[-1].get("seconds") if rows else 0.0
        return session.summarise(trainer, trainer.evaluate(), seconds=seconds)


def _shipped(name: str) -> RunSummary:
    from stpn.training import session
    from stpn.zoo import pretrained

    trainer, figures = pretrained.measure(name)
    card = pretrained.card(name)
    summary = session.summarise(trainer, figures, seconds=None)
    return dataclasses.replace(summary, done=card.done, finished=True)
