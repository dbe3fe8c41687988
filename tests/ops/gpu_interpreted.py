"""The GPU kernels in Triton's interpreter, on the CPU, equal the specification.

Run by test_gpu.py in a process of its own: Triton must be told before it is imported.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from parity import OPS, Case, Shape, assert_near, distance, make_baseline_case, make_case
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import stpn as package
from stpn.ops import reference
from stpn.ops.fast_weights import triton as fast_weights
from stpn.ops.gpu import plan
from stpn.ops.modplast import triton as modplast
from stpn.ops.reference import STPNOptions
from stpn.ops.stpn import triton as stpn

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # Where a tile is masked, the interpreter computes with whatever is there.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SMALL = Shape(2, 5, 5, 3)  # two segments; rows and columns that are no power of two


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the network were large: several blocks of rows and of columns."""
    monkeypatch.setattr(plan, "on_chip", lambda *args, **options: None)
    monkeypatch.setattr(plan, "rows_in_memory", lambda gated: plan.Tile(8 if gated else 2, 4, 0, 1))
    monkeypatch.setattr(plan, "tile_in_memory", lambda gated: plan.Tile(8 if gated else 2, 4, 0, 1))


def assert_parity(case: Case, power: bool = True) -> None:
    expected = case.run(reference, torch.float64, power)
    rounded = case.run(reference, torch.float32, power)
    allowance = {name: 30 * distance(rounded[name], expected[name]) for name in expected}
    assert_near(case.run(stpn, torch.float32, power), expected, torch.float32, allowance)


# Each pair of these occurs with each kind of neuron and each norm, in one regime or the other.
OPTIONS: list[dict[str, Any]] = [
    {"masks": "both", "clamp": 0.3, "stp": "synapse", "power": True},
    {"masks": "none", "clamp": None, "stp": "neuron", "power": False, "bias": False},
    {"masks": "reset", "clamp": 0.3, "stp": "uniform", "power": True, "nonlinearity": "sigmoid"},
    {"masks": "lengths", "clamp": 0.3, "stp": "neuron", "power": False, "nonlinearity": "relu"},
]
GRID = list(itertools.product(["f", "r", "l"], ["pre", "post", None]))


def case_of(kind: str, norm: str | None, options: dict[str, Any]) -> tuple[Case, bool]:
    options = dict(options)
    power = options.pop("power")
    return make_case(kind, SMALL, norm=norm, **options), power


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_on_chip(kind: str, norm: str | None, options: dict[str, Any]) -> None:
    assert_parity(*case_of(kind, norm, options))


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]], ids=str)
@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_in_memory(kind: str, norm: str | None, options: dict[str, Any]) -> None:
    assert_parity(*case_of(kind, norm, options))


