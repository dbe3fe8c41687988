"""Everything that `stpn report` writes, from one directory of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from stpn import experiments
from stpn._files import explain_os_errors
from stpn.report import figures, page, synapses
from stpn.report.grid import Grid, collect
from stpn.report.network import TASK, Found, find, networks
from stpn.report.plots import Plot, plots
from stpn.report.tables import LEGEND, Table, tables
from stpn.report.verdicts import TaskVerdict, verdicts

if TYPE_CHECKING:
    from stpn.training.supervised import SequenceModel

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
    shipped: Mapping[str, SequenceModel] = MappingProxyType({}),
    progress: Progress = lambda _: None,
) -> Report:
    """Read all runs under `root` and write the report into `out`.

    `notes` is Markdown for it. `shipped` has ART networks by model, for the synapse viewer and
    figures 5 and 6 where results come without checkpoints. What is written:

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
        found, reasons = find(grid, shipped)
        _draw_network(report, found.get(experiments.get(TASK).models[0]), out / "figures")
        progress("the page")
        _write(report, out / "report.md", markdown(report, notes))
        exported, not_shown = networks(found, reasons)
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


def _draw_network(report: Report, source: Found | None, directory: Path) -> None:
    """Figures 5 and 6 of a network; pictures of another one do not stay."""
    for stale in (*directory.glob("figure5-*"), *directory.glob("figure6-*")):
        stale.unlink()
    if source is None:
        return
    reading = synapses.read_art(source.network.core)
    sequence = "".join(reading.steps)
    drawn = [
        (
            Picture(5, "synapses", "Effective weights while a sequence is read",
                    f"Efficacy G of every synapse while {sequence} is read. {source.about}"),
            synapses.draw_synapses(reading),
        ),
        (
            Picture(6, "rates", "Learnt rates",
                    f"One dot a synapse, one colour a neuron. {source.about}"),
            synapses.draw_rates(synapses.rates_of(source.network.core)),
        ),
    ]  # fmt: skip
    for picture, figure in drawn:
        report.pictures.append(picture)
        stem = directory / picture.stem
        report.files.extend(figures.save(figure, stem, picture.title, picture.caption))


def _write(report: Report, path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    report.files.append(path)
