"""Figures 1 to 4 at paper size: one style, SVG and PNG, each file naming its runs."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stpn._extras import need
from stpn._files import explain_os_errors, write_atomic
from stpn.report.plots import Cloud, Curve, Panel, Plot, Reference, short_number
from stpn.report.style import model_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

TEXT_WIDTH = 6.75  # inches, the width of a page of text in two columns
PANEL_HEIGHT = 1.75
PNG_DPI = 250

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 2.0,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.2,
    "svg.fonttype": "path",  # the same letters on every machine
    "svg.hashsalt": "stpn",  # the same file from the same runs
}


@contextmanager
def paper_style() -> Iterator[None]:
    """matplotlib in the report's style."""
    matplotlib = need("matplotlib", extra="report")
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window and to no global list."""
    need("matplotlib", extra="report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, stem: Path, title: str, description: str) -> list[Path]:
    """Write `stem`.svg and `stem`.png with the words inside the files."""
    if stem.suffix in (".svg", ".png"):
        stem = stem.with_suffix("")
    svg, png = (stem.with_name(f"{stem.name}{suffix}") for suffix in (".svg", ".png"))
    with explain_os_errors(f"write {svg}"), paper_style():
        stem.parent.mkdir(parents=True, exist_ok=True)
        # Once for both files: finding places for all labels takes longer than drawing them.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        about = {"Title": title, "Description": description}
        for path, undated in ((svg, "Date"), (png, "Software")):
            content = io.BytesIO()
            kind = path.suffix.removeprefix(".")
            dpi = PNG_DPI if path == png else "figure"
            figure.savefig(content, format=kind, dpi=dpi, metadata={**about, undated: None})
            write_atomic(path, content.getvalue())
    return [svg, png]


def draw(plot: Plot) -> Figure:
    """The figure of a plot; one without panels is refused, an empty picture says nothing."""
    if not plot.panels:
        raise ValueError(f"figure {plot.number} has no panel: none of its tasks has been run")
    with paper_style():
        count = len(plot.panels)
        columns = plot.columns or (count if count <= 4 else math.ceil(count / 2))
        rows = math.ceil(count / columns)
        width = TEXT_WIDTH if columns > 1 else TEXT_WIDTH / 2
        handles = _legend_handles(plot)
        spare = rows * columns > count  # the legend goes into the empty place, else above
        legend_columns = 1 if spare else _legend_columns(handles, width)
        legend_rows = 0 if spare else math.ceil(len(handles) / legend_columns)
        figure = new_figure(width, rows * PANEL_HEIGHT + 0.1 + 0.18 * legend_rows)
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, plot.panels, strict=False):
            _draw_panel(axes, panel)
        if spare:
            places[count].axis("off")
            places[count].legend(handles=handles, loc="center", labelspacing=0.7)
        else:
            figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns)
        for axes in places[count + 1 :]:
            axes.remove()
        return figure


def description(plot: Plot) -> str:
    runs = f"Runs: {', '.join(plot.runs)}. " if plot.runs else ""
    return f"Figure {plot.number}. {plot.title}. {plot.full_caption} {runs}Data: {plot.digest}."


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title.replace(", ", ",\n"), loc="left")  # a panel is narrow
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label, labelpad=2)
    if panel.log_y:
        axes.set_yscale("log")
    axes.locator_params(axis="x", integer=True, nbins=4)
    if panel.mark is not None:
        axes.axvline(panel.mark, color="#b0b0b0", linewidth=0.8, zorder=1)
    for curve in panel.curves:
        _draw_curve(axes, curve)
    for cloud in panel.clouds:
        _draw_cloud(axes, cloud)
    if panel.curves:
        _draw_final_references(axes, panel)
    else:
        for reference in panel.references:
            _draw_point_reference(axes, reference)
    if panel.log_y:
        plain_log_labels(axes)
    else:
        low, high = axes.dataLim.intervaly
        if panel.y_label == "power" or 0 <= low < 0.3 * high:  # as the page does
            axes.set_ylim(bottom=0)
        if panel.y_label.endswith("(%)"):  # a spread may go beyond all right; room for a mark
            axes.set_ylim(top=min(axes.get_ylim()[1], 104))
    _short_thousands(axes)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    style = model_style(curve.model)
    line = (0, style.dashes) if style.dashes else "-"
    every_seed = curve.x <= curve.solid_until
    marker = "" if every_seed.sum() > 1 else style.marker
    axes.fill_between(
        curve.x, curve.low, curve.high, color=style.colour, alpha=0.18, linewidth=0, zorder=2
    )
    axes.plot(
        curve.x[every_seed], curve.y[every_seed],
        color=style.colour, linestyle=line, marker=marker, markersize=3, zorder=3,
    )  # fmt: skip
    if not every_seed.all():
        rest = ~every_seed
        rest[max(int(every_seed.sum()) - 1, 0)] = True  # joined to the solid part
        axes.plot(
            curve.x[rest], curve.y[rest],
            color=style.colour, linestyle=":", linewidth=0.9, zorder=3,
        )  # fmt: skip


def _draw_cloud(axes: Axes, cloud: Cloud) -> None:
    style = model_style(cloud.model)
    axes.scatter(
        cloud.x, cloud.y, s=7, marker=style.marker, color=style.colour, alpha=0.35, linewidth=0,
        zorder=2,
    )  # fmt: skip
    axes.scatter(
        cloud.final_x, cloud.final_y, s=16, marker=style.marker, color=style.colour,
        edgecolor="black", linewidth=0.5, zorder=4,
    )  # fmt: skip


def _draw_final_references(axes: Axes, panel: Panel) -> None:
    """The paper's figures just right of the curves, side by side so that none hides another."""
    if not panel.references:
        return
    low = min(float(curve.x[0]) for curve in panel.curves)
    high = max(float(curve.x[-1]) for curve in panel.curves)
    span = (high - low) or 1.0
    axes.axvline(high + 0.03 * span, color="#b0b0b0", linewidth=0.5, zorder=1)
    for place, reference in enumerate(panel.references):
        x = high + (0.08 + 0.05 * place) * span
        _draw_diamond(axes, x, reference.y, reference.model, y_error=reference.y_std)
    # The strip at the right is no part of the axis of training: it gets neither line nor ticks.
    start = low - 0.02 * span
    axes.set_xlim(start, high + (0.09 + 0.05 * len(panel.references)) * span)
    axes.set_xticks([tick for tick in axes.get_xticks() if start <= tick <= high])
    axes.spines["bottom"].set_bounds(start, high + 0.03 * span)