def test_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "on_chip", lambda *args, **options: plan.Tile(2, 8, 2, 1))
    assert_parity(make_case("f", SMALL, masks="both"))


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
def test_several_sequences_in_a_program(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, regime: str
) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    monkeypatch.setattr(plan, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(plan, "PROGRAMS_IN_MEMORY", 1)
    assert_parity(make_case("r", Shape(3, 4, 3, 2), masks="both"))


@pytest.mark.parametrize("shape", [Shape(1, 1, 1, 1), Shape(0, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("regime", ["on chip", "in memory"])
def test_smallest_shapes(request: pytest.FixtureRequest, shape: Shape, regime: str) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    for kind in ("f", "r", "l"):
        assert_parity(make_case(kind, shape, norm="post", clamp=1.0))


def test_strided_and_expanded_arguments() -> None:
    case = make_case("r", SMALL, stp="uniform", masks="reset")
    expected = case.run(reference, torch.float64)
    odd = {}
    for name, value in case.tensors.items():
        wide = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1])
        wide[..., ::2] = value
        odd[name] = wide[..., ::2]
    odd["x"] = case.tensors["x"].transpose(0, 1).contiguous().transpose(0, 1)
    assert_near(replace(case, tensors=odd).run(stpn, torch.float32), expected, torch.float32)


def test_a_start_of_one_zero_for_all() -> None:
    case = make_case("l", SMALL)
    zero = torch.zeros((), dtype=torch.float64)
    starts = {name: zero.expand(case.tensors[name].shape) for name in ("h0", "c0", "f0")}
    assert_parity(replace(case, tensors=case.tensors | starts))


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
def test_what_is_masked_may_be_nan(request: pytest.FixtureRequest, regime: str) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    case = make_case("l", SMALL, masks="both")
    reset = case.reset.clone()
    reset[:, 0] = True
    clean = replace(case, reset=reset)
    dirty = {n: v.clone() for n, v in case.tensors.items()}
    for name in ("h0", "c0", "f0"):
        dirty[name].fill_(torch.nan)
    steps = torch.arange(SMALL.steps)
    dirty["x"][steps >= case.lengths.unsqueeze(1)] = torch.nan
    actual = replace(clean, tensors=dirty).run(stpn, torch.float32)
    assert_near(actual, clean.run(reference, torch.float64), torch.float32)


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
def test_synapses_that_are_all_zero(request: pytest.FixtureRequest, regime: str) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    case = make_case("r", SMALL, norm="post")
    zero = {n: torch.zeros_like(case.tensors[n]) for n in ("weight", "f0", "gamma", "bias")}
    case = replace(case, tensors=case.tensors | zero)
    actual = case.run(stpn, torch.float32)
    assert all(value.isfinite().all() for value in actual.values())
    assert_near(actual, case.run(reference, torch.float64), torch.float32)


def test_a_synapse_that_is_never_used_may_amplify() -> None:
    case = make_case("f", Shape(1, 40, 3, 1), norm=None, clamp=None)
    case.tensors["gamma"] *= 0.1
    case.tensors["lambda_"] *= 0.5
    for name in ("x", "f0"):
        case.tensors[name][..., 1] = 0.0
    case.tensors["lambda_"][:, 1] = 16.0
    expected, actual = case.run(reference, torch.float64), case.run(stpn, torch.float32)
    assert expected["grad of f0"].abs().max() > torch.finfo(torch.float32).max
    for name in ("grad of x", "grad of f0"):
        del actual[name], expected[name]
    assert_near(actual, expected, torch.float32)


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
def test_a_gradient_for_any_choice(request: pytest.FixtureRequest, regime: str) -> None:
    """Autograd asks for some gradients only, and gives some only."""
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    case = make_case("l", Shape(1, 3, 2, 1), masks="reset")
    tensors = {name: value.float() for name, value in case.tensors.items()}
    for wanted, used in (("x", "y"), ("weight", "f"), ("lambda_", "c"), ("f0", "power")):
        found = []
        for module in (reference, stpn):
            leaves = {n: v.clone().requires_grad_(n == wanted) for n, v in tensors.items()}
            value = case.outputs(module, leaves, power=True)[used]
            (gradient,) = torch.autograd.grad(value.square().sum(), leaves[wanted])
            found.append(gradient)
        assert distance(found[1], found[0].double()) < 1e-4, (wanted, used)


def test_bfloat16_inputs_with_a_float32_state() -> None:
    case = make_case("r", SMALL)
    tensors = {name: value.float() for name, value in case.tensors.items()}
    x = tensors["x"].bfloat16()
    exact = replace(case, tensors=case.tensors | {"x": x.double()}).run(reference, torch.float64)
    x.requires_grad_()
    outputs = case.outputs(stpn, tensors | {"x": x}, power=True)
    assert all(value.dtype == torch.float32 for value in outputs.values())
    found = {n: v.detach() for n, v in outputs.items()}
    assert_near(found, {n: exact[n] for n in outputs}, torch.float32)
    outputs["y"].sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
@pytest.mark.parametrize("inputs", [5, 6])  # rows with padding, and without
@pytest.mark.parametrize("kind", ["f", "r", "l"])
def test_steps_in_place(
    request: pytest.FixtureRequest, kind: str, inputs: int, regime: str
) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    case = make_case(kind, Shape(2, 1, inputs, 2), norm="post", clamp=0.4)
    t = {n: v.float() for n, v in case.tensors.items()}
    state = [t["h0"], *([t["c0"]] if kind == "l" else []), t["f0"]]
    run = stpn.stpn_lstm_step_ if kind == "l" else stpn.stpn_step_
    h, power = run(
        t["x"][:, 0], *state, t["weight"], t["bias"], t["lambda_"], t["gamma"],
        options=case.options, power_weight=t["power_weight"],
    )  # fmt: skip
    with torch.no_grad():
        expected = case.outputs(reference, case.tensors, power=True)
    actual = {"y": h.unsqueeze(1), "f": t["f0"], "power": power.unsqueeze(1)}
    actual |= {"c": t["c0"]} if kind == "l" else {}
    assert_near(actual, expected, torch.float32)


def test_hebbff_is_an_stpnf() -> None:
    case = make_case("f", SMALL, norm=None, nonlinearity="sigmoid", stp="uniform", masks="both")
    assert case.options == STPNOptions(recurrent=False, norm=None, nonlinearity="sigmoid")
    assert_parity(case)


@pytest.mark.parametrize(
    "shape", [Shape(3, 5, 0, 5), Shape(1, 1, 0, 1), Shape(2, 5, 0, 17)], ids=str
)
@pytest.mark.parametrize("kind", ["modulated", "unmodulated", "fast weights"])
def test_baselines(monkeypatch: pytest.MonkeyPatch, kind: str, shape: Shape) -> None:
    monkeypatch.setattr(plan, "MOST_PROGRAMS", 2)
    metered = shape.batch == 3
    case = make_baseline_case(kind, shape, masks="both" if metered else "none")
    module = fast_weights if kind == "fast weights" else modplast
    expected = case.run(reference, torch.float64, metered)
    assert_near(case.run(module, torch.float32, metered), expected, torch.float32)


def test_second_derivatives_are_those_of_the_specification() -> None:
    case = make_case("r", Shape(1, 3, 2, 2))
    found = []
    for module in (reference, stpn):
        leaves = {n: v.float().requires_grad_() for n, v in case.tensors.items()}
        y = case.outputs(module, leaves, power=False)["y"]
        (slope,) = torch.autograd.grad(y.sum(), leaves["x"], create_graph=True)
        found += torch.autograd.grad(slope.square().sum(), leaves["weight"])
    assert found[0].abs().max() > 1e-4
    assert distance(found[1], found[0].double()) < 1e-4


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("h0", torch.zeros(3, 3), "h0: expected shape"),
        ("f0", torch.zeros(2, 3, 7), "f0: expected shape"),
        ("weight", torch.zeros(3, 8, dtype=torch.float64), "weight: expected dtype"),
        ("x", torch.zeros(2, 5, 5, dtype=torch.float16), "x: expected float32 or bfloat16"),
        ("bias", torch.zeros(4), "bias: expected shape"),
    ],
)
def test_wrong_operands_are_refused(name: str, wrong: Tensor, message: str) -> None:
    case = make_case("r", SMALL)
    tensors = {n: v.float() for n, v in case.tensors.items()} | {name: wrong}
    with pytest.raises((ValueError, TypeError), match=message):
        case.outputs(stpn, tensors, power=True)


