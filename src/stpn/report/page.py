"""The report as one HTML file: no network, no server, everything inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from stpn import __version__, cores
from stpn.report import templates
from stpn.report.claims import PaperClaim
from stpn.report.comparison import RULE
from stpn.report.grid import Grid, is_complete, run_reach
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
    *,
    claims: Sequence[PaperClaim] = (),
    devices: str = "",
) -> str:
    """The whole page. `not_shown`: why networks are missing from the viewer; `notes`, `devices`:
    Markdown."""
    return templates.render(
        "page.html",
        root=str(grid.root),
        runs_found=sum(1 for _ in grid.runs),
        complete=sum(verdict.runs_complete for verdict in verdicts),
        wanted=sum(verdict.runs_wanted for verdict in verdicts),
        problems=grid.problems,
        verdicts=verdicts,
        claims=claims,
        kinds=[kind for kind in Verdict if kind.sign],
        rule=RULE,
        legend=LEGEND,
        tables=tables,
        notes=notes.strip(),
        devices=devices,
        plots=plots,
        networks=networks,
        not_shown=not_shown,
        runs=_runs(grid),
        version=__version__,
        data={
            "models": {model: _model_data(model) for model in _all_models(grid)},
            "figures": [_plot_data(plot) for plot in plots if plot.panels],
            "networks": networks,
        },
        scripts=SCRIPTS,
    )


def _all_models(grid: Grid) -> list[str]:
    return list(dict.fromkeys([*cores.names(), *(model for _, model in grid.groups)]))


def _model_data(model: str) -> dict[str, Any]:
    style = model_style(model)
    return {"name": style.name, "colour": style.colour, "dashes": [2 * d for d in style.dashes]}


def _plot_data(plot: Plot) -> dict[str, Any]:
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


def _runs(grid: Grid) -> list[list[str]]:
    """Every run: task, model, seed, length, proficiency, power, path."""
    rows = []
    for group in sorted(grid.groups.values(), key=lambda g: (g.task, g.model)):
        for run in group.runs:
            done = f"{percent(run_reach(run))} of the paper's length"
            state = "complete" if is_complete(run) else done
            state += "" if run.summary.finished else ", unfinished"
            rows.append(
                [
                    task_style(group.task).short,
                    model_style(run.model).name,
                    str(run.seed),
                    f"{run.summary.done:,} {run.summary.unit}s, {state}",
                    _number(run.summary.proficiency),
                    _number(run.summary.power),
                    grid.name(run),
                ]
            )
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
