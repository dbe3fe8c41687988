"""Converted layers beside aihwkit itself: the same laws of noise, the same converters.

Its models are PyTorch. Where it is not installed (its simulator is a long build in C++), its source
is enough: the models are read from there, one module at a time, without what would load the
simulator.

    pip download aihwkit==1.2.0 --no-deps --no-binary :all:    # then unpack it
    STPN_AIHWKIT=aihwkit-1.2.0/src pytest tests/analog/test_aihwkit.py
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import stpn
from stpn import analog
from stpn.analog import cells, lines
from stpn.energy import DeviceProfile, profile

_PACKAGES = (
    "aihwkit", "aihwkit.inference", "aihwkit.inference.noise", "aihwkit.inference.converter",
    "aihwkit.simulator", "aihwkit.simulator.parameters", "aihwkit.simulator.tiles",
)  # fmt: skip


class Aihwkit:
    """Its modules, by the end of their names."""

    noise: Any
    mvm: Any
    io: Any
    enums: Any

    def __init__(self) -> None:
        self.noise = importlib.import_module("aihwkit.inference.noise.pcm")
        self.mvm = importlib.import_module("aihwkit.simulator.tiles.analog_mvm")
        self.io = importlib.import_module("aihwkit.simulator.parameters.io")
        self.enums = importlib.import_module("aihwkit.simulator.parameters.enums")


@pytest.fixture(scope="module")
def aihwkit() -> Iterator[Aihwkit]:
    source = os.environ.get("STPN_AIHWKIT")
    if source is None:
        pytest.importorskip("aihwkit.simulator.rpu_base")
        yield Aihwkit()
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in _PACKAGES:
            package = ModuleType(name)  # its own __init__ would load the simulator
            package.__path__ = [str(Path(source).joinpath(*name.split(".")))]
            patch.setitem(sys.modules, name, package)
        simulator: Any = ModuleType("aihwkit.simulator.rpu_base")  # nothing here calls it
        patch.setitem(sys.modules, simulator.__name__, simulator)
        patch.setattr(sys.modules["aihwkit.simulator"], "rpu_base", simulator, raising=False)
        yield Aihwkit()


@pytest.mark.parametrize("time", [0.0, 3600.0, 86_400.0])
def test_cells_are_as_aihwkit_makes_them(aihwkit: Aihwkit, time: float) -> None:
    """Mean and deviation of many cells at each of some conductances, before compensation."""
    torch.manual_seed(0)
    row = torch.tensor([1.0, 0.7, 0.4, 0.1, -0.3, -1.0])
    weight = row.repeat(20_000, 1)
    model = aihwkit.noise.PCMLikeNoiseModel(g_max=25.0)
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


def test_a_converted_lstm_and_linear_layer_hold_such_cells(aihwkit: Aihwkit) -> None:
    pcm = profile("pcm")
    device = DeviceProfile(volts=1, siemens=1, programming=pcm.programming)
    model = aihwkit.noise.PCMLikeNoiseModel(g_max=25.0)
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


@pytest.mark.parametrize("bits", [6, 8])
def test_converters_round_as_those_of_aihwkit(aihwkit: Aihwkit, bits: int) -> None:
    """Inputs in levels of the largest, sums in levels of the range; some sums lie beyond it."""
    generator = torch.Generator().manual_seed(bits)
    weight = torch.rand(40, 60, generator=generator) * 2 - 1
    weight[:, 0] = 1.0  # so that the scale of each row is 1, as theirs is after mapping
    weight[3] = weight[3].abs()
    u = torch.randn(200, 60, generator=generator)
    u[7] = u[7].abs()
    device = DeviceProfile(volts=1, siemens=1, dac_bits=bits, adc_bits=bits, adc_range=10.0)
    ours = lines.read(weight, u, cells.row_scale(weight).squeeze(1), device)
    settings = aihwkit.io.IOParameters(
        inp_res=1 / (2**bits - 2),
        out_res=1 / (2**bits - 2),
        out_bound=10.0,
        out_noise=0.0,
        noise_management=aihwkit.enums.NoiseManagementType.ABS_MAX,
        bound_management=aihwkit.enums.BoundManagementType.NONE,
    )
    theirs = aihwkit.mvm.AnalogMVM.matmul(weight, u, settings)
    step = 10.0 / (2 ** (bits - 1) - 1) * u.abs().amax(1, keepdim=True)
    assert (ours - u @ weight.t()).abs().max() > 0.1  # rounding and the range can be felt
    off = (ours - theirs).abs() > 1e-4 * step
    assert off.float().mean() < 1e-3  # a sum on the edge of two levels may fall to either
    assert ((ours - theirs).abs() <= 1.001 * step).all()


def test_noise_of_sums_is_that_of_aihwkit(aihwkit: Aihwkit) -> None:
    torch.manual_seed(0)
    weight, u = torch.ones(1, 8), torch.tensor([[0.5, -2.0, 1.0, 0, 0, 0, 0, 0]]).repeat(50_000, 1)
    device = DeviceProfile(volts=1, siemens=1, output_noise=0.04)
    ours = lines.read(weight, u, torch.ones(1), device)
    settings = aihwkit.io.IOParameters(
        inp_res=-1.0, out_res=-1.0, out_noise=0.04, out_bound=-1.0, inp_bound=-1.0,
        noise_management=aihwkit.enums.NoiseManagementType.ABS_MAX,
        bound_management=aihwkit.enums.BoundManagementType.NONE,
    )  # fmt: skip
    theirs = aihwkit.mvm.AnalogMVM.matmul(weight, u, settings)
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.02)
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=2e-3)
