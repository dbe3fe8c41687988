"""Colours that can be told apart, by everyone, on either page."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stpn import cores, paper
from stpn.report.plots import ABLATION_MODELS
from stpn.report.style import (
    DARK_PAGE,
    LIGHT_PAGE,
    TASK_ORDER,
    model_rank,
    model_style,
    task_style,
)

# Machado, Oliveira and Fernandes (2009), full deficiency, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip

TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip
WHITE = np.array([0.95047, 1.0, 1.08883])

MAIN_PANELS = [
    ("stpnr", "lstm", "rnn", "modplast", "fastweights"),
    ("stpnf", "lstm", "rnn", "mlp"),
    ABLATION_MODELS,
]


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    part = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a: str, b: str) -> float:
    dark, light = sorted(float(linear(c) @ TO_XYZ[1]) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("models", MAIN_PANELS)
def test_models_of_a_panel_differ_for_every_kind_of_sight(
    models: tuple[str, ...], sight: str
) -> None:
    seen = {m: lab(np.array(SIGHTS[sight]) @ linear(model_style(m).colour)) for m in models}
    for a, b in itertools.combinations(models, 2):
        distance = np.linalg.norm(seen[a] - seen[b])
        assert distance >= 18, f"{a} and {b} look alike ({distance:.0f})"


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
@pytest.mark.parametrize("model", cores.names())
def test_a_model_stands_out_from_the_page(model: str, page: str) -> None:
    assert contrast(model_style(model).colour, page) >= 2.95


def test_every_model_and_task_has_a_look_of_its_own() -> None:
    assert set(TASK_ORDER) == {figure.task for figure in paper.numbers()}
    styles = [model_style(model) for model in cores.names()]
    assert len({style.colour for style in styles}) == len(styles)
    assert len({style.marker for style in styles}) >= 10  # the uniform forms share their base's


def test_what_is_unknown_is_drawn_under_its_own_name() -> None:
    assert model_style("mine").name == "mine"
    assert task_style("CartPole-v1").short == "CartPole-v1"
    assert sorted(["mine", "stpnr"], key=model_rank) == ["stpnr", "mine"]