def test_lengths_beyond_the_end_do_no_harm() -> None:
    case = make_case("r", SMALL, masks="lengths")
    lengths = torch.tensor([9, case.lengths[1]])
    expected = replace(case, lengths=lengths).run(reference, torch.float64)
    assert_near(replace(case, lengths=lengths).run(stpn, torch.float32), expected, torch.float32)


@pytest.mark.parametrize("name", ["STPNf", "STPNr", "STPNl", "HebbFF", "ModPlast", "FastWeights"])
def test_layers_run_on_the_backend(name: str) -> None:
    layer = getattr(package, name)(3, 2, batch_first=True)
    x, reset = torch.randn(2, 3, 3), torch.tensor([[False, True, False], [False, False, False]])
    found = []
    for backend in ("reference", "triton"):
        layer.zero_grad()
        with package.use_backend(backend):
            y, state = layer(x, reset=reset)
            y.square().sum().backward()
            with torch.no_grad():
                last, _ = layer.step(x[:, 0], state)
        found.append([y, last, *(parameter.grad.clone() for parameter in layer.parameters())])
    for actual, expected in zip(*reversed(found), strict=True):
        assert distance(actual, expected.double()) < 1e-4


def test_the_meter_reads_a_layer_on_the_backend() -> None:
    layer, found = package.FastWeights(3, 2, batch_first=True), []
    x = torch.randn(2, 3, 3)
    for backend in ("reference", "triton"):
        with package.use_backend(backend), package.EnergyMeter(layer) as meter:
            layer(x)
        found.append(meter.power)
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
@pytest.mark.parametrize("kind", ["f", "r", "l"])
def test_what_is_not_finite_shows_where_it_does_in_the_specification(
    request: pytest.FixtureRequest, kind: str, regime: str
) -> None:
    """And another sequence does not change by a bit."""
    if regime == "in memory":
        request.getfixturevalue("in_memory")

    def outputs(module: Any, case: Case, name: str = "", value: float = 0.0) -> dict[str, Tensor]:
        tensors = {n: v.float() for n, v in case.tensors.items()}
        if name:
            tensors[name][1].view(-1)[2] = value
        with torch.no_grad():
            return case.outputs(module, tensors, power=True)

    for norm, clamp, nonlinearity in (
        ("pre", None, "tanh"), ("post", 0.3, "tanh"), (None, 0.3, "relu"),
    ):  # fmt: skip
        case = make_case(
            kind, SMALL, norm=norm, clamp=clamp, masks="reset", nonlinearity=nonlinearity
        )
        clean = outputs(stpn, case)
        for spoiled in (("x", torch.nan), ("f0", -torch.inf), ("x", torch.inf)):
            actual, expected = outputs(stpn, case, *spoiled), outputs(reference, case, *spoiled)
            for name, wanted in expected.items():
                what = (norm, spoiled, name)
                assert torch.equal(actual[name].isfinite(), wanted.isfinite()), what
                assert torch.equal(actual[name][0], clean[name][0]), what


