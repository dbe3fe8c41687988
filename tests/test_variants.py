"""Variants of cores: controls with names of their own."""

from __future__ import annotations

import pytest
import torch

import stpn
from stpn import cores, experiments
from stpn.report.style import model_style
from stpn.tasks.registry import build_network


@pytest.mark.parametrize("name", cores.variants())
def test_a_variant_is_its_base_with_options(name: str) -> None:
    base = cores.base(name)
    core, plain = stpn.build(name, 5, 4), stpn.build(base, 5, 4)
    assert type(core) is type(plain)
    assert core.configuration != plain.configuration
    assert name not in stpn.models()
    assert model_style(name).name.startswith(model_style(base).name + ", ")
    assert (name in cores.STPN) == (base in cores.STPN)
    y, _ = core(torch.randn(3, 2, 5))
    assert y.shape == (3, 2, 4)


@pytest.mark.parametrize(("task", "model"), [("art", "lstm"), ("art", "fastweights")])
def test_a_control_has_the_size_of_its_model(task: str, model: str) -> None:
    networks = [
        build_network(experiments.default_config(task, model=name))
        for name in (model, f"{model}-normalized")
    ]
    first, second = (sum(p.numel() for p in network.parameters()) for network in networks)
    assert first == second
    assert networks[1].core.normalize


def test_settings_of_a_model_are_those_of_its_variants() -> None:
    maze = experiments.default_config("maze", model="stpnr-public")
    assert (maze.norm, maze.clamp) == ("post", 1.0)
    config = experiments.default_config("familiarity-infinite-r3", model="hebbff-normalized")
    assert build_network(config).core.constraint == "clipped"
    config = experiments.default_config("familiarity-infinite-r3", model="ustpnr-public")
    assert build_network(config).core.gamma_l0.abs().max() <= 0.001 / 62
