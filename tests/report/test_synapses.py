"""Figures 5 and 6 of single runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

import stpn
from stpn.cli import main
from stpn.errors import ConfigError, StpnError
from stpn.plasticity import trace
from stpn.report import synapses
from stpn.tasks import art
from stpn.training.session import restored


def test_efficacies_are_those_of_the_trained_network(trained: Path) -> None:
    reading = synapses.read_synapses(trained / "art/stpnr/seed0", "a1b2c3??b")
    with restored(trained / "art/stpnr/seed0") as trainer:
        expected = trace(trainer.model.core, art.one_hot(art.encode("a1b2c3??b")))
    np.testing.assert_allclose(reading.g, expected.g.numpy(), atol=1e-6)
    assert reading.g.shape == (9, 11, 48)
    assert "".join(reading.steps) == "a1b2c3??b"
    assert reading.groups == ((0, "a–z"), (26, "0–9"), (36, "?"), (37, "h"))
    assert reading.rows[0] == "neuron 1"


def test_one_panel_a_neuron(trained: Path) -> None:
    reading = synapses.read_synapses(trained / "art/stpnr/seed0")
    figure = synapses.draw_synapses(reading)
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 11
    limits = {axes.images[0].norm.vmax for axes in maps}
    assert limits == {np.abs(reading.g).max()}  # one colour scale for all
    shown = maps[3].images[0].get_array()
    np.testing.assert_array_equal(shown, reading.g[:, 3].T)  # synapses down, time across
    assert [label.get_text() for label in maps[0].get_xticklabels()] == list("c9k8j3??k")


def test_gates_and_layers_are_named(trained: Path) -> None:
    run = trained / "art/stpnl/seed0"
    upper = synapses.read_synapses(run, layer=2)
    assert upper.g.shape == (9, 12, 6)
    assert upper.groups == ((0, "layer below"), (3, "h"))
    assert upper.rows[3] == "1, forget gate"
    with pytest.raises(ConfigError, match="between 1 and 2, not 3"):
        synapses.read_synapses(run, layer=3)


def test_familiarity_reads_the_start_of_a_stream(trained: Path) -> None:
    reading = synapses.read_synapses(trained / "familiarity-infinite-r3/stpnf/seed0")
    assert reading.g.shape == (20, 34, 100)
    assert set(reading.steps) == {"n", "r"}
    synapses.draw_synapses(reading)
    with pytest.raises(ConfigError, match="associative retrieval only"):
        synapses.read_synapses(trained / "familiarity-infinite-r3/stpnf/seed0", "a1")


@pytest.mark.parametrize("sequence", ["a!", "A1", ""])
def test_what_is_not_a_sequence_is_refused(trained: Path, sequence: str) -> None:
    with pytest.raises(ConfigError):
        synapses.read_synapses(trained / "art/stpnr/seed0", sequence)


def test_rates_are_the_learnt_ones(trained: Path) -> None:
    rates = synapses.read_rates(trained / "art/stpnr/seed0")
    with restored(trained / "art/stpnr/seed0") as trainer:
        core = trainer.model.core
    for found, learnt in ((rates.lambda_, core.lambda_l0), (rates.gamma, core.gamma_l0)):
        np.testing.assert_array_equal(found, learnt.detach().to(torch.float64).numpy())
    axes = synapses.draw_rates(rates).axes[0]
    dots = [collection.get_offsets() for collection in axes.collections]
    assert [len(points) for points in dots] == [48] * 11
    colours = {(*c.get_facecolor()[0], c.get_paths()[0].vertices.size) for c in axes.collections}
    assert len(colours) == 11  # colour and marker together tell neurons apart


def test_uniform_rates_are_one_dot(trained: Path) -> None:
    rates = synapses.read_rates(trained / "art/ustpnf/seed0")
    axes = synapses.draw_rates(rates).axes[0]
    assert sum(len(collection.get_offsets()) for collection in axes.collections) == 1


@pytest.mark.parametrize("read", [synapses.read_synapses, synapses.read_rates])
def test_a_model_without_such_synapses_is_refused(trained: Path, read) -> None:
    with pytest.raises(StpnError, match="no synapses with lambda and gamma"):
        read(trained / "art/lstm/seed0")


def test_a_network_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    network: Any = stpn.pretrained("art-stpnr")
    rates = synapses.read_rates("art-stpnr")
    np.testing.assert_array_equal(rates.gamma, network.core.gamma_l0.detach().double().numpy())
    assert main(["figure", "synapses", "art-stpnr"]) == 0
    assert capsys.readouterr().out.split() == ["synapses.svg", "synapses.png"]
    assert "Network of the package: art-stpnr." in (tmp_path / "synapses.svg").read_text()
