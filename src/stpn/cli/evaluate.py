"""`stpn eval RUN`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class Evaluate:
    """Measure a network again: that of a run, as in its checkpoint, or one of the package."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, which is left as it was, or the name of a network (`stpn list`)."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Evaluate, args=arguments, prog="stpn eval")
    from stpn._json import json_safe
    from stpn.cli._results import print_figures, print_summary
    from stpn.zoo import is_shipped, pretrained

    shipped = is_shipped(options.run)
    summary = _shipped(str(options.run)) if shipped else _trained(options.run)
    if options.json:
        print(json.dumps(json_safe(summary), allow_nan=False))
    elif shipped:
        print_figures(summary)
        print(pretrained.card(str(options.run)))
    else:
        print_summary(summary, options.run)
    return 0


def _trained(path: Path) -> dict[str, Any]:
    from stpn.runs import Run
    from stpn.training import session

    with session.restored(path) as trainer:
        rows = Run.open(path).metrics()
        seconds = rows[-1]["seconds"] if rows else 0.0
        return session.summarise(trainer, trainer.evaluate(), seconds=seconds)


def _shipped(name: str) -> dict[str, Any]:
    from stpn.training import session
    from stpn.zoo import pretrained

    trainer, figures = pretrained.measure(name)
    card = pretrained.card(name)
    summary = session.summarise(trainer, figures, seconds=0.0)
    return {**summary, "done": card.done, "finished": True, "seconds": None}
