"""What figures 1 to 4 show, against the runs they are made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic import write_result

from stpn.report.grid import Grid, collect
from stpn.report.plots import Curve, Plot, plots


def plot(grid: Grid, number: int) -> Plot:
    return plots(grid)[number - 1]


def curve(found: Plot, task: str, model: str) -> Curve:
    panel = next(panel for panel in found.panels if panel.task == task)
    return next(curve for curve in panel.curves if curve.model == model)


def rewrite(path: Path, steps: list[int], values: list[float]) -> None:
    content = json.loads(path.read_text())
    content["curve"] = {"step": steps, "proficiency": values, "power": values}
    path.write_text(json.dumps(content))


def test_centre_and_spread_over_seeds(tmp_path: Path) -> None:
    for seed, values in enumerate([[1.0, 3.0], [2.0, 7.0], [6.0, 5.0]]):
        rewrite(write_result(tmp_path, "maze", "lstm", seed), [0, 100], values)
    found = curve(plot(collect(tmp_path), 1), "maze", "lstm")
    assert found.x.tolist() == [0, 100]
    np.testing.assert_allclose(found.y, [3.0, 5.0])
    deviation = np.std([[1, 3], [2, 7], [6, 5]], axis=0, ddof=1)
    np.testing.assert_allclose(found.low, found.y - deviation)
    np.testing.assert_allclose(found.high, found.y + deviation)


def test_pong_shows_median_and_quartiles(tmp_path: Path) -> None:
    ends = [21.0, 20.0, 19.0, 18.0, -21.0]
    for seed, end in enumerate(ends):
        rewrite(write_result(tmp_path, "pong", "stpnr", seed), [0, 100], [-21.0, end])
    found = curve(plot(collect(tmp_path), 1), "pong", "stpnr")
    assert (found.low[-1], found.y[-1], found.high[-1]) == (18.0, 19.0, 20.0)


def test_seeds_with_other_steps_are_brought_together(tmp_path: Path) -> None:
    rewrite(write_result(tmp_path, "art", "rnn", 0), [0, 10], [0.0, 10.0])
    rewrite(write_result(tmp_path, "art", "rnn", 1), [0, 4, 10], [0.0, 4.0, 10.0])
    found = curve(plot(collect(tmp_path), 1), "art", "rnn")
    np.testing.assert_allclose(found.x, [0, 4, 10])
    np.testing.assert_allclose(found.y, [0, 4, 10])


def test_beyond_the_shortest_seed_the_curve_is_not_solid(tmp_path: Path) -> None:
    rewrite(write_result(tmp_path, "art", "rnn", 0), [0, 10, 20], [0.0, 1.0, 2.0])
    rewrite(write_result(tmp_path, "art", "rnn", 1), [0, 10], [0.0, 3.0])
    found = curve(plot(collect(tmp_path), 1), "art", "rnn")
    assert found.solid_until == 10
    assert found.y.tolist() == [0.0, 2.0, 2.0]
    assert np.isnan(found.low[-1])


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "rnn", 0)
    found = curve(plot(collect(tmp_path), 1), "art", "rnn")
    assert np.isnan(found.low).all()


def test_curves_are_thinned_with_both_ends_kept(tmp_path: Path) -> None:
    write_result(tmp_path, "pong", "lstm", 0, rows=5000)
    found = curve(plot(collect(tmp_path), 1), "pong", "lstm")
    assert len(found.x) <= 200
    assert (found.x[0], found.x[-1]) == (1, 100_000_000)


def test_each_figure_names_its_runs_and_what_is_missing(full_grid: Grid, tmp_path: Path) -> None:
    for found in plots(full_grid):
        assert not found.not_run
        assert found.runs
    write_result(tmp_path, "art", "stpnr", 0)
    write_result(tmp_path, "art", "hebbff", 1)
    main, _, _, ablation = plots(collect(tmp_path))
    assert main.runs == ("art/stpnr/seed0.json",)
    assert ablation.runs == ("art/stpnr/seed0.json", "art/hebbff/seed1.json")
    assert main.not_run == ("Maze", "Pong", "Pendulum")
    assert "Not run yet: Maze, Pong, Pendulum." in main.full_caption


def test_the_caption_says_what_is_incomplete(full_grid: Grid, tmp_path: Path) -> None:
    assert "Incomplete" not in plot(full_grid, 1).full_caption
    for seed in range(5):
        write_result(tmp_path, "art", "stpnr", seed)
    write_result(tmp_path, "art", "lstm", 0)
    write_result(tmp_path, "art", "gru", 0)  # the paper has no such run to fall short of
    for model, reach in (("stpnr", 0.2), ("rnn", 0.5)):
        write_result(tmp_path, "maze", model, 0, reach=reach)
    assert plot(collect(tmp_path), 1).incomplete == (
        "ART (1 of 5 seeds for 1 of 2 models)",
        "Maze (20% to 50% of the paper's length, 1 of 3 seeds)",
    )


def test_unfinished_seeds_are_not_drawn_beside_complete_ones(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "stpnr", 0)
    write_result(tmp_path, "art", "stpnr", 1, reach=0.1, finished=False)
    found = plot(collect(tmp_path), 1)
    assert found.runs == ("art/stpnr/seed0.json",)


def test_main_figures_leave_the_ablation_to_figure_four(full_grid: Grid) -> None:
    main, power, front, ablation = plots(full_grid)
    for found in (main, power, front):
        (art,) = [panel for panel in found.panels if panel.task == "art"]
        assert art.models == {"stpnr", "lstm", "rnn", "modplast", "fastweights"}
        assert [panel.task for panel in found.panels] == ["art", "maze", "pong", "pendulum"]
    assert [panel.task for panel in ablation.panels][:2] == ["art", "maze-ablation"]
    for panel in ablation.panels:
        assert panel.models == {"stpnr", "stpnf", "ustpnr", "ustpnf", "hebbff", "lstm"}


def test_the_ablation_takes_the_lstm_of_the_maze(full_grid: Grid) -> None:
    assert "maze/lstm/seed0.json" in plot(full_grid, 4).runs


def test_models_that_the_paper_did_not_try_are_drawn(tmp_path: Path) -> None:
    write_result(tmp_path, "art", "gru", 0)
    assert plot(collect(tmp_path), 1).models == ["gru"]


def test_power_is_that_of_each_time_step(tmp_path: Path) -> None:
    for seed in range(2):
        summary = {"power_per_step": [1.0 + seed, 2.0, 6.0], "power_stretch": 1}
        write_result(tmp_path, "art", "lstm", seed, summary=summary)
    found = curve(plot(collect(tmp_path), 2), "art", "lstm")
    assert found.x.tolist() == [1, 2, 3]
    np.testing.assert_allclose(found.y, [1.5, 2.0, 6.0])


def test_the_front_has_a_point_per_checkpoint_and_one_per_network(tmp_path: Path) -> None:
    for seed in range(3):
        write_result(tmp_path, "maze", "stpnr", seed, proficiency=100.0 + seed, power=7.0, rows=25)
    ((panel,),) = [plot(collect(tmp_path), 3).panels]
    (cloud,) = panel.clouds
    assert len(cloud.x) == len(cloud.y) == 75
    assert cloud.final_x.tolist() == [100.0, 101.0, 102.0]
    assert cloud.final_y.tolist() == [7.0] * 3
    (reference,) = panel.references
    assert (reference.x, reference.y) == (132.7, 181.1)


def test_power_that_spans_decades_is_on_a_logarithmic_axis(full_grid: Grid) -> None:
    scales = {panel.task: panel.log_y for panel in plot(full_grid, 3).panels}
    assert scales["pendulum"]
    assert not scales["maze"]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_empty_grid_has_no_panels(tmp_path: Path, number: int) -> None:
    found = plot(collect(tmp_path), number)
    assert not found.panels
    assert len(found.not_run) == (5 if number == 4 else 4)


@pytest.mark.parametrize(("number", "mean"), [(1, 98.55), (4, 99.99)])
def test_each_figure_shows_the_number_of_its_own_table(
    full_grid: Grid, number: int, mean: float
) -> None:
    """The paper has two for the STPNr of associative retrieval."""
    panel = plot(full_grid, number).panels[0]
    assert panel.task == "art"
    assert [r.y for r in panel.references if r.model == "stpnr"] == [mean]


def test_a_spread_does_not_go_beyond_what_is_possible(tmp_path: Path) -> None:
    for seed, reward in enumerate((1000.0, 20.0)):
        write_result(tmp_path, "pendulum", "stpnf", seed, proficiency=reward)
    panel = next(p for p in plots(collect(tmp_path))[0].panels if p.task == "pendulum")
    assert np.nanmin(panel.curves[0].low) >= 0
    assert np.nanmax(panel.curves[0].high) <= 1000


def test_rewards_are_running_means(tmp_path: Path) -> None:
    path = write_result(tmp_path, "pendulum", "stpnf", 0)
    content = json.loads(path.read_text())
    steps = list(range(20_000, 1_000_001, 20_000))
    saw = [1000.0 if k % 2 else 0.0 for k in range(50)]
    content["curve"] |= {"step": steps, "proficiency": saw, "power": saw, "loss": saw}
    path.write_text(json.dumps(content))
    panel = next(p for p in plots(collect(tmp_path))[0].panels if p.task == "pendulum")
    values = panel.curves[0].y
    assert values[0] == saw[0]
    assert values[9] == pytest.approx(np.mean(saw[5:10]))


def test_axes_say_what_a_reader_would_miss(tmp_path: Path) -> None:
    write_result(tmp_path, "pong", "stpnr", 0, reach=0.02)
    write_result(tmp_path, "art", "lstm", 0, power=500.0)
    write_result(tmp_path, "art", "stpnr", 0, power=1.0)
    training, power, *_ = plots(collect(tmp_path))
    labels = {panel.task: panel.x_label for panel in training.panels}
    assert labels == {"art": "epoch", "pong": "environment step (paper: 100M)"}
    assert {p.task: p.y_label for p in power.panels}["art"] == "power (log scale)"
