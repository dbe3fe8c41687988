"""Every backend equals the specification: outputs, final state, power, and every gradient.

The specification runs in float64; a backend is measured against it in either dtype.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from stpn.ops import backends, reference
from stpn.ops.backends import use_backend
from stpn.ops.reference import STPNOptions

pytestmark = pytest.mark.usefixtures("poisoned_memory", "short_segments")

BACKENDS = ["native"]
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
OPS = {"f": "stpn", "r": "stpn", "l": "stpn_lstm"}


@dataclass(frozen=True)
class Shape:
    batch: int = 3
    steps: int = 7
    inputs: int = 5
    hidden: int = 4


# Whole vectors of sequences, long enough to lie side by side in them (csrc/kernels.cpp).
SIDE_BY_SIDE = Shape(16, 19, 5, 4)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, by name; `tensors` are those with a gradient."""

    kind: str
    options: STPNOptions
    tensors: dict[str, Tensor]
    reset: Tensor | None
    lengths: Tensor | None

    def run(self, module: Any, dtype: torch.dtype, power: bool = True) -> dict[str, Tensor]:
        """Outputs, and the gradients of a random linear function of all of them."""
        leaves = {n: v.to(dtype).detach().requires_grad_() for n, v in self.tensors.items()}
        outputs = self.outputs(module, leaves, power)
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (v * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
            for v in outputs.values()
        )
        gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        named = {f"grad of {n}": g for n, g in zip(leaves, gradients, strict=True)}
        return {n: v.detach() for n, v in outputs.items()} | named

    def outputs(self, module: Any, tensors: dict[str, Tensor], power: bool) -> dict[str, Tensor]:
        names = ("h0", "c0", "f0") if self.kind == "l" else ("h0", "f0")
        y, *final, power_out = getattr(module, OPS[self.kind])(
            tensors["x"],
            *(tensors[name] for name in names),
            tensors["weight"],
            tensors.get("bias"),
            tensors["lambda_"],
            tensors["gamma"],
            options=self.options,
            norm_scale=tensors.get("norm_scale"),
            reset=self.reset,
            lengths=self.lengths,
            power_weight=tensors["power_weight"].detach() if power else None,
        )
        assert (power_out is not None) == power
        named = dict(zip(("c", "f") if self.kind == "l" else ("f",), final, strict=True))
        return {"y": y, **named} | ({"power": power_out} if power else {})


