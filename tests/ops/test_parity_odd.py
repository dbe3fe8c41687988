"""Backends equal the specification on odd arguments, too: strided, zero, cancelling, not finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from parity import (
    SIDE_BY_SIDE,
    Shape,
    assert_near,
    assert_parity,
    backend,
    distance,
    dtypes,
    kinds,
    make_case,
)

import stpn
from stpn.ops import backends, reference
from stpn.ops.backends import use_backend

pytestmark = pytest.mark.usefixtures("poisoned_memory", "short_segments")


@backend
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
def test_strided_and_expanded_arguments(backend, dtype, kind, norm) -> None:
    """Time-first input seen batch first, columns of a larger matrix, a number for a whole layer."""
    case = make_case(kind, norm=norm, masks="both")
    expected = case.run(reference, torch.float64)
    odd = {}
    for name, value in case.tensors.items():
        wide = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1])
        wide[..., ::2] = value
        odd[name] = wide[..., ::2]
    odd["x"] = case.tensors["x"].transpose(0, 1).contiguous().transpose(0, 1)
    reset = case.reset.T.contiguous().T
    with use_backend(backend):
        actual = replace(case, tensors=odd, reset=reset).run(backends, dtype)
    assert_near(actual, expected, dtype)

    uniform = make_case(kind, norm=norm, stp="uniform")
    expanded = {
        n: v.expand_as(uniform.tensors["weight"]) if n in ("lambda_", "gamma") else v
        for n, v in uniform.tensors.items()
    }
    assert_parity(replace(uniform, tensors=expanded), backend, dtype)


@backend
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_synapses_that_are_all_zero(backend, dtype, kind, norm) -> None:
    case = make_case(kind, norm=norm)
    zero = {n: torch.zeros_like(case.tensors[n]) for n in ("weight", "f0", "gamma", "bias")}
    case = replace(case, tensors=case.tensors | zero)
    with use_backend(backend):
        actual = case.run(backends, dtype)
    assert all(value.isfinite().all() for value in actual.values())
    assert_near(actual, case.run(reference, torch.float64), dtype)


@backend
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", [Shape(), SIDE_BY_SIDE], ids=str)
@pytest.mark.parametrize("left", [0.0, 1e-3, 0.1])
def test_a_short_term_part_that_cancels_the_weights(
    backend, dtype, kind, norm, shape, left
) -> None:
    """Rows whose norm is a small part of those of W and F, or zero."""
    case = make_case(kind, replace(shape, steps=1 if shape.batch == 3 else 8), norm=norm)
    f0 = -case.tensors["weight"] * (1 - left * torch.rand_like(case.tensors["f0"]))
    case = replace(case, tensors=case.tensors | {"f0": f0.expand_as(case.tensors["f0"]).clone()})
    assert_parity(case, backend, dtype)


@backend
def test_one_synapse_per_neuron_whose_sign_changes(backend) -> None:
    case = make_case("f", Shape(64, 50, 1, 16), norm="post", bias=False)
    with torch.no_grad():
        tensors = {n: v.float() for n, v in case.tensors.items()}
        expected = case.outputs(reference, tensors, power=False)
        with use_backend(backend):
            actual = case.outputs(backends, tensors, power=False)
    # A norm leaves such a synapse its sign, which rounding decides where it is near zero.
    assert ((actual["y"] - expected["y"]).abs() > 1e-3).float().mean() < 1e-3


@backend
@kinds
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", [Shape(), SIDE_BY_SIDE], ids=str)
def test_what_is_finite_in_the_specification_is_finite(backend, kind, norm, shape) -> None:
    case = make_case(kind, shape, norm=norm, clamp=0.5)
    case.tensors["x"][1, 3, 2] = torch.inf
    with torch.no_grad(), use_backend(backend):
        actual = case.outputs(backends, case.tensors, power=False)
    expected = case.outputs(reference, case.tensors, power=False)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, equal_nan=True, rtol=1e-8, atol=1e-8)


@backend
@kinds
@pytest.mark.parametrize("shape", [Shape(), SIDE_BY_SIDE], ids=str)
def test_an_old_state_may_be_nan(backend, kind, shape) -> None:
    """A sequence that starts afresh, at its first step or later."""
    case = make_case(kind, shape, masks="reset")
    case.reset[:, 4] = True
    expected = case.run(reference, torch.float64)
    dirty = case.tensors["x"].clone()
    dirty[:, 2] = torch.nan
    with use_backend(backend), torch.no_grad():
        actual = case.outputs(backends, case.tensors | {"x": dirty}, power=True)
    for name in ("y", "power"):
        assert distance(actual[name][:, 4:], expected[name][:, 4:]) < 1e-8
    assert distance(actual["f"], expected["f"]) < 1e-8


@backend
@kinds
def test_what_is_masked_may_be_nan(backend, kind) -> None:
    """The old state before a reset, and the padding of x."""
    case = make_case(kind, masks="both")
    reset = case.reset.clone()
    reset[:, 0] = True
    clean = replace(case, reset=reset)
    dirty = {n: v.clone() for n, v in case.tensors.items()}
    for name in ("h0", "c0", "f0"):
        if name in dirty:
            dirty[name].fill_(torch.nan)
    steps = torch.arange(case.tensors["x"].shape[1])
    dirty["x"][steps >= case.lengths.unsqueeze(1)] = torch.nan
    with use_backend(backend):
        actual = replace(clean, tensors=dirty).run(backends, torch.float64)
    assert_near(actual, clean.run(reference, torch.float64), torch.float64)


@backend
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("batch", [3, 16])
def test_a_synapse_that_is_never_used_may_amplify(backend, kind, norm, batch) -> None:
    """Its gradient of F grows beyond float32 on the way back and counts for nothing."""
    shape = Shape(batch, 220, 5, 4)
    case = make_case(kind, shape, norm=norm, clamp=1.0 if norm == "post" else None)
    case.tensors["gamma"] *= 0.1
    case.tensors["lambda_"] *= 0.5
    for name in ("x", "f0"):
        case.tensors[name][..., 1] = 0.0
    case.tensors["lambda_"][:, 1] = 4.0
    expected = case.run(reference, torch.float64)
    with use_backend(backend):
        actual = case.run(backends, torch.float32)
    unused = ("grad of x", "grad of f0")
    assert expected["grad of f0"].abs().max() > torch.finfo(torch.float32).max
    for name in unused:
        del actual[name], expected[name]
    assert_near(actual, expected, torch.float32)


@pytest.mark.parametrize("name", ["STPNf", "STPNr", "STPNl", "HebbFF", "ModPlast", "FastWeights"])
def test_gradients_scale_with_the_loss_up_to_the_bound(name: str) -> None:
    """dL/dF is held to 1e18: below it a scaled loss has scaled gradients, above it finite ones."""
    torch.manual_seed(3)
    core = getattr(stpn, name)(5, 4, batch_first=True)
    x = torch.randn(3, 40, 5)

    def gradients(scale: float) -> list[torch.Tensor]:
        with use_backend("native"):
            loss = core(x)[0].sin().sum() * scale
        return list(torch.autograd.grad(loss, list(core.parameters())))

    ones = gradients(1.0)
    for plain, scaled in zip(ones, gradients(2.0**50), strict=True):
        assert torch.equal(plain * 2.0**50, scaled)
    assert all(gradient.isfinite().all() for gradient in gradients(1e25))
