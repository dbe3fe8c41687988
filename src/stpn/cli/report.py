"""`stpn report [RUNS]`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from stpn._files import explain_os_errors
from stpn.report.verdicts import TaskVerdict


@dataclass(frozen=True)
class Arguments:
    """The paper's tables and figures from runs on disk, ours beside theirs."""

    runs: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Root of run directories, or of exported results."""
    out: Path = Path("report")
    """Where the report goes: index.html, report.md, tables/ and figures/."""
    notes: Path | None = None
    """Markdown file with what else there is to say; it goes below the verdicts."""
    json: bool = False
    """Print JSON: verdicts, problems and files."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Arguments, args=arguments, prog="stpn report")
    from stpn.report import build  # matplotlib takes its time to load

    notes = ""
    if options.notes is not None:
        with explain_os_errors(f"read {options.notes}"):
            notes = options.notes.read_text(encoding="utf-8")
    console = Console(stderr=options.json, soft_wrap=True)
    with console.status("reading runs") as status:
        report = build(options.runs, options.out, notes=notes, progress=status.update)
    if options.json:
        verdicts = {v.task: {"claim": v.claim.value, "headline": v.headline,
                             "complete": v.runs_complete, "wanted": v.runs_wanted}
                    for v in report.verdicts}  # fmt: skip
        files = [str(path) for path in report.files]
        print(json.dumps({"verdicts": verdicts, "problems": report.grid.problems, "files": files}))
        return 0
    for verdict in report.verdicts:
        console.print(_line(verdict), highlight=False)
    for problem in report.grid.problems:
        console.print(f"[red]problem:[/red] {_escaped(problem)}", highlight=False)
    if not report.grid.groups:
        console.print(
            f"no run was found in {options.runs}: the report shows the paper's figures alone"
        )
    print(f"page: {report.page}")
    return 0


def _line(verdict: TaskVerdict) -> str:
    return f"{verdict.title:<40} {verdict.headline} ({verdict.completeness})"


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
