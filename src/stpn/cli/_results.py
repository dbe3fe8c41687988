"""Our figures beside the paper's, as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stpn.cli._format import duration, figure
from stpn.paper import spread_text


def print_summary(summary: Mapping[str, Any], path: Path | str, title: str | None = None) -> None:
    print_figures(summary, title)
    print(f"run: {path}")


def print_figures(summary: Mapping[str, Any], title: str | None = None) -> None:
    """Proficiency and power, ours and the paper's; a shorter training than theirs is said.

    `title`: which run it is (`RunConfig.title`). None: task, model and seed.
    """
    seconds = summary.get("seconds")
    title = title or f"{summary['task']} {summary['model']} seed {summary['seed']}"
    print(
        f"{title} · {summary['done']:,} {summary['unit']}s"
        + ("" if seconds is None else f" in {duration(seconds)}")
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("here", justify="right")
    theirs = summary.get("paper") or {}
    if theirs:
        table.add_column("paper", justify="right")
    metric = summary["metric"].replace("_", " ")
    if not summary.get("finished", True):
        metric = metric.replace("test ", "validation ")
    for key, name in (("proficiency", metric), ("power", "power")):
        mean_std = theirs.get(key)
        beside = "-" if mean_std is None else spread_text(mean_std, name)
        table.add_row(name, figure(summary.get(key), name), *([beside] if theirs else []))
    Console().print(table)
    done, protocol = summary["done"], summary["protocol"]
    if done < protocol:
        print(f"(trained for {done:,} of the paper's {protocol:,} {summary['unit']}s)")
