"""A run that other processes train, followed by what they write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stpn.cli._session import Output
from stpn.config import RunConfig
from stpn.errors import RunError
from stpn.runs import Run

LOOK_SECONDS = 1.0


@contextmanager
def follow(run: Run, config: RunConfig, output: Output) -> Iterator[None]:
    """Print each new row of the run's metrics while the context lasts."""
    from stpn.cli._progress import emit

    over = threading.Event()
    shown = len(run.metrics())

    def look() -> None:
        nonlocal shown
        try:
            rows = run.metrics()
        except RunError:  # read while it was written
            return
        # a worker that was lost takes some rows with it, which then come again
        for row in rows[shown:]:
            if output.json:
                emit("row", **row)
            elif not output.quiet:
                names = ("loss", "proficiency", "power")
                facts = (f"{key} {row[key]:.4g}" for key in names if row[key] is not None)
                print(f"{config.unit} {row['step']}/{config.total}", *facts, sep="  ", flush=True)
        shown = max(shown, len(rows))

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            look()
        look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
