"""Everything that `stpn report` writes, from one directory of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stpn import experiments
from stpn._files import explain_os_errors
from stpn.errors import StpnError
from stpn.report import figures, page, synapses
from stpn.report.grid import Grid, collect
from stpn.report.network import TASK, best_network, networks
from stpn.report.plots import Plot, plots
from stpn.report.tables import LEGEND, Table, tables
from stpn.report.verdicts import TaskVerdict, verdicts
from stpn.runs import Run

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Picture:
    """Figure 5 or 6: of one network."""

    number: int
    name: str
    title: str
    caption: str

    @property
    def stem(self) -> str:
        return f"figure{self.number}-{self.name}"


@dataclass(frozen=True)
class Report:
    """What was built, and where it lies."""

    grid: Grid
    verdicts: list[TaskVerdict]
    tables: list[Table]
    plots: list[Plot]
    pictures: list[Picture]
    files: list[Path]
    page: Path


def build(
    root: str | Path,
    out: str | Path,
    *,
    notes: str = "",
    progress: Progress = lambda _: None,
) -> Report:
    """Read all runs under `root` and write the report into `out`; `notes` is Markdown for it.

    - index.html: the page
    - report.md: verdicts, tables and figures in Markdown
    - tables/: every table as .md, .csv and .html
    - figures/: every figure as .svg and .png
    """
    out = Path(out)
    progress("reading runs")
    grid = collect(root)
    report = Report(grid, verdicts(grid), tables(grid), plots(grid), [], [], out / "index.html")
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
        progress("figures 5 and 6")
        _draw_network(report, out / "figures")
        progress("the page")
        _write(report, out / "report.md", markdown(report, notes))
        exported, not_shown = networks(grid)
        parts = (report.verdicts, report.tables, report.plots, exported, not_shown, notes)
        _write(report, report.page, page.render(grid, *parts))
    return report


def markdown(report: Report, notes: str = "") -> str:
    """The report as one Markdown page, its pictures beside it in figures/."""
    lines = ["# Results", "", "## Verdict by task", ""]
    for verdict in report.verdicts:
        lines.append(f"- **{verdict.title}**: {verdict.headline} ({verdict.completeness}).")
        lines += [f"  - {figures}." for figures in verdict.figures]
        lines += [f"  - {ranking.sentence}" for ranking in verdict.rankings]
    if report.grid.problems:
        lines += ["", "## Problems", "", *(f"- {problem}" for problem in report.grid.problems)]
    if notes.strip():
        lines += ["", "## Notes", "", notes.strip()]
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
    for picture in report.pictures:
        lines += ["", f"### Figure {picture.number}. {picture.title}", ""]
        lines += [f"![{picture.title}](figures/{picture.stem}.svg)", "", picture.caption]
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


def _draw_network(report: Report, directory: Path) -> None:
    """Figures 5 and 6 of the best network of the model that ART is about, if one was saved."""
    for stale in (*directory.glob("figure5-*"), *directory.glob("figure6-*")):
        stale.unlink()
    best = best_network(report.grid, experiments.get(TASK).models[0])
    if best is None:
        return
    run = Run(best.path)
    try:
        reading, rates = synapses.read_synapses(best.path), synapses.read_rates(best.path)
    except StpnError as error:
        report.grid.problems.append(f"figures 5 and 6: {error}")
        return
    sequence = "".join(reading.steps)
    drawn = [
        (
            Picture(5, "synapses", "Effective weights while a sequence is read",
                    synapses.describe(run, f"Efficacy G while {sequence} is read, by")),
            synapses.draw_synapses(reading),
        ),
        (
            Picture(6, "rates", "Learnt rates",
                    synapses.describe(run, "One dot a synapse, one colour a neuron, of")),
            synapses.draw_rates(rates),
        ),
    ]  # fmt: skip
    for picture, figure in drawn:
        report.pictures.append(picture)
        stem = directory / picture.stem
        report.files.extend(figures.save(figure, stem, picture.title, picture.caption))


def _write(report: Report, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    report.files.append(path)
