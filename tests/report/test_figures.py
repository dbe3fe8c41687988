"""Figures as files: readable, named, the same every time, nothing clipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from synthetic import write_result

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from stpn.report import figures
from stpn.report.grid import Grid, collect
from stpn.report.plots import Plot, plots
from stpn.report.style import model_style

SMALLEST = 6.0  # points


def texts(figure: Figure) -> list[Text]:
    """All text that is drawn: matplotlib keeps labels of ticks beyond an axis, and hides them."""
    figure.canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            slack = 1e-6 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - slack <= tick.get_loc() <= high + slack:
                    hidden.add(tick.label1)
    found = figure.findobj(Text)
    return [t for t in found if t.get_visible() and t.get_text().strip() and t not in hidden]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def full_plot(request: pytest.FixtureRequest, full_grid: Grid) -> Plot:
    return plots(full_grid)[request.param - 1]


def test_nothing_is_clipped_too_small_or_on_top_of_each_other(full_plot: Plot) -> None:
    figure = figures.draw(full_plot)
    page = figure.bbox
    boxes = []
    for text in texts(figure):
        box = text.get_window_extent()
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside, f"{text.get_text()!r} is clipped"
        assert text.get_fontsize() >= SMALLEST, f"{text.get_text()!r} is too small"
        boxes.append((box, text.get_text()))
    for i, (box, name) in enumerate(boxes):
        for other, other_name in boxes[i + 1 :]:
            overlap_x = min(box.x1, other.x1) - max(box.x0, other.x0)
            overlap_y = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(overlap_x, overlap_y) <= 1, f"{name!r} lies on {other_name!r}"


def test_a_model_has_the_same_colour_everywhere(full_grid: Grid) -> None:
    for plot in plots(full_grid):
        figure = figures.draw(plot)
        legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
        (legend,) = legends
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if text.get_text() == "paper":
                continue
            (model,) = [m for m in plot.models if model_style(m).name == text.get_text()]
            assert to_hex(handle.get_color()).upper() == model_style(model).colour


def test_files_hold_the_names_of_their_runs(full_plot: Plot, tmp_path: Path) -> None:
    words = figures.description(full_plot)
    svg, png = figures.save(figures.draw(full_plot), tmp_path / "figure", "title", words)
    for run in full_plot.runs:
        assert run in words
    text = svg.read_text()
    assert full_plot.runs[-1] in text
    assert re.search(r"<dc:title>title</dc:title>", text)
    with Image.open(png) as picture:
        assert full_plot.runs[0] in picture.text["Description"]
        assert picture.width / figures.PNG_DPI == pytest.approx(figures.TEXT_WIDTH, abs=0.02)


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    for seed in range(2):
        write_result(tmp_path, "art", "hebbff", seed)
    plot = plots(collect(tmp_path))[3]
    first, second = (
        figures.save(figures.draw(plot), tmp_path / name, "t", "d")[0].read_bytes()
        for name in ("a", "b")
    )
    assert first == second


@pytest.mark.parametrize("tasks", [["art"], ["art", "maze"], ["art", "maze", "pong"]])
def test_partial_grids_have_no_empty_panels(tmp_path: Path, tasks: list[str]) -> None:
    for task in tasks:
        write_result(tmp_path, task, "lstm", 0)
    figure = figures.draw(plots(collect(tmp_path))[0])
    assert len(figure.axes) == len(tasks)
    assert all(axes.lines for axes in figure.axes)


def test_a_single_row_of_metrics_is_still_seen(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0, rows=1, reach=0.005, finished=False)
    figure = figures.draw(plots(collect(tmp_path))[0])
    assert any(line.get_marker() not in ("", "None", "D") for line in figure.axes[0].lines)


def test_a_figure_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of its tasks has been run"):
        figures.draw(plots(collect(tmp_path))[0])


def test_a_suffix_in_the_name_is_not_doubled(full_grid: Grid, tmp_path: Path) -> None:
    figure = figures.draw(plots(full_grid)[1])
    paths = figures.save(figure, tmp_path / "a.b.svg", "t", "d")
    assert [path.name for path in paths] == ["a.b.svg", "a.b.png"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (500, "500"), (20_000, "20k"), (1.5e6, "1.5M"), (1e8, "100M")]
)
def test_axes_have_room_for_large_numbers(value: float, text: str) -> None:
    assert figures.short_number(value) == text


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        ((3, 150), [5, 10, 20, 50, 100]),
        ((0.5, 900), [1, 10, 100]),
        ((0.003, 3000), [0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_labels_of_logarithmic_axes_have_room(span, labels) -> None:
    axes = Figure().subplots()
    axes.set_yscale("log")
    axes.set_ylim(*span)
    figures.plain_log_labels(axes)
    assert [tick for tick in axes.get_yticks() if span[0] <= tick <= span[1]] == labels


def test_no_axis_goes_beyond_all_right(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((40.0, 100.0)):
        write_result(tmp_path, "art", "stpnr", seed, proficiency=accuracy)
    plot = next(plot for plot in plots(collect(tmp_path)) if plot.number == 1)
    (axes,) = figures.draw(plot).axes
    assert max(plot.panels[0].curves[0].high) == 100
    assert 104 >= axes.get_ylim()[1] >= 100