@pytest.mark.parametrize("regime", ["on chip", "in memory"])
@pytest.mark.parametrize("kind", ["f", "r"])
def test_a_gradient_passes_a_clamp_that_is_met_exactly(
    request: pytest.FixtureRequest, kind: str, regime: str
) -> None:
    """F that sits on the limit, and beyond it, where some updates keep it."""
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    for norm in (None, "post"):
        case = make_case(kind, SMALL, norm=norm, clamp=0.5, masks="lengths")
        f0 = case.tensors["f0"]
        limits = torch.tensor([0.25, 0.5, 0.75]).double().repeat(f0.numel())[: f0.numel()]
        case.tensors["f0"] = f0.sign() * limits.view_as(f0)
        case.tensors["x"] = case.tensors["x"].round() * 4.0  # many zeros: no update there
        case.tensors["lambda_"] = torch.ones_like(case.tensors["lambda_"])
        assert_parity(case)


def test_modulated_plasticity_where_numbers_end() -> None:
    def results(module: Any, start: float) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        p, h0, w, alpha = (
            torch.randn(size, generator=generator).requires_grad_()
            for size in [(2, 6, 5), (2, 5), (5, 5), (5, 5)]
        )
        v, d, eta = torch.ones(5), torch.zeros(()), torch.zeros((), requires_grad=True)
        hebb = torch.ones(2, 5, 5).requires_grad_()
        y, final, _ = module.modplast(p, h0, hebb, w, alpha, None, None, eta)
        leaves = [p, h0, hebb, w, alpha, eta]
        edge = torch.autograd.grad(y.sum() + final.sum(), leaves)  # a trace on its limit
        with torch.no_grad():
            h0[1, 2] = start
            beyond = module.modplast(p, h0, hebb, w, alpha, v, d, None, power_weight=torch.ones(5))
        return [*edge, *beyond]

    for actual, expected in zip(results(modplast, 0), results(reference, 0), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    infinite = results(modplast, torch.inf), results(reference, torch.inf)
    for actual, expected in zip(*infinite, strict=True):
        assert torch.equal(actual.isfinite(), expected.isfinite())


# --- As operators of torch ----------------------------------------------------------------------


def operands(case: Case, grad: bool = True) -> list[Any]:
    """The tensors of a call, as the operator takes them."""
    gated = ["c0"] if case.kind in ("f", "r", "l") else []
    _, names, _ = OPS[case.kind]
    order = [*names[:2], *gated, *(n for n in names[2:] if n != "c0")]
    tensors = [case.tensors.get(name) for name in order]
    leaves = [None if t is None else t.float().requires_grad_(grad) for t in tensors]
    return [*leaves, case.reset, case.lengths, case.tensors["power_weight"].float()]


# Resets, but no lengths: what is saved of steps past an end is never written.
OPERATORS = [
    ("stpn_triton", make_case("r", Shape(2, 3, 3, 2), masks="reset"), (True, "pre", 0.5, "tanh")),
    ("stpn_triton", make_case("l", Shape(2, 3, 3, 2)), (True, "post", torch.inf, "tanh")),
    ("modplast_triton", make_baseline_case("modulated", Shape(2, 3, 0, 3)), ()),
    (
        "fast_weights_triton",
        make_baseline_case("fast weights", Shape(2, 3, 0, 3)),
        (0.9, 0.5, 1e-5),
    ),
]
operators = pytest.mark.parametrize(
    ("name", "case", "constants"), OPERATORS, ids=[case.kind for _, case, _ in OPERATORS]
)


@operators
def test_opcheck(name: str, case: Case, constants: tuple[Any, ...]) -> None:
    operator = getattr(torch.ops.stpn, name).default
    torch.library.opcheck(operator, (*operands(case), *constants, True))


@operators
def test_opcheck_of_the_backward_operators(
    name: str, case: Case, constants: tuple[Any, ...]
) -> None:
    tensors = operands(case, grad=False)
    outputs = getattr(torch.ops.stpn, name)(*tensors, *constants, True)
    operator = getattr(torch.ops.stpn, f"{name}_backward").default
    results = [a for a in operator._schema.arguments if a.name.startswith("grad")]
    grads = [torch.randn_like(o) if o.dim() > 1 else None for o in outputs[: len(results)]]
    needs = [t is not None and k % 3 < 2 for k, t in enumerate(tensors[:-3])]
    torch.library.opcheck(operator, (*tensors, *outputs, *grads, *constants, needs))


def test_a_gradient_of_a_backward_operator_is_an_error() -> None:
    name, case, constants = OPERATORS[-1]
    tensors = operands(case)
    outputs = getattr(torch.ops.stpn, name)(*tensors, *constants, True)
    backward = getattr(torch.ops.stpn, f"{name}_backward")
    with torch.enable_grad():
        found = backward(*tensors, *outputs, outputs[0], None, None, *constants, [True] * 6)
    with pytest.raises(RuntimeError, match="cannot be differentiated"):
        found[0].sum().backward()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("name", "regime"),
    [
        ("STPNl", "on chip"),
        ("STPNf", "in memory"),
        ("ModPlast", "on chip"),
        ("FastWeights", "on chip"),
    ],
)
def test_a_model_around_a_layer_is_one_graph(
    request: pytest.FixtureRequest, name: str, regime: str
) -> None:
    if regime == "in memory":
        request.getfixturevalue("in_memory")
    layer = getattr(package, name)(3, 2, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), layer)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, found = torch.randn(2, 3, 3), []
    for run in (model, compiled):
        model.zero_grad()
        with package.use_backend("triton"):
            y, (state,) = run(x)
            (y.square().sum() + state[-1].sum()).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([y.detach(), *(v.detach() for v in state), *gradients])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["STPNrCell", "STPNlCell"])
def test_a_step_in_place_compiles(name: str) -> None:
    cell = getattr(package, name)(3, 2)
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    x, found = torch.randn(2, 3), []
    for run in (cell, compiled):
        state = cell.initial_state(2)
        with package.use_backend("triton"), torch.no_grad():
            for _ in range(2):
                y, state = run(x, state, inplace=True)
        found.append([y, *state])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.usefixtures("fresh_compiler")
def test_an_export_holds_the_operator() -> None:
    layer, x = package.STPNr(3, 2, batch_first=True), torch.randn(2, 3, 3)
    with package.use_backend("triton"):
        program = torch.export.export(layer, (x,))
        torch.testing.assert_close(program.module()(x)[0], layer(x)[0])
    names = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert any(name.startswith("stpn.stpn_triton") for name in names)


@pytest.mark.usefixtures("fresh_compiler")
def test_another_batch_is_not_compiled_anew() -> None:
    counter = CompileCounterWithBackend("eager")
    layer = package.STPNr(3, 2, batch_first=True)
    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    with package.use_backend("triton"):
        for batch in (2, 3, 5):
            x = torch.randn(batch, 4, 3)
            torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    assert counter.frame_count == 1
