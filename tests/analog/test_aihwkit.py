"""Converted layers beside aihwkit itself, where it is installed: the same laws of noise."""

from __future__ import annotations

import pytest
import torch

import stpn
from stpn import analog
from stpn.analog import cells
from stpn.energy import DeviceProfile, profile

noise = pytest.importorskip("aihwkit.inference.noise.pcm")


@pytest.mark.parametrize("time", [0.0, 3600.0, 86_400.0])
def test_cells_are_as_aihwkit_makes_them(time: float) -> None:
    """Mean and deviation of many cells at each of some conductances, before compensation."""
    torch.manual_seed(0)
    row = torch.tensor([1.0, 0.7, 0.4, 0.1, -0.3, -1.0])
    weight = row.repeat(20_000, 1)
    model = noise.PCMLikeNoiseModel(g_max=25.0)
    programmed, drift = model.apply_programming_noise(weight)
    theirs = model.apply_drift_noise(programmed, drift, time)
    pcm = profile("pcm")
    names = ("programming", "drift", "drift_spread", "flicker")
    device = DeviceProfile(volts=1, siemens=1, **{name: getattr(pcm, name) for name in names})
    draws = torch.randn(4, 2, *weight.shape)
    ours = cells.programmed(weight, device, draws, time)
    if time:  # theirs is compensated outside of the model
        ours = ours * theirs.abs().sum() / ours.abs().sum()
    torch.testing.assert_close(ours.mean(0), theirs.mean(0), atol=3e-3, rtol=0.01)
    torch.testing.assert_close(ours.std(0), theirs.std(0), atol=1e-3, rtol=0.04)


def test_a_converted_lstm_and_linear_layer_hold_such_cells() -> None:
    pcm = profile("pcm")
    device = DeviceProfile(volts=1, siemens=1, programming=pcm.programming)
    model = noise.PCMLikeNoiseModel(g_max=25.0)
    for layer, name in ((stpn.LSTM(64, 64), "weight_hh"), (torch.nn.Linear(64, 256), "weight")):
        converted = analog.convert(layer, device).eval()
        if name == "weight":
            clean, held = layer.weight, converted.conductances()
        else:
            clean, held = layer.weight_hh_l0, converted.layer_parameters("_l0")[name]
        theirs, _ = model.apply_programming_noise(clean.detach())
        ours = (held - clean).detach().std() / clean.std()
        expected = (theirs - clean).detach().std() / clean.std()
        assert ours.item() == pytest.approx(expected.item(), rel=0.1)
