"""Each instruction set that this machine can run gives the specification's numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stpn.nn import STPNf, STPNl, STPNr
from stpn.nn.fast_weights import FastWeights
from stpn.nn.modulated import ModPlast
from stpn.ops.backends import use_backend

_native = pytest.importorskip("stpn._native", reason="the kernels are not built")

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
BATCH, STEPS, INPUTS, HIDDEN = 5, 9, 13, 7  # no multiple of any vector
BATCHES = [BATCH, 16]  # and one that is a multiple of all: sequences side by side
LAYERS = {
    "f": (STPNf, {}),
    "r": (STPNr, {}),
    "r post": (STPNr, {"norm": "post", "stp": "neuron"}),
    "r none": (STPNr, {"norm": None, "nonlinearity": "sigmoid", "stp": "uniform"}),
    "l": (STPNl, {"clamp": 0.4}),
    "modplast": (ModPlast, {}),
    "fast weights": (FastWeights, {}),
}


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = _native.instruction_set()
    yield
    _native.use_instruction_set(before)


def results(layer, x, reset, backend: str) -> list[torch.Tensor]:
    x = x.to(next(layer.parameters()).dtype).requires_grad_()
    with use_backend(backend):
        y, (state,) = layer(x, None, reset)
    total = y.square().sum() + sum(value.sin().sum() for value in state)
    return [y, *state, *torch.autograd.grad(total, [x, *layer.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("instruction_set", _native.instruction_sets())
def test_every_instruction_set_equals_the_specification(
    instruction_set, batch, name, dtype
) -> None:
    kind, options = LAYERS[name]
    layer = kind(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    x = torch.randn(batch, STEPS, INPUTS, dtype=torch.float64)
    reset = torch.rand(batch, STEPS) < 0.2
    expected = results(layer, x.clone(), reset, "reference")
    _native.use_instruction_set(instruction_set)
    assert _native.instruction_set() == instruction_set
    for actual, wanted in zip(
        results(layer.to(dtype), x.clone(), reset, "native"), expected, strict=True
    ):
        assert actual.dtype == dtype
        error = (actual.double() - wanted).abs().max() / (1 + wanted.abs().max())
        assert error <= TOLERANCE[dtype]


@pytest.mark.skipif("avx2" not in _native.instruction_sets(), reason="needs AVX2")
def test_a_backward_pass_needs_the_instruction_set_of_its_forward_pass() -> None:
    _native.use_instruction_set("avx2")
    layer = STPNr(INPUTS, HIDDEN, batch_first=True)
    y, _ = layer(torch.randn(16, STEPS, INPUTS))
    _native.use_instruction_set("baseline")
    with pytest.raises(RuntimeError, match="instruction set of its forward pass"):
        y.sum().backward()


@pytest.mark.skipif("avx512" not in _native.instruction_sets(), reason="needs AVX-512")
@pytest.mark.parametrize("name", ["r", "modplast", "fast weights"])
def test_sequences_side_by_side_run_on_avx2_where_there_is_avx512(name) -> None:
    kind, options = LAYERS[name]
    layer = kind(INPUTS, HIDDEN, batch_first=True, **options)
    x = torch.randn(16, STEPS, INPUTS)
    found = {}
    for instruction_set in ("avx2", "avx512"):
        _native.use_instruction_set(instruction_set)
        found[instruction_set] = results(layer, x.clone(), None, "native")
    assert all(torch.equal(a, b) for a, b in zip(*found.values(), strict=True))


def test_the_best_comes_first_and_the_baseline_is_always_there() -> None:
    sets = _native.instruction_sets()
    assert sets[-1] == "baseline"
    assert sets == [name for name in ("avx512", "avx2", "baseline") if name in sets]


@pytest.mark.parametrize("name", ["", "mmx", "AVX2"])
def test_an_unknown_instruction_set_is_an_error(name: str) -> None:
    before = _native.instruction_set()
    with pytest.raises(ValueError, match=f"'{name}'"):
        _native.use_instruction_set(name)
    assert _native.instruction_set() == before
