"""Figure 7: familiarity networks against R."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import stpn
from stpn.cli import main
from stpn.errors import ConfigError
from stpn.report import generalisation
from stpn.report.generalisation import DISTANCES, Subject
from stpn.tasks import familiarity

SETTINGS = SimpleNamespace(input_size=20, probability=0.5)


def test_rates_are_those_of_a_plain_count() -> None:
    """A network that knows repetitions after two steps, and now and then takes a new vector."""

    def knows_two(x: torch.Tensor) -> torch.Tensor:
        same = torch.zeros(x.shape[:2])
        same[:, 2:] = (x[:, 2:] == x[:, :-2]).all(-1).float()
        same[:, ::50] = 1
        return (same - 0.5).unsqueeze(-1)

    found = generalisation.measure(knows_two, SETTINGS, distances=(2, 5), length=400, seed=3)
    assert found.distances == [2, 5]
    for k, distance in enumerate((2, 5)):
        stream = familiarity.sequence(400, 20, distance, 0.5, seed=3 + distance)
        said = knows_two(stream.x.unsqueeze(0))[0, :, 0] > 0
        counts = {(a, b): 0 for a in (False, True) for b in (False, True)}
        for a, b in zip(said.tolist(), stream.labels.bool().tolist(), strict=True):
            counts[a, b] += 1
        right = counts[True, True] + counts[False, False]
        old, new = (counts[True, b] + counts[False, b] for b in (True, False))
        expected = right / 400, counts[True, True] / old, counts[True, False] / new
        actual = found.accuracy[k], found.true_positives[k], found.false_positives[k]
        assert actual == pytest.approx([100 * share for share in expected], abs=1e-3)
    assert found.true_positives[0] > 99
    assert found.true_positives[1] < 10


def test_the_data_of_the_package_are_of_its_networks() -> None:
    subjects = generalisation.of_shelf(stpn.pretrained)
    known = generalisation._known()
    assert {subject.card.sha256 for subject in subjects} == set(known), (
        "measure again: stpn figure generalisation NAMES... --numbers"
    )
    name = "familiarity-infinite-r3-stpnf"
    numbers = known[stpn.pretrained.card(name).sha256]
    settings = SimpleNamespace(input_size=100, probability=0.5)
    again = generalisation.measure(stpn.pretrained(name), settings, distances=(1, 3))
    for quantity in ("accuracy", "true_positives", "false_positives"):
        at = [getattr(numbers, quantity)[DISTANCES.index(distance)] for distance in (1, 3)]
        assert getattr(again, quantity) == pytest.approx(at, abs=0.3)


def test_the_figure_has_a_column_per_task_and_a_row_per_quantity() -> None:
    plot = generalisation.plot(generalisation.of_shelf(stpn.pretrained))
    assert plot.columns == 3
    assert len(plot.panels) == 9
    assert [panel.mark for panel in plot.panels[:3]] == [3, 3, 6]
    assert all(len(panel.curves) == 6 for panel in plot.panels)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    names = ["familiarity-dataset-r3-stpnr", "familiarity-dataset-r3-lstm"]
    out, numbers = tmp_path / "r", tmp_path / "r.json"
    command = ["figure", "generalisation", *names, "--out", str(out), "--numbers", str(numbers)]
    assert main(command) == 0
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert {entry["network"] for entry in json.loads(numbers.read_text()).values()} == set(names)
    capsys.readouterr()
    assert main(["figure", "generalisation", "art-stpnr"]) != 0
    assert "no R to generalise to" in capsys.readouterr().err


def test_a_network_of_another_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="no R"):
        Subject("maze-lstm").measured()