def _draw_point_reference(axes: Axes, reference: Reference) -> None:
    assert reference.x is not None
    _draw_diamond(
        axes, reference.x, reference.y, reference.model,
        x_error=reference.x_std, y_error=reference.y_std, fill="none",
    )  # fmt: skip


def _draw_diamond(
    axes: Axes,
    x: float,
    y: float,
    model: str,
    *,
    x_error: float | None = None,
    y_error: float | None = None,
    fill: str = "white",
) -> None:
    axes.errorbar(
        x, y, xerr=x_error, yerr=y_error, marker="D", markersize=3.5, markerfacecolor=fill,
        markeredgewidth=0.9, color=model_style(model).colour, elinewidth=0.7, zorder=5,
        clip_on=False,
    )  # fmt: skip


def _legend_handles(plot: Plot) -> list[Line2D]:
    from matplotlib.lines import Line2D

    points = all(not panel.curves for panel in plot.panels)
    handles = []
    for model in plot.models:
        style = model_style(model)
        line: Any = "none" if points else (0, style.dashes) if style.dashes else "-"
        handles.append(
            Line2D(
                [], [], color=style.colour, linestyle=line, label=style.name,
                marker=style.marker if points else "", markersize=4,
            )
        )  # fmt: skip
    if any(panel.references for panel in plot.panels):
        handles.append(
            Line2D(
                [], [], color="#444444", marker="D", markerfacecolor="none", linestyle="none",
                markersize=3.5, label="paper",
            )
        )  # fmt: skip
    return handles


def _legend_columns(handles: list[Line2D], width: float) -> int:
    """As few rows as the width allows, all about equally long."""
    inches = sum(0.46 + 0.062 * len(str(handle.get_label())) for handle in handles)
    rows = math.ceil(inches / width)
    return math.ceil(len(handles) / rows)


def plain_log_labels(axes: Axes) -> None:
    """1, 2, 5, 10, ... in plain numbers on a scale of few decades, else powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    few = high / low < 10**2.5
    locator = LogLocator(subs=(1.0, 2.0, 5.0), numticks=8) if few else LogLocator(numticks=6)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short_thousands(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    if np.max(np.abs(axes.get_xlim())) >= 10_000:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
