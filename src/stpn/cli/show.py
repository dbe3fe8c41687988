"""`stpn show RUN`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from stpn.cli._format import counted, duration, number
from stpn.cli._results import print_numbers
from stpn.results import result_of, thin
from stpn.runs import Run
from stpn.summary import RunSummary
from stpn.zoo import card_of


@dataclass(frozen=True)
class Show:
    """What a run is, how far it got, its numbers beside the paper's."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or the name of a network of the package (`stpn list`)."""
    json: bool = False
    """Print JSON: status, configuration, summary, last row; of a network its card."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Show, args=arguments, prog="stpn show")
    if (card := card_of(options.run)) is not None:
        print(json.dumps(asdict(card)) if options.json else card)
        return 0
    found = Run.open(options.run)
    result, rows, status = result_of(found), found.metrics(), found.status
    if options.json:
        content = {"status": status, "config": found.config, "summary": result.summary.to_dict()}
        print(json.dumps({**content, "last": rows[-1] if rows else None}))
        return 0
    print(f"{found.path}: {status}")
    print_numbers(result.summary)
    if result.asked is not None and status != "finished":
        print(f"{result.summary.done:,} of {counted(result.asked, result.summary.unit)} done")
    if status != "finished" and rows:
        print("(from the last row of its metrics, not the final measurement)")
    if rows:
        print(_curve(rows, result.summary))
    settings = ", ".join(f"{key}={value}" for key, value in found.config.items())
    print(f"settings: {settings}")
    if found.tensorboard.exists():
        print(f"curves: tensorboard --logdir {found.tensorboard}")
    else:
        print("no TensorBoard events (they need: pip install 'stpn-torch[tensorboard]')")
    if status in ("stopped", "new"):
        print(f"go on with:\n  stpn resume {found.path}")
    return 0


BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def _curve(rows: list[dict[str, Any]], summary: RunSummary) -> str:
    """Proficiency over training in one line of characters."""
    values = [row["proficiency"] for row in rows if row.get("proficiency") is not None]
    if not values:
        return ""
    shown = [values[i] for i in thin(len(values), WIDTH)]
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    line = "".join(BLOCKS[round((value - low) * scale)] for value in shown)
    name = summary.metric.replace("test_", "validation ").replace("_", " ")
    return (
        f"{name} {number(low, name)} {line} {number(high, name)}, last {number(values[-1], name)} "
        f"({counted(len(rows), 'row')}, {duration(rows[-1].get('seconds'))})"
    )
