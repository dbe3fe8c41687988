"""Everything that `stpn report` writes, from one directory of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stpn._files import explain_os_errors
from stpn.report import figures, page
from stpn.report.grid import Grid, collect
from stpn.report.network import networks
from stpn.report.plots import Plot, plots
from stpn.report.tables import LEGEND, Table, tables
from stpn.report.verdicts import TaskVerdict, verdicts

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """What was built, and where it lies."""

    grid: Grid
    verdicts: list[TaskVerdict]
    tables: list[Table]
    plots: list[Plot]
    files: list[Path]
    page: Path


def build(root: str | Path, out: str | Path, *, progress: Progress = lambda _: None) -> Report:
    """Read all runs under `root` and write the report into `out`.

    - index.html: the page
    - report.md: verdicts, tables and figures in Markdown
    - tables/: every table as .md, .csv and .html
    - figures/: every figure as .svg and .png
    """
    out = Path(out)
    progress("reading runs")
    grid = collect(root)
    report = Report(grid, verdicts(grid), tables(grid), plots(grid), [], out / "index.html")
    with explain_os_errors(f"write the report to {out}"):
        for directory in (out, out / "tables", out / "figures"):
            directory.mkdir(parents=True, exist_ok=True)
        for table in report.tables:
            for suffix, text in (
                ("md", table.markdown()), ("csv", table.csv()), ("html", table.html()),
            ):  # fmt: skip
                _write(report, out / "tables" / f"{table.name}.{suffix}", text)
        for plot in report.plots:
            progress(f"figure {plot.number}")
            _draw(report, plot, out / "figures")
        progress("the page")
        exported, not_shown = networks(grid)
        _write(report, out / "report.md", markdown(report))
        html = page.render(grid, report.verdicts, report.tables, report.plots, exported, not_shown)
        _write(report, report.page, html)
    return report


def markdown(report: Report) -> str:
    """The report as one Markdown page, its pictures beside it in figures/."""
    lines = ["# Results", "", "## Verdict by task", ""]
    for verdict in report.verdicts:
        lines.append(f"- **{verdict.title}**: {verdict.headline} ({verdict.completeness}).")
        lines += [f"  - {figures}." for figures in verdict.figures]
        lines += [f"  - {ranking.sentence}" for ranking in verdict.rankings]
    if report.grid.problems:
        lines += ["", "## Problems", "", *(f"- {problem}" for problem in report.grid.problems)]
    lines += ["", "## Tables", "", LEGEND]
    for table in report.tables:
        lines += ["", f"### {table.title}", "", table.caption, "", table.markdown().rstrip()]
    lines += ["", "## Figures"]
    for plot in report.plots:
        lines += ["", f"### Figure {plot.number}. {plot.title}", ""]
        if plot.panels:
            lines += [f"![{plot.title}](figures/{_stem(plot)}.svg)", ""]
            lines += [plot.full_caption, "", f"Runs: {', '.join(f'`{run}`' for run in plot.runs)}"]
        else:
            lines.append(f"Not run yet: {', '.join(plot.not_run)}.")
    return "\n".join(lines) + "\n"


def _stem(plot: Plot) -> str:
    return f"figure{plot.number}-{plot.name}"


def _draw(report: Report, plot: Plot, directory: Path) -> None:
    stem = directory / _stem(plot)
    if plot.panels:
        picture = figures.draw(plot)
        report.files.extend(figures.save(picture, stem, plot.title, figures.description(plot)))
    else:  # a picture of an earlier report would claim runs that are no longer there
        for suffix in (".svg", ".png"):
            stem.with_suffix(suffix).unlink(missing_ok=True)


def _write(report: Report, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    report.files.append(path)
