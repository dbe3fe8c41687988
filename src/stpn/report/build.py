"""Everything that `stpn report` writes, from one directory of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from stpn import experiments
from stpn._extras import need
from stpn._files import explain_os_errors, write_atomic
from stpn.errors import RunError
from stpn.report import (
    controls,
    faults,
    figures,
    generalisation,
    memory,
    page,
    robustness,
    synapses,
)
from stpn.report.claims import PaperClaim, claims
from stpn.report.comparison import RULE
from stpn.report.grid import Grid, collect
from stpn.report.network import TASK, Found, find, networks
from stpn.report.plots import Plot, plots
from stpn.report.quotes import fill
from stpn.report.tables import LEGEND, Table, tables
from stpn.report.templates import markdown_text, without_html
from stpn.report.verdicts import TaskVerdict, verdicts

if TYPE_CHECKING:
    from stpn.zoo import Shelf

Progress = Callable[[str], None]

FIRST_OF_DEVICES = 9
"""Number of the first figure of networks on devices."""


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
    """What there is to say about the runs of a directory, before it is drawn or written."""

    grid: Grid
    notes: str  # Markdown
    verdicts: list[TaskVerdict]
    claims: list[PaperClaim]
    tables: list[Table]
    plots: list[Plot]
    pictures: list[Picture]
    networks: dict[str, Found]
    """ART networks by model."""
    no_network: dict[str, str]
    """Why a model has none."""
    study: list[faults.Network] | None = None
    """Networks on devices with faults."""

    @property
    def devices(self) -> str:
        """What the study says, as Markdown."""
        return faults.answer(self.study) if self.study else ""


@dataclass(frozen=True)
class Written:
    """A report on disk."""

    report: Report
    files: list[Path]
    page: Path


def gather(root: str | Path, *, notes: str = "", shelf: Shelf | None = None) -> Report:
    """Read all runs under `root` and judge them.

    `notes` is Markdown that goes into the report and may quote numbers (`stpn.report.quotes`).
    `shelf` has trained networks for the synapse viewer and figures 5 and 6, where results come
    without checkpoints.
    """
    grid = collect(root)
    study = _study(Path(root), grid)
    found, reasons = find(grid, shelf)
    main = found.get(experiments.get(TASK).models[0])
    return Report(
        grid=grid,
        notes=fill(notes, grid),
        verdicts=verdicts(grid),
        claims=claims(grid, None if main is None else synapses.rates_of(main.network.core)),
        tables=[
            *tables(grid),
            *filter(None, [controls.table(grid), memory.table(grid)]),
            *robustness.tables(study or []),
        ],
        plots=[
            *plots(grid),
            *_further(shelf),
            *filter(None, [memory.plot(grid)]),
            *robustness.plots(study or [], FIRST_OF_DEVICES),
        ],
        pictures=_pictures(main),
        networks=found,
        no_network=reasons,
        study=study,
    )


def _study(root: Path, grid: Grid) -> list[faults.Network] | None:
    """That beside the runs; one that is damaged becomes a problem."""
    try:
        return robustness.read(root)
    except RunError as error:
        grid.problems.append(str(error))
        return None


def build(
    root: str | Path,
    out: str | Path,
    *,
    notes: str = "",
    shelf: Shelf | None = None,
    progress: Progress = lambda _: None,
) -> Written:
    """Write the report on all runs under `root` into `out`; the rest is as in `gather`.

    - index.html: the page
    - report.md: verdicts, tables and figures in Markdown
    - tables/: every table as .md, .csv and .html
    - figures/: every figure as .svg and .png
    """
    out = Path(out)
    need("matplotlib", extra="report")  # before anything is written
    progress("reading runs")
    report = gather(root, notes=notes, shelf=shelf)
    written = Written(report, [], out / "index.html")
    with explain_os_errors(f"write the report to {out}"):
        for directory in (out, out / "tables", out / "figures"):
            directory.mkdir(parents=True, exist_ok=True)
        for table in report.tables:
            for suffix, text in (
                ("md", table.markdown()), ("csv", table.csv()), ("html", table.html()),
            ):  # fmt: skip
                _write(written, out / "tables" / f"{table.name}.{suffix}", text)
        for plot in report.plots:
            progress(f"figure {plot.number}")
            _draw(written, plot, out / "figures")
        progress("figures 5 and 6")
        _draw_pictures(written, out / "figures")
        progress("the page")
        _write(written, out / "report.md", markdown(report))
        _write(written, written.page, _page(report))
    return written


def markdown(report: Report) -> str:
    """The report as one Markdown page, its pictures beside it in figures/."""
    lines = ["# Results", "", "## What holds of the paper", ""]
    for claim in report.claims:
        lines.append(f"- **{claim.title}.** *{claim.statement}*")
        lines += [f"  - {line}" for line in claim.evidence]
    lines += ["", RULE, "", "## Verdict by task", ""]
    for verdict in report.verdicts:
        lines.append(f"- **{verdict.title}**: {verdict.headline} ({verdict.completeness}).")
        lines += [f"  - {numbers}." for numbers in verdict.numbers]
        lines += [f"  - {ranking.sentence}" for ranking in verdict.rankings]
    if report.grid.problems:
        problems = (f"- {markdown_text(problem)}" for problem in report.grid.problems)
        lines += ["", "## Problems", "", *problems]
    lines += ["", "## Tables", "", LEGEND]
    for table in report.tables:
        lines += ["", f"### {table.title}", "", table.caption, "", table.markdown().rstrip()]
    if report.devices:
        lines += ["", "## Devices with faults", "", report.devices]
    if report.notes.strip():
        lines += ["", "## Notes", "", without_html(report.notes.strip())]
    lines += ["", "## Figures"]
    shown: list[Plot | Picture] = [*report.plots, *report.pictures]
    for figure in sorted(shown, key=lambda figure: figure.number):
        lines += ["", f"### Figure {figure.number}. {figure.title}", ""]
        picture = f"![{figure.title}](figures/{figure.stem}.svg)"
        if isinstance(figure, Picture):
            lines += [picture, "", markdown_text(figure.caption)]
        elif figure.panels:
            lines += [picture, "", figure.full_caption]
            if figure.runs:
                lines += ["", f"Runs: {', '.join(_by_directory(figure.runs))}."]
        else:
            lines.append(f"Not run yet: {', '.join(figure.not_run)}.")
    return "\n".join(lines) + "\n"


def _further(shelf: Shelf | None) -> list[Plot]:
    """Figures beyond the paper's, of trained networks."""
    subjects = [] if shelf is None else generalisation.of_shelf(shelf)
    return [generalisation.plot(subjects)] if subjects else []


