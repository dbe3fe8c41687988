"""Our numbers beside the paper's, as a small table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from stpn.cli._format import counted, duration, number
from stpn.paper import spread_text
from stpn.summary import RunSummary


def print_summary(summary: RunSummary, path: Path | str, title: str | None = None) -> None:
    print_numbers(summary, title)
    print(f"run: {path}")


def print_numbers(summary: RunSummary, title: str | None = None) -> None:
    """Proficiency and power, ours and the paper's; a shorter training than theirs is said.

    `title`: which run it is (`RunConfig.title`). None: task, model and seed.
    """
    seconds = summary.seconds
    title = title or f"{summary.task} {summary.model} seed {summary.seed}"
    print(
        f"{title} · {counted(summary.done, summary.unit)}"
        + ("" if seconds is None else f" in {duration(seconds)}")
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("here", justify="right")
    theirs = summary.paper or {}
    if theirs:
        table.add_column("paper", justify="right")
    metric = summary.metric.replace("_", " ")
    if not summary.finished:
        metric = metric.replace("test ", "validation ")
    for key, name in (("proficiency", metric), ("power", "power")):
        mean_std = theirs.get(key)
        beside = "-" if mean_std is None else spread_text(mean_std, name)
        table.add_row(name, number(getattr(summary, key), name), *([beside] if theirs else []))
    Console().print(table)
    if summary.share_of_paper < 1:
        length = counted(summary.paper_length, summary.unit)
        print(f"(trained for {summary.done:,} of the paper's {length})")
