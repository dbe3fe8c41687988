"""The kernels where numbers or resources end: no synapses, no threads, much memory, NaN."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from parity import SIDE_BY_SIDE, Case, Shape, assert_parity, make_case
from torch import Tensor

import stpn
from stpn.ops import backends, reference
from stpn.ops.backends import use_backend
from stpn.ops.reference import STPNOptions

_native = pytest.importorskip("stpn._native", reason="the kernels are not built")


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _native.instruction_set()
    _native.use_instruction_set(request.param)
    yield
    _native.use_instruction_set(before)


every_set = pytest.mark.parametrize("instruction_set", _native.instruction_sets(), indirect=True)
norms = pytest.mark.parametrize("norm", [None, "pre", "post"])


def in_a_process(script: str, **environment: str) -> str:
    """What the script prints; the kernels must not take the tests down with them."""
    known = os.environ | {"PYTHONPATH": str(Path(stpn.__file__).parents[1])} | environment
    done = subprocess.run(
        [sys.executable, "-c", script], env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


# --- Sizes and resources ------------------------------------------------------------------------

NO_SYNAPSES = """
import torch
import stpn
from stpn.ops import backends
from stpn.ops.reference import STPNOptions

stpn.use_backend("native")

def of(*size):
    return torch.randn(size, requires_grad=True)

for inputs, hidden, recurrent in [(3, 0, True), (0, 3, False), (0, 0, True)]:
    for norm in (None, "pre", "post"):
        columns = inputs + hidden * recurrent
        options = STPNOptions(recurrent=recurrent, norm=norm)
        shared = of(hidden, columns), of(hidden), of(1, 1), of(1, 1)
        y, f, _ = backends.stpn(
            of(2, 5, inputs), of(2, hidden), of(2, hidden, columns), *shared, options=options
        )
        (y.sum() + f.sum()).backward()
        torch.testing.assert_close(y, shared[1].tanh().expand(2, 5, hidden))
"""


def test_a_layer_without_synapses_is_its_bias() -> None:
    in_a_process(NO_SYNAPSES)


@pytest.mark.parametrize("run", [_native.forward, _native.backward])
@pytest.mark.parametrize("name", ["B", "T", "I", "H"])
def test_sizes_that_cannot_be_are_refused(run, name) -> None:
    call = _native.Call()
    call.B = call.T = call.I = call.H = 1
    setattr(call, name, -1)
    with pytest.raises(ValueError, match="sizes"):
        run(call)


NO_THREADS = """
import ctypes
import torch
import stpn
from stpn import _native

torch.set_num_threads(4)
layer = stpn.STPNr(10, 20, batch_first=True)
x = torch.randn(7, 40, 10)

def results():
    layer.zero_grad()
    y, _ = layer(x)
    y.square().sum().backward()
    return [y, *(p.grad.clone() for p in layer.parameters())]

