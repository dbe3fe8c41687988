"""`stpn report [RUNS]`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from stpn._files import explain_os_errors
from stpn.errors import ConfigError
from stpn.report.verdicts import TaskVerdict


@dataclass(frozen=True)
class Arguments:
    """The paper's tables and figures from runs on disk, ours beside theirs."""

    runs: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Root of run directories, or of exported results."""
    out: Path = Path("report")
    """Where the report goes: index.html, report.md, tables/ and figures/."""
    notes: Path | None = None
    """Markdown file with what else there is to say; it goes below the tables and quotes numbers
    as {art/lstm}, {art/lstm power each} or {paper art/lstm}. None: the file notes.md beside the
    runs, if there is one."""
    docs: Path | None = None
    """Also write results.md and its figures into this directory."""
    readme: Path | None = None
    """Also fill the part of this file between <!-- results --> and <!-- /results -->; its links
    lead to the directory of --docs."""
    json: bool = False
    """Print JSON: verdicts, problems and files."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Arguments, args=arguments, prog="stpn report")
    if options.readme is not None and options.docs is None:
        raise ConfigError("readme: its links lead to the directory of --docs, which is missing")
    from stpn.report import build, publish  # matplotlib takes its time to load
    from stpn.zoo import pretrained

    if options.readme is not None:
        publish.around_results(options.readme)  # before, not after all figures
    notes = read_notes(options.runs, options.notes)
    console = Console(stderr=options.json, soft_wrap=True)
    with console.status("reading runs") as status:
        written = build(
            options.runs, options.out, notes=notes, shelf=pretrained, progress=status.update
        )
    report, files = written.report, written.files
    if options.docs is not None:
        files += publish.write_docs(written, options.docs)
        if options.readme is not None:
            files.append(publish.write_readme(report, options.readme, options.docs))
    if options.json:
        verdicts = {v.task: {"claim": v.claim.value, "headline": v.headline,
                             "complete": v.runs_complete, "wanted": v.runs_wanted}
                    for v in report.verdicts}  # fmt: skip
        content = {"verdicts": verdicts, "problems": report.grid.problems}
        print(json.dumps({**content, "files": [str(path) for path in files]}))
        return 0
    for verdict in report.verdicts:
        console.print(_line(verdict), highlight=False)
    for problem in report.grid.problems:
        console.print(f"[red]problem:[/red] {_escaped(problem)}", highlight=False)
    if not report.grid.groups:
        console.print(
            f"no run was found in {options.runs}: the report has the paper's numbers, and the "
            "trained networks of the package"
        )
    print(f"page: {written.page}")
    return 0


def read_notes(runs: Path, file: Path | None) -> str:
    """What stands in the file of notes, or in the one beside the runs."""
    beside = runs / "notes.md"
    path = file or (beside if beside.is_file() else None)
    if path is None:
        return ""
    with explain_os_errors(f"read {path}"):
        return path.read_text(encoding="utf-8")


def _line(verdict: TaskVerdict) -> str:
    return f"{verdict.title:<40} {verdict.headline} ({verdict.completeness})"


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
