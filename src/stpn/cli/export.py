"""`stpn export RUNS RESULTS`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from stpn.errors import RunError
from stpn.runs import export, find


@dataclass(frozen=True)
class Export:
    """Write runs as small files RESULTS/<task>/<model>/seed<N>.json, their curves thinned."""

    runs: Annotated[Path, tyro.conf.Positional]
    """Root of run directories, or one of them."""
    results: Annotated[Path, tyro.conf.Positional] = Path("results")
    """Where the files go."""
    unfinished: bool = False
    """Also runs that have not finished; their files say so."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Export, args=arguments, prog="stpn export")
    if not options.runs.exists():
        raise RunError(f"{options.runs} does not exist")
    written, skipped, problems = [], [], []
    for found in find(options.runs):
        try:
            if found.status != "finished" and not options.unfinished:
                skipped.append(str(found.path))
                continue
            written.append(str(export(found, options.results)))
        except RunError as error:
            problems.append(str(error))
    if options.json:
        print(json.dumps({"written": written, "unfinished": skipped, "problems": problems}))
    else:
        print(f"{len(written)} runs written below {options.results}")
        for path in skipped:
            print(f"unfinished, left out: {path}")
        for problem in problems:
            print(problem)
    return 1 if problems else 0