def make_case(
    kind: str,
    shape: Shape = Shape(),  # noqa: B008
    *,
    stp: str = "synapse",
    bias: bool = True,
    norm_scale: bool = False,
    masks: str = "none",
    seed: int = 0,
    **options: Any,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    recurrent = kind != "f"
    columns = shape.inputs + shape.hidden * recurrent
    rows = shape.hidden * (4 if kind == "l" else 1)
    factors = {"synapse": (rows, columns), "neuron": (rows, 1), "uniform": (1, 1)}[stp]

    def draw(*size: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    batch = shape.batch
    tensors = {
        "x": draw(batch, shape.steps, shape.inputs),
        "h0": draw(batch, shape.hidden, scale=0.5),
        "f0": draw(batch, rows, columns, scale=0.3),
        "weight": draw(rows, columns, scale=columns**-0.5),
        "lambda_": torch.rand(factors, generator=generator, dtype=torch.float64),
        "gamma": draw(*factors, scale=0.2),
        "power_weight": torch.rand(columns, generator=generator, dtype=torch.float64),
    }
    if kind == "l":
        tensors["c0"] = draw(batch, shape.hidden, scale=0.5)
    if bias:
        tensors["bias"] = draw(rows, scale=0.3)
    if norm_scale:
        tensors["norm_scale"] = draw(rows)
    reset = lengths = None
    if masks in ("reset", "both"):
        reset = torch.rand(batch, shape.steps, generator=generator) < 0.3
    if masks in ("lengths", "both"):
        lengths = torch.randint(1, shape.steps + 1, (batch,), generator=generator)
    return Case(kind, STPNOptions(recurrent=recurrent, **options), tensors, reset, lengths)


def distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest entry."""
    if not expected.numel():
        return 0.0
    return ((actual.double() - expected).abs().max() / (1 + expected.abs().max())).item()


def assert_near(
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    dtype: torch.dtype,
    allowance: dict[str, float] | None = None,
) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.dtype == dtype, name
        assert value.shape == expected[name].shape, name
        error = distance(value, expected[name])
        allowed = TOLERANCE[dtype] + (allowance or {}).get(name, 0.0)
        assert error <= allowed, f"{name}: {error:.2e} of the largest entry"


def assert_parity(case: Case, backend: str, dtype: torch.dtype, power: bool = True) -> None:
    expected = case.run(reference, torch.float64, power)
    allowance = {}
    if dtype == torch.float32:  # some cases amplify rounding: what it does to the specification
        rounded = case.run(reference, dtype, power)
        allowance = {name: 30 * distance(rounded[name], expected[name]) for name in expected}
    with use_backend(backend):
        actual = case.run(backends, dtype, power)
    assert_near(actual, expected, dtype, allowance)


backend = pytest.mark.parametrize("backend", BACKENDS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
kinds = pytest.mark.parametrize("kind", ["f", "r", "l"])


@backend
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("clamp", [None, 0.3])
@pytest.mark.parametrize("stp", ["synapse", "neuron", "uniform"])
@pytest.mark.parametrize("masks", ["none", "both"])
def test_norm_clamp_granularity_and_masks(backend, dtype, kind, norm, clamp, stp, masks) -> None:
    assert_parity(make_case(kind, norm=norm, clamp=clamp, stp=stp, masks=masks), backend, dtype)


@backend
@dtypes
@pytest.mark.parametrize("kind", ["f", "r"])
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("clamp", [None, 0.3])
@pytest.mark.parametrize("stp", ["synapse", "neuron", "uniform"])
@pytest.mark.parametrize("masks", ["none", "reset"])
@pytest.mark.parametrize("power", [True, False])
def test_sequences_side_by_side(backend, dtype, kind, norm, clamp, stp, masks, power) -> None:
    case = make_case(kind, SIDE_BY_SIDE, norm=norm, clamp=clamp, stp=stp, masks=masks)
    assert_parity(case, backend, dtype, power)


@backend
@dtypes
@kinds
@pytest.mark.parametrize(
    "options",
    [
        {"nonlinearity": "sigmoid"},
        {"nonlinearity": "relu"},
        {"nonlinearity": "relu", "norm": None, "clamp": 0.1, "stp": "neuron"},
        {"norm_over": "layer", "norm": None},
        {"bias": False},
        {"masks": "reset"},
        {"masks": "lengths"},
    ],
    ids=str,
)
def test_further_options(backend, dtype, kind, options) -> None:
    assert_parity(make_case(kind, **{"masks": "both", **options}), backend, dtype)


@dtypes
@kinds
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"norm_over": "layer"}, "norm_over='layer'"),
        ({"norm_scale": True, "norm": "post", "clamp": 0.2}, "norm_scale=True"),
        ({"rule": "oja"}, "rule='oja'"),
        ({"frozen": True}, "frozen"),
    ],
    ids=str,
)
def test_what_has_no_kernel_runs_on_the_specification(kind, dtype, options, reason) -> None:
    case = make_case(kind, masks="both", **options)
    assert_parity(case, "auto", dtype)
    with use_backend("native"), pytest.raises(ValueError, match=re.escape(reason)):
        case.run(backends, dtype)


@backend
@dtypes
@kinds
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1, 1, 1),
        Shape(2, 2, 3, 1),
        Shape(1, 40, 7, 3),  # several checkpoints of F
        Shape(9, 5, 16, 16),
        Shape(5, 9, 37, 11),
        Shape(2, 3, 130, 33),
        Shape(0, 3, 4, 2),
        Shape(0, 3, 4, 40),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("power", [True, False])
def test_shapes(backend, dtype, kind, shape, norm, power) -> None:
    case = make_case(kind, shape, norm=norm, masks="none" if power else "both", clamp=1.0)
    assert_parity(case, backend, dtype, power)


@backend
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("shape", [Shape(5, 23, 9, 6), SIDE_BY_SIDE], ids=str)
def test_segments_change_no_bit(monkeypatch, backend, dtype, kind, norm, shape) -> None:
    case = make_case(kind, shape, norm=norm, masks="reset", clamp=1.0)
    with use_backend(backend):
        several = case.run(backends, dtype)
        monkeypatch.setattr("stpn.ops.operands.SEGMENT_BYTES", 1 << 20)
        one = case.run(backends, dtype)
    for name, value in one.items():
        assert value.equal(several[name]), name


@backend
@dtypes
@pytest.mark.parametrize("stp", ["synapse", "neuron", "uniform"])
@pytest.mark.parametrize("hidden", [1, 12])
def test_one_synapse_per_neuron(backend, dtype, stp, hidden) -> None:
    assert_parity(make_case("f", Shape(2, 3, 1, hidden), stp=stp, norm=None), backend, dtype)


@backend
@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_shape_and_options(backend, data) -> None:
    small, batch = st.integers(1, 20), st.sampled_from([1, 2, 3, 5, 8, 16])
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    # Rounding may carry float32 to the other side of a kink, where the gradient is another one.
    kinks = dtype == torch.float64
    norm = data.draw(st.sampled_from(["pre", "post", None]))
    clamp = data.draw(st.sampled_from([None, 0.1, 1.0] if kinks else [None]))
    relu = kinks and (norm, clamp) != (None, None)  # which would grow without bound
    case = make_case(
        data.draw(st.sampled_from(["f", "r", "l"])),
        Shape(data.draw(batch), data.draw(small), data.draw(small), data.draw(small)),
        norm=norm,
        clamp=clamp,
        nonlinearity=data.draw(st.sampled_from(["tanh", "sigmoid"] + ["relu"] * relu)),
        stp=data.draw(st.sampled_from(["synapse", "neuron", "uniform"])),
        bias=data.draw(st.booleans()),
        masks=data.draw(st.sampled_from(["none", "reset", "lengths", "both"])),
        seed=data.draw(st.integers(0, 2**31)),
    )
    assert_parity(case, backend, dtype)


@backend
@kinds
def test_a_gradient_for_any_choice_of_inputs_and_outputs(backend, kind) -> None:
    """Autograd asks for some gradients only, and gives some only."""
    case = make_case(kind, masks="both")
    names = [name for name in case.tensors if name != "power_weight"]
    outputs = ["y", "f", "power"] + ["c"] * (kind == "l")
    for wanted, used in itertools.product([[n] for n in names] + [names], outputs):
        results = []
        for module, choice in ((reference, "reference"), (backends, backend)):
            leaves = {n: v.clone().requires_grad_(n in wanted) for n, v in case.tensors.items()}
            with use_backend(choice):
                value = case.outputs(module, leaves, power=True)[used]
            if not value.requires_grad:  # as f of nothing that it depends on
                results.append({})
                continue
            inputs = [leaves[n] for n in wanted]
            grads = torch.autograd.grad(value.square().sum(), inputs, materialize_grads=True)
            results.append(dict(zip(wanted, grads, strict=True)))
        assert_near(
            {n: results[1].get(n, torch.zeros_like(case.tensors[n])) for n in wanted},
            {n: results[0].get(n, torch.zeros_like(case.tensors[n])) for n in wanted},
            torch.float64,
        )


@backend
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize(
    ("shape", "masks"), [(Shape(2, 3, 2, 2), "both"), (Shape(4, 8, 2, 1), "reset")], ids=str
)
def test_gradcheck(backend, kind, norm, shape, masks) -> None:
    case = make_case(kind, shape, norm=norm, masks=masks, clamp=2.0)
    names = [name for name in case.tensors if name != "power_weight"]

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        tensors = case.tensors | dict(zip(names, values, strict=True))
        return tuple(case.outputs(backends, tensors, power=True).values())

    with use_backend(backend):
        leaves = [case.tensors[name].clone().requires_grad_() for name in names]
        fast = kind == "l" or shape.steps > 3
        torch.autograd.gradcheck(outputs, leaves, fast_mode=fast, nondet_tol=0.0)


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
@dtypes
@kinds
@pytest.mark.parametrize("norm", ["pre", "post", None])
def test_whole_is_the_same_in_chunks(backend, dtype, kind, norm) -> None:
    case = make_case(kind, Shape(3, 12, 5, 4), norm=norm)
    tensors = {n: v.to(dtype) for n, v in case.tensors.items()}
    with use_backend(backend):
        whole = case.outputs(backends, tensors, power=True)
        parts = []
        for x in tensors["x"].split([1, 7, 4], dim=1):
            part = case.outputs(backends, {**tensors, "x": x}, power=True)
            tensors |= {"h0": part["y"][:, -1], "f0": part["f"]}
            tensors |= {"c0": part["c"]} if kind == "l" else {}
            parts.append(part)
    actual = {n: torch.cat([p[n] for p in parts], 1) for n in ("y", "power")}
    actual |= {n: parts[-1][n] for n in whole if n in ("c", "f")}
    assert_near(actual, {n: whole[n].double() for n in actual}, dtype)


@backend
@kinds
def test_without_gradients_the_numbers_are_the_same(backend, kind) -> None:
    case = make_case(kind, Shape(3, 20, 5, 4), masks="both")
    with use_backend(backend):
        with torch.no_grad():
            plain = case.outputs(backends, case.tensors, power=True)
        recorded = case.run(backends, torch.float64)
        unmetered = case.run(backends, torch.float64, power=False)
    for name, value in plain.items():
        assert torch.equal(value, recorded[name]), name
        if name != "power":
            assert torch.equal(value, unmetered[name]), name


@backend
@dtypes
@pytest.mark.parametrize("kind", ["f", "r"])
@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("stp", ["synapse", "neuron", "uniform"])
def test_steps_in_place(backend, dtype, kind, norm, stp) -> None:
    case = make_case(kind, Shape(5, 1, 7, 6), norm=norm, stp=stp, clamp=0.4)
    t = {n: v.to(dtype) for n, v in case.tensors.items()}
    f = t["f0"].clone()
    with torch.no_grad(), use_backend(backend):
        h, power = backends.stpn_step_(
            t["x"][:, 0], t["h0"], f, t["weight"], t["bias"], t["lambda_"], t["gamma"],
            options=case.options, power_weight=t["power_weight"],
        )  # fmt: skip
    with torch.no_grad():
        expected = case.outputs(reference, case.tensors, power=True)
    actual = {"y": h.unsqueeze(1), "f": f, "power": power.unsqueeze(1)}
    assert_near(actual, expected, dtype)


@backend
@dtypes
@pytest.mark.parametrize("norm", ["pre", "post", None])
def test_gated_steps_in_place(backend, dtype, norm) -> None:
    case = make_case("l", Shape(5, 1, 7, 6), norm=norm, clamp=0.4)
    t = {n: v.to(dtype) for n, v in case.tensors.items()}
    c, f = t["c0"].clone(), t["f0"].clone()
    with torch.no_grad(), use_backend(backend):
        h, power = backends.stpn_lstm_step_(
            t["x"][:, 0], t["h0"], c, f, t["weight"], t["bias"], t["lambda_"], t["gamma"],
            options=case.options, power_weight=t["power_weight"],
        )  # fmt: skip
    with torch.no_grad():
        expected = case.outputs(reference, case.tensors, power=True)
    actual = {"y": h.unsqueeze(1), "c": c, "f": f, "power": power.unsqueeze(1)}
    assert_near(actual, expected, dtype)
