"""Every backend equals the specification: outputs, final state, power, and every gradient."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity import (
    BACKENDS,
    DTYPES,
    KINDS,
    MASKS,
    NORMS,
    SIDE_BY_SIDE,
    STP,
    Shape,
    assert_near,
    assert_parity,
    backend,
    choose,
    dtypes,
    kinds,
    make_baseline_case,
    make_case,
)
from torch import Tensor

from stpn.ops import backends, reference
from stpn.ops.backends import use_backend

pytestmark = pytest.mark.usefixtures("poisoned_memory", "short_segments")


@backend
@choose(
    "dtype, kind, norm, clamp, power, stp, masks",
    DTYPES, KINDS, NORMS, (None, 0.3), (True, False), rotate=(STP, MASKS),
)  # fmt: skip
def test_every_kernel(backend, dtype, kind, norm, clamp, power, stp, masks) -> None:
    case = make_case(kind, norm=norm, clamp=clamp, stp=stp, masks=masks)
    assert_parity(case, backend, dtype, power)


@backend
@choose(
    "dtype, kind, norm, clamp, power, stp, masks",
    DTYPES, ("f", "r"), NORMS, (None, 0.3), (True, False), rotate=(STP, ("none", "reset")),
)  # fmt: skip
def test_sequences_side_by_side(backend, dtype, kind, norm, clamp, power, stp, masks) -> None:
    case = make_case(kind, SIDE_BY_SIDE, norm=norm, clamp=clamp, stp=stp, masks=masks)
    assert_parity(case, backend, dtype, power)


@choose(
    "dtype, kind, norm, shape, clamp, power, stp, masks",
    DTYPES, ("r", "l"), NORMS, (Shape(), SIDE_BY_SIDE, Shape(2, 40, 37, 11)),
    rotate=((None, 0.3), (True, False), STP, ("none", "reset", "both")),
)  # fmt: skip
def test_association_with_the_new_h(dtype, kind, norm, shape, clamp, power, stp, masks) -> None:
    if shape is SIDE_BY_SIDE and masks == "both":
        masks = "reset"
    options = {"norm": norm, "clamp": clamp, "stp": stp, "masks": masks}
    case = make_case(kind, shape, associate="new", **options)
    if "native" in BACKENDS:
        assert_parity(case, "native", dtype, power)
    # It is another rule: the F of the two differ.
    new, old = (c.run(reference, dtype)["f"] for c in (case, make_case(kind, shape, **options)))
    assert (new - old).abs().max() > 1e-3


@backend
@choose(
    "dtype, kind, shape, power, masks",
    DTYPES,
    ("modulated", "unmodulated", "fast weights"),
    (Shape(1, 1, 0, 1), Shape(3, 7, 0, 5), Shape(2, 20, 0, 17), SIDE_BY_SIDE),
    (True, False),
    rotate=(MASKS,),
)
def test_baselines(backend, dtype, kind, shape, power, masks) -> None:
    if shape is SIDE_BY_SIDE:  # which sequences of unequal length cannot be
        masks = {"lengths": "none", "both": "reset"}.get(masks, masks)
    assert_parity(make_baseline_case(kind, shape, masks=masks), backend, dtype, power)


@pytest.mark.parametrize(
    ("options", "reason"), [({"steps": 2}, "inner loop"), ({"decay": 0.0}, "positive decay")]
)
def test_fast_weights_without_a_kernel_run_on_the_specification(options, reason) -> None:
    case = make_baseline_case("fast weights", Shape(3, 7, 0, 5), masks="both", **options)
    assert_parity(case, "auto", torch.float64)
    with use_backend("native"), pytest.raises(ValueError, match=reason):
        case.run(backends, torch.float64)


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


SHAPES = (
    Shape(1, 1, 1, 1),
    Shape(2, 2, 3, 1),
    Shape(1, 40, 7, 3),  # several checkpoints of F
    Shape(9, 5, 16, 16),
    Shape(5, 9, 37, 11),
    Shape(2, 3, 130, 33),
    Shape(0, 3, 4, 2),
    Shape(0, 3, 4, 40),
)


@backend
@choose(
    "kind, shape, norm, dtype, power, masks",
    KINDS, SHAPES, NORMS, rotate=(DTYPES, (True, False), ("none", "both")),
)  # fmt: skip
def test_shapes(backend, kind, shape, norm, dtype, power, masks) -> None:
    case = make_case(kind, shape, norm=norm, masks=masks, clamp=1.0)
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
    kind = data.draw(st.sampled_from(["f", "r", "l"]))
    # One synapse divided by itself is ±1: in its gradient all cancels but rounding, in any backend.
    inputs = st.integers(2, 20) if kind == "f" and norm else small
    case = make_case(
        kind,
        Shape(data.draw(batch), data.draw(small), data.draw(inputs), data.draw(small)),
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
