"""Our figures beside the paper's, as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stpn.cli._format import duration, figure
from stpn.paper import spread_text


def print_summary(summary: Mapping[str, Any], path: Path | str) -> None:
    print_figures(summary)
    print(f"run: {path}")


def print_figures(summary: Mapping[str, Any]) -> None:
    """Proficiency and power, ours and the paper's; a shorter training than theirs is said."""
    seconds = summary.get("seconds")
    print(
        f"{summary['task']} · {summary['model']} · seed {summary['seed']} · "
        f"{summary['done']:,} {summary['unit']}s"
        + ("" if seconds is None else f" in {duration(seconds)}")
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("here", justify="right")
    table.add_column("paper", justify="right")
    theirs = summary.get("paper") or {}
    metric = summary["metric"].replace("_", " ")
    if not summary.get("finished", True):
        metric = metric.replace("test ", "validation ")
    for key, name in (("proficiency", metric), ("power", "power")):
        mean_std = theirs.get(key)
        beside = "-" if mean_std is None else spread_text(mean_std, name)
        table.add_row(name, figure(summary.get(key), name), beside)
    Console().print(table)
    done, protocol = summary["done"], summary["protocol"]
    if done < protocol:
        print(f"(trained for {done:,} of the paper's {protocol:,} {summary['unit']}s)")
