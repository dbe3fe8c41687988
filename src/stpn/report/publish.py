"""The report inside a repository: a page of documentation and a part of the README.

    written = build("results", "report", notes=...)
    write_docs(written, Path("docs"))                       # docs/results.md, docs/figures/*.svg
    write_readme(written.report, Path("README.md"), Path("docs"))

All of it is made from the runs, so a test can tell whether it is still true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stpn import experiments, paper
from stpn._files import around, explain_os_errors, write_atomic
from stpn.report import memory, robustness
from stpn.report.build import Report, Written, markdown
from stpn.report.comparison import decimals
from stpn.report.grid import Group, Quantity
from stpn.report.plots import MAIN_TASKS, Plot
from stpn.report.style import model_rank, model_style, task_style
from stpn.report.tables import seeds_text
from stpn.report.verdicts import Verdict, judge, number_text, percent

BEGIN, END = "<!-- results -->", "<!-- /results -->"

MAIN_FIGURE = "power-proficiency"


def docs_page(report: Report) -> str:
    """What results.md says."""
    notice = (
        "<!-- Made by `stpn report results --docs docs --readme README.md`; not to be edited. -->"
    )
    return f"{notice}\n\n{markdown(report)}"


def write_docs(written: Written, directory: Path) -> list[Path]:
    """results.md and its figures, memory-suite.md if there are runs of it, and what analog.md says
    of devices, if it is there; pictures of an earlier report do not stay."""
    figures = directory / "figures"
    with explain_os_errors(f"write {directory}"):
        figures.mkdir(parents=True, exist_ok=True)
        for stale in figures.glob("figure*.svg"):
            stale.unlink()
        drawn = [path for path in written.files if path.suffix == ".svg"]
        for path in drawn:
            write_atomic(figures / path.name, path.read_bytes())
        page = directory / "results.md"
        write_atomic(page, docs_page(written.report).encode())
        pages = [page]
        if memory.table(written.report.grid) is not None:
            pages.append(directory / "memory-suite.md")
            write_atomic(pages[-1], memory.page(written.report.grid).encode())
    written_too = [*pages, *(figures / path.name for path in drawn)]
    study = written.report.study
    if study is not None and (directory / "analog.md").is_file():
        written_too += robustness.write_docs(study, directory)
    return written_too


def around_results(readme: Path) -> tuple[str, str]:
    """What stands before and after the results, marks included."""
    with explain_os_errors(f"read {readme}"):
        text = readme.read_text(encoding="utf-8")
    return around(text, BEGIN, END, readme)


def write_readme(report: Report, readme: Path, docs: Path) -> Path:
    """Put the main figure and table between the two marks of a README."""
    before, after = around_results(readme)
    part = readme_part(report, Path(os.path.relpath(docs, readme.parent)))
    write_atomic(readme, f"{before}\n{part}{after}".encode())
    return readme


def readme_part(report: Report, docs: Path) -> str:
    """The main figure and the paper's main comparison, ours beside theirs."""
    lines = []
    plot = next(plot for plot in report.plots if plot.name == MAIN_FIGURE)
    if plot.panels:
        picture = (docs / "figures" / f"{plot.stem}.svg").as_posix()
        lines += [f"![{plot.title}]({picture})", "", _caption(plot), ""]
    used: set[Verdict] = set()
    rows = [row for task in MAIN_TASKS for row in _rows(report, task, used)]
    if rows:
        lines += [
            "| task | model | proficiency | paper | power | paper | seeds |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            " · ".join(f"{v.sign} {v.words}" for v in Verdict if v in used and v.sign)
            + " · ‡ settings that differ from the paper's.",
        ]
    if rest := _rest(report):
        lines += ["", f"Not run or not finished yet: {rest}."]
    page = (docs / "results.md").as_posix()
    lines += [
        "",
        f"All tables, figures, and what was found where numbers differ: [{page}]({page}).",
    ]
    return "\n".join(lines) + "\n"


def _caption(plot: Plot) -> str:
    return f"*{plot.title}: {plot.full_caption[0].lower()}{plot.full_caption[1:]}*"


def _groups(report: Report, task: str) -> list[Group]:
    """The models of the paper's main comparison, with runs or without."""
    main = {f.model for f in paper.numbers() if f.task == task and f.table == "proficiency"}
    return [report.grid.group(task, model) for model in sorted(main, key=model_rank)]


def _rest(report: Report) -> str:
    """What a reader would look for in vain: models whose runs have not come to their end."""
    parts = []
    for task in MAIN_TASKS:
        rest = [group for group in _groups(report, task) if not group.is_finished]
        if rest:
            names = ", ".join(model_style(group.model).name for group in rest)
            parts.append(f"{experiments.get(task).title} ({names})")
    return "; ".join(parts)


def _rows(report: Report, task: str, used: set[Verdict]) -> Iterator[str]:
    """One for each model whose runs are finished; `used` collects the verdicts that it shows."""
    heading = f"{experiments.get(task).title}, {task_style(task).proficiency}"
    for group in _groups(report, task):
        if not group.is_finished:
            continue
        metric = experiments.get(task).metric
        notes = seeds_text(group)
        if group.is_short:
            notes += f", {percent(group.reach)} of the paper's length"
        if group.deviations:
            notes += " ‡"
        cells = [heading, model_style(group.model).name]
        cells += _numbers(group, "proficiency", metric, used)
        cells += _numbers(group, "power", "power", used)
        yield f"| {' | '.join([*cells, notes])} |"
        heading = ""


def _numbers(group: Group, quantity: Quantity, metric: str, used: set[Verdict]) -> list[str]:
    theirs = paper.number(group.task, group.model, metric)
    places = decimals(group.task, quantity)
    estimate = group.estimate(quantity)
    ours = "–" if estimate is None else f"**{number_text(estimate, places)}**"
    beside = "–" if theirs is None else f"{theirs.mean:.{places}f} ± {theirs.std:.{places}f}"
    verdict = judge(group, quantity, theirs)
    used.add(verdict)
    if quantity == "proficiency" and group.late is not None:
        late = number_text(group.late, places)
        ours += f"<br>last fifth {late}" if late not in ours else ""
    return [f"{verdict.sign} {ours}".strip(), beside]