with stpn.use_backend("native"):
    before = results()
    _native.use_openmp(0, 0, 0)  # plain threads, as in a child of fork
    # Each new thread is to have a stack of 64 TiB, which no system gives.
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(256)
    assert libc.pthread_attr_init(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0
    after = results()
assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
print("the same")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc's way to fail")
@pytest.mark.slow
def test_a_team_that_cannot_start_its_threads_works_in_the_caller() -> None:
    assert in_a_process(NO_THREADS) == "the same"


MUCH_MEMORY = """
import gc
import torch
import stpn

def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

def run(inputs, hidden, steps):
    layer = stpn.STPNr(inputs, hidden, batch_first=True)
    layer(torch.randn(4, steps, inputs))[0].sum().backward()

with stpn.use_backend("native"):
    run(3, 4, 5)
    before = resident()
    run(400, 400, 150)
    print((resident() - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_memory_of_a_large_call_is_given_back() -> None:
    assert int(in_a_process(MUCH_MEMORY, OMP_NUM_THREADS="1")) < 80  # of some 250 MB


# --- The clamp's edge ---------------------------------------------------------------------------


def at_the_clamp(kind: str, shape: Shape, norm: str | None) -> Case:
    """F that sits on the limit: the state starts there, and some updates keep it."""
    case = make_case(kind, shape, norm=norm, clamp=0.5, masks="reset")
    tensors = case.tensors
    tensors["f0"] = tensors["f0"].sign() * torch.tensor([0.25, 0.5, 0.75]).double().repeat(
        tensors["f0"].numel() // 3 + 1
    )[: tensors["f0"].numel()].view_as(tensors["f0"])
    tensors["x"] = tensors["x"].round() * 4.0  # many zeros: no update there
    tensors["lambda_"] = torch.ones_like(tensors["lambda_"])
    return case


@every_set
@pytest.mark.parametrize("shape", [Shape(), SIDE_BY_SIDE], ids=["few", "side by side"])
@pytest.mark.parametrize("kind", ["f", "r", "l"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_the_clamp_passes_a_gradient_at_its_limit(instruction_set, shape, kind, dtype) -> None:
    assert_parity(at_the_clamp(kind, shape, None), "native", dtype)


@every_set
def test_the_clamp_of_modulated_plasticity_passes_a_gradient_at_its_limit(instruction_set) -> None:
    def gradients(backend: str) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        p, h0, w, alpha = (
            torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
            for size in [(2, 6, 5), (2, 5), (5, 5), (5, 5)]
        )
        eta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        hebb = torch.ones(2, 5, 5, dtype=torch.float64).requires_grad_()
        with use_backend(backend):
            y, final, _ = backends.modplast(p, h0, hebb, w, alpha, None, None, eta)
        return torch.autograd.grad(y.sum() + final.sum(), [p, h0, hebb, w, alpha, eta])

    for actual, expected in zip(gradients("native"), gradients("reference"), strict=True):
        torch.testing.assert_close(actual, expected)


# --- Numbers beyond the finite ------------------------------------------------------------------


@every_set
@norms
@pytest.mark.parametrize("kind", ["f", "r", "l"])
@pytest.mark.parametrize("clamp", [None, 0.3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_where_it_does_in_the_specification(
    instruction_set, norm, kind, clamp, value
) -> None:
    for seed, name in enumerate(["x", "h0", "f0", "weight", "bias", "lambda_", "gamma"]):
        for nonlinearity in ["tanh", "relu", "sigmoid"]:
            case = make_case(
                kind, Shape(8, 9, 3, 5), norm=norm, clamp=clamp, masks="reset", seed=seed,
                nonlinearity=nonlinearity,
            )  # fmt: skip
            case.tensors[name].view(-1)[seed] = value
            expected = case.outputs(reference, single(case), True)
            with use_backend("native"):
                actual = case.outputs(backends, single(case), True)
            for output, wanted in expected.items():
                assert torch.equal(actual[output].isfinite(), wanted.isfinite()), (name, output)


def single(case: Case) -> dict[str, Tensor]:
    return {name: tensor.float() for name, tensor in case.tensors.items()}


@every_set
@norms
@pytest.mark.parametrize("kind", ["f", "r"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_a_sequence_that_is_not_finite_changes_no_bit_of_another(
    instruction_set, norm, kind, value, dtype
) -> None:
    def results(spoiled: float | None) -> list[Tensor]:
        case = make_case(kind, SIDE_BY_SIDE, norm=norm)
        leaves = {n: v.to(dtype).detach() for n, v in case.tensors.items()}
        if spoiled is not None:
            leaves["x"][3, 2, 1] = leaves["f0"][5, 1, 2] = spoiled
        for leaf in leaves.values():
            leaf.requires_grad_()
        with use_backend("native"):
            outputs = case.outputs(backends, leaves, True)
        total = sum(value.sum() for value in outputs.values())
        own = [leaves[name] for name in ("x", "h0", "f0")]
        found = [*outputs.values(), *torch.autograd.grad(total, own, materialize_grads=True)]
        kept = [b for b in range(SIDE_BY_SIDE.batch) if b not in (3, 5)]
        return [value.detach()[kept] for value in found]

    for whole, spoiled in zip(results(None), results(value), strict=True):
        assert torch.equal(whole, spoiled)


@every_set
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_weights_whose_squares_overflow_have_the_gradients_of_the_specification(
    instruction_set, norm
) -> None:
    options = STPNOptions(recurrent=True, norm=norm)

    def gradients(backend: str) -> tuple[Tensor, ...]:
        case = make_case("r", Shape(3, 6, 5, 4))
        leaves = {n: v.float() for n, v in case.tensors.items()}
        leaves["weight"][1] = 1e20
        for leaf in leaves.values():
            leaf.requires_grad_()
        names = ("x", "h0", "f0", "weight", "bias", "lambda_", "gamma")
        with use_backend(backend):
            y, f, _ = backends.stpn(*(leaves[name] for name in names), options=options)
        return torch.autograd.grad(y.sum() + f.sum(), [leaves[name] for name in names])

    for actual, expected in zip(gradients("native"), gradients("reference"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