def _by_directory(runs: Iterable[str]) -> list[str]:
    """Names of runs, those of one directory together: `art/lstm/` seed0, seed1."""
    together: dict[str, list[str]] = {}
    for run in map(PurePosixPath, runs):
        parent = run.parent.as_posix().replace("`", "'")  # which would end the code that it is in
        together.setdefault(parent, []).append(markdown_text(run.stem))
    return [f"`{parent}/` {', '.join(names)}" for parent, names in together.items()]


def _page(report: Report) -> str:
    exported, not_shown = networks(report.networks, report.no_network)
    parts = (report.verdicts, report.tables, report.plots, exported, not_shown, report.notes)
    return page.render(report.grid, *parts, claims=report.claims, devices=report.devices)


def _pictures(source: Found | None) -> list[Picture]:
    if source is None:
        return []
    return [
        Picture(5, "synapses", "Effective weights while a sequence is read",
                f"Efficacy G of every synapse while {synapses.EXAMPLE} is read. {source.about}"),
        Picture(6, "rates", "Learnt rates",
                f"One dot a synapse, one colour a neuron. {synapses.RATES} {source.about}"),
    ]  # fmt: skip


def _draw(written: Written, plot: Plot, directory: Path) -> None:
    stem = directory / plot.stem
    if plot.panels:
        picture = figures.draw(plot)
        written.files.extend(figures.save(picture, stem, plot.title, figures.description(plot)))
    else:  # a picture of an earlier report would claim runs that are no longer there
        for suffix in (".svg", ".png"):
            stem.with_suffix(suffix).unlink(missing_ok=True)


def _draw_pictures(written: Written, directory: Path) -> None:
    """Figures 5 and 6 of a network; pictures of another one do not stay."""
    for stale in (*directory.glob("figure5-*"), *directory.glob("figure6-*")):
        stale.unlink()
    report = written.report
    if not report.pictures:
        return
    core = report.networks[experiments.get(TASK).models[0]].network.core
    drawn = (
        synapses.draw_synapses(synapses.read_art(core)),
        synapses.draw_rates(synapses.rates_of(core)),
    )
    for picture, figure in zip(report.pictures, drawn, strict=True):
        stem = directory / picture.stem
        written.files.extend(figures.save(figure, stem, picture.title, picture.caption))


def _write(written: Written, path: Path, text: str) -> None:
    write_atomic(path, text.encode())
    written.files.append(path)
