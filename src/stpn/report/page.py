"""The report as one HTML file: no network, no server, everything inside."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from stpn import __version__, cores
from stpn.report.grid import Grid, is_complete, run_reach
from stpn.report.notes import to_html
from stpn.report.plots import Plot
from stpn.report.style import model_style, task_style
from stpn.report.tables import LEGEND, Table
from stpn.report.verdicts import TaskVerdict, Verdict, percent

SCRIPTS = ("network.js", "plot.js", "viewer.js", "page.js")


def render(
    grid: Grid,
    verdicts: list[TaskVerdict],
    tables: list[Table],
    plots: list[Plot],
    networks: list[dict[str, Any]],
    not_shown: list[str],
    notes: str = "",
) -> str:
    """The whole page. `not_shown`: why networks are missing from the viewer; `notes`: Markdown."""
    data = {
        "models": {model: _model_data(model) for model in _all_models(grid)},
        "figures": [_figure_data(plot) for plot in plots if plot.panels],
        "networks": networks,
    }
    parts = {
        "style": _asset("page.css"),
        "lead": _lead(grid, verdicts),
        "problems": _problems(grid),
        "notes": _notes(notes),
        "notes_link": '<a href="#notes">Notes</a> ' if notes.strip() else "",
        "verdicts": "\n".join(map(_verdict_card, verdicts)),
        "legend": escape(LEGEND),
        "tables": "\n".join(map(_table_section, tables)),
        "figures": "\n".join(map(_figure_section, plots)),
        "viewer": _viewer_section(networks, not_shown),
        "runs": _runs_section(grid),
        "footer": f"Made by <code>stpn report</code> {escape(__version__)}.",
        "data": _embedded(data),
        "script": "\n".join(map(_asset, SCRIPTS)),
    }
    # In one pass: content that happens to look like a placeholder stays as it is.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files("stpn.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _all_models(grid: Grid) -> list[str]:
    return list(dict.fromkeys([*cores.names(), *(model for _, model in grid.groups)]))


def _model_data(model: str) -> dict[str, Any]:
    style = model_style(model)
    return {"name": style.name, "colour": style.colour, "dashes": [2 * d for d in style.dashes]}


def _figure_data(plot: Plot) -> dict[str, Any]:
    return {
        "number": plot.number,
        "name": plot.name,
        "models": plot.models,
        "panels": [_plain(asdict(panel)) for panel in plot.panels],
    }


def _plain(value: Any) -> Any:
    """Arrays as lists of short numbers, NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _lead(grid: Grid, verdicts: list[TaskVerdict]) -> str:
    runs = sum(1 for _ in grid.runs)
    complete = sum(verdict.runs_complete for verdict in verdicts)
    wanted = sum(verdict.runs_wanted for verdict in verdicts)
    return (
        f"The paper's tables and figures, measured again: {runs} runs in "
        f"<code>{escape(str(grid.root))}</code>, {complete} of the {wanted} runs of the paper's "
        "grid complete. Nothing is typed in but the paper's numbers and side experiments in notes."
    )


def _problems(grid: Grid) -> str:
    if not grid.problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in grid.problems)
    count = len(grid.problems)
    title = f"{count} problem{'s' if count > 1 else ''} with the run directory"
    return f'<details class="problems" open><summary>{title}</summary><ul>{items}</ul></details>'


def _notes(notes: str) -> str:
    if not notes.strip():
        return ""
    return (
        '<section id="notes" aria-labelledby="notes-title">\n<h2 id="notes-title">Notes</h2>\n'
        f'<div class="notes">{to_html(notes)}</div>\n</section>'
    )


def _verdict_card(verdict: TaskVerdict) -> str:
    figures = "<br>".join(escape(line).replace(" ± ", "&nbsp;±&nbsp;") for line in verdict.figures)
    sentences = "".join(f"<li>{escape(r.sentence)}</li>" for r in verdict.rankings)
    counts = " · ".join(
        f"{kind.sign} {verdict.counts[kind]} {kind.words}"
        for kind in Verdict
        if kind.sign and verdict.counts[kind]
    )
    kind = f"{verdict.claim.value} partial" if verdict.is_partial else verdict.claim.value
    return (
        f'<li class="{kind}" id="verdict-{escape(verdict.task)}">'
        f"<h3>{escape(verdict.title).replace(' = ', '&nbsp;=&nbsp;')}</h3>"
        f'<p class="headline">{escape(verdict.headline)}</p>'
        f'<p class="figures">{figures}</p><ul>{sentences}</ul>'
        f'<p class="counts">{escape(verdict.completeness)}<br>{escape(counts)}</p></li>'
    )


def _table_section(table: Table) -> str:
    return (
        f"<h3>{escape(table.title)}</h3>"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"{table.html()}</div>"
    )


def _figure_section(plot: Plot) -> str:
    heading = f"Figure {plot.number}. {escape(plot.title)}"
    if not plot.panels:
        return f'<h3>{heading}</h3><p class="about">Not run yet: {", ".join(plot.not_run)}.</p>'
    runs = "".join(f"<li><code>{escape(run)}</code></li>" for run in plot.runs)
    return (
        f'<figure class="plot" aria-label="{heading}"><h3>{heading}</h3>'
        f'<div id="figure-{plot.name}"></div>'
        f'<figcaption class="caption">{escape(plot.full_caption)}</figcaption>'
        f'<details class="runs"><summary>Made of {len(plot.runs)} run'
        f"{'' if len(plot.runs) == 1 else 's'}</summary><ul>{runs}</ul>"
        "</details></figure>"
    )


def _viewer_section(networks: list[dict[str, Any]], not_shown: list[str]) -> str:
    reasons = (
        f'<p class="about">Not in the viewer: {escape("; ".join(not_shown))}.</p>'
        if not_shown
        else ""
    )
    if not networks:
        return (
            "<p>No trained network of the associative retrieval task was found in the run "
            "directory: <code>stpn train art</code> makes one.</p>" + reasons
        )
    return (
        '<p class="lead">A trained network reads a sequence of the associative retrieval task, in '
        "this page, from its exported weights. Write letter-digit pairs, <code>??</code>, and the "
        "letter whose digit is asked for; then step through it and watch the synapses.</p>"
        f'<div class="viewer" id="viewer"></div>{reasons}'
    )


def _runs_section(grid: Grid) -> str:
    rows = []
    for group in sorted(grid.groups.values(), key=lambda g: (g.task, g.model)):
        for run in group.runs:
            summary = run.summary
            state = "complete" if is_complete(run) else f"{percent(run_reach(run))} of the protocol"
            state += "" if summary.finished else ", unfinished"
            cells = [
                task_style(group.task).short,
                model_style(run.model).name,
                str(run.seed),
                f"{summary.done:,} {summary.unit}s, {state}",
                _figure(summary.proficiency),
                _figure(summary.power),
            ]
            body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f"<tr>{body}<td><code>{escape(grid.name(run))}</code></td></tr>")
    if not rows:
        return "<p>No run was found.</p>"
    titles = ("Task", "Model", "Seed", "Length", "Proficiency", "Power", "Where")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    return (
        f'<details class="runs"><summary>All {len(rows)} runs</summary>'
        '<div class="scroll" role="region" tabindex="0" aria-label="All runs"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
