"""The specification against the equations written out with scalar loops, and its gradients."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from parity import MASKS, choose
from torch import Tensor

from stpn.ops.reference import STPNOptions, stpn, stpn_lstm, stpn_step_

pytestmark = pytest.mark.usefixtures("poisoned_memory")

B, T, I, H = 3, 4, 3, 2  # noqa: E741
# One of them is past its sequence's end.
RESET = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)
LENGTHS = torch.tensor([4, 2, 3])

ACT = {"tanh": math.tanh, "sigmoid": lambda a: 1 / (1 + math.exp(-a)), "relu": lambda a: max(a, 0)}
GATES = ("sigmoid", "sigmoid", "tanh", "sigmoid")


def norms(g: list[list[float]], over: str) -> list[float]:
    rows = [math.sqrt(sum(v * v for v in row)) + 1e-16 for row in g]
    whole = math.sqrt(sum(v * v for row in g for v in row)) + 1e-16
    return rows if over == "neuron" else [whole] * len(g)


def scalar_step(x, h, c, f, p, o):
    """One step of one sequence in lists of floats: h, c (None without gates), f, power."""
    hidden, rows, columns = len(h), len(p["weight"]), len(p["weight"][0])
    u = x + h if o.recurrent else x
    total = [[p["weight"][i][j] + f[i][j] for j in range(columns)] for i in range(rows)]
    n = norms(total, o.norm_over) if o.norm else [1.0] * rows
    g = [[p["scale"][i] * total[i][j] / n[i] for j in range(columns)] for i in range(rows)]
    a = [sum(g[i][j] * u[j] for j in range(columns)) + p["bias"][i] for i in range(rows)]

    if c is None:
        post = [ACT[o.nonlinearity](v) for v in a]
        h_new, c_new = post, None
    else:
        post = [ACT[GATES[i // hidden]](a[i]) for i in range(rows)]
        i_, f_, g_, o_ = (post[k * hidden : (k + 1) * hidden] for k in range(4))
        c_new = [f_[k] * c[k] + i_[k] * g_[k] for k in range(hidden)]
        h_new = [o_[k] * math.tanh(c_new[k]) for k in range(hidden)]

    f_new = [list(row) for row in f]
    associated = x + h_new if o.recurrent and o.associate == "new" else u
    if not o.frozen:
        for i, j in itertools.product(range(rows), range(columns)):
            pre = associated[j]
            if o.rule == "oja":
                pre -= sum(post[k] * f[k][j] for k in range(rows))
            kept = f[i][j] / n[i] if o.norm == "pre" else f[i][j]
            value = p["gamma"][i][j] * post[i] * pre + p["lambda"][i][j] * kept
            f_new[i][j] = value if o.clamp is None else min(max(value, -o.clamp), o.clamp)
        if o.norm == "post":
            after = [[p["weight"][i][j] + f_new[i][j] for j in range(columns)] for i in range(rows)]
            n_after = norms(after, o.norm_over)
            f_new = [[f_new[i][j] / n_after[i] for j in range(columns)] for i in range(rows)]

    power = sum(
        p["power_weight"][j] * u[j] ** 2 * abs(g[i][j])
        for i, j in itertools.product(range(rows), range(columns))
    )
    return h_new, c_new, f_new, power


def scalar(case: dict[str, Tensor], o: STPNOptions, reset, lengths):
    """All sequences: y, final c, final f, power."""
    rows, columns = case["weight"].shape
    p = {
        "weight": case["weight"].tolist(),
        "bias": case["bias"].tolist() if case["bias"] is not None else [0.0] * rows,
        "lambda": case["lambda_"].expand(rows, columns).tolist(),
        "gamma": case["gamma"].expand(rows, columns).tolist(),
        "scale": case["scale"].tolist() if case["scale"] is not None else [1.0] * rows,
        "power_weight": case["power_weight"].tolist(),
    }
    gated = case["c0"] is not None
    zero_h, zero_f = [0.0] * H, [[0.0] * columns] * rows
    ys, cs, fs, powers = [], [], [], []
    for b in range(B):
        h, f = case["h0"][b].tolist(), case["f0"][b].tolist()
        c = case["c0"][b].tolist() if gated else None
        y_b, power_b = [], []
        for t in range(T):
            if lengths is not None and t >= lengths[b]:
                y_b.append(zero_h)
                power_b.append(0.0)
                continue
            if reset is not None and reset[b, t]:
                h, c, f = zero_h, zero_h if gated else None, zero_f
            h, c, f, power = scalar_step(case["x"][b, t].tolist(), h, c, f, p, o)
            y_b.append(h)
            power_b.append(power)
        ys, fs, powers = [*ys, y_b], [*fs, f], [*powers, power_b]
        cs.append(c)
    results = (ys, cs, fs, powers) if gated else (ys, fs, powers)
    return tuple(torch.tensor(v, dtype=torch.float64) for v in results)


def make_case(
    recurrent: bool, gated: bool = False, bias: bool = True, scale: bool = False, stp=("R", "D")
) -> dict[str, Tensor]:
    rows, columns = (4 * H if gated else H), (I + H if recurrent else I)
    sizes = {"R": rows, "D": columns, "1": 1}
    shape = tuple(sizes[s] for s in stp)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    return {
        "x": draw(B, T, I),
        "h0": draw(B, H),
        "c0": draw(B, H) if gated else None,
        "f0": draw(B, rows, columns),
        "weight": draw(rows, columns),
        "bias": draw(rows) if bias else None,
        "lambda_": torch.rand(shape, dtype=torch.float64),
        "gamma": draw(*shape),
        "scale": draw(rows) if scale else None,
        "power_weight": torch.rand(columns, dtype=torch.float64),
    }


def run(case: dict[str, Tensor], options: STPNOptions, reset=None, lengths=None):
    initial = (case["h0"], case["f0"])
    op = stpn
    if case["c0"] is not None:
        op, initial = stpn_lstm, (case["h0"], case["c0"], case["f0"])
    return op(
        case["x"], *initial, case["weight"], case["bias"], case["lambda_"], case["gamma"],
        options=options, norm_scale=case["scale"], reset=reset, lengths=lengths,
        power_weight=case["power_weight"],
    )  # fmt: skip


NORMS = [
    ("pre", "neuron"),
    ("pre", "layer"),
    ("post", "neuron"),
    ("post", "layer"),
    (None, "neuron"),
]
KINDS = ["f", "r", "l"]


def options_for(kind: str, **changes) -> STPNOptions:
    return STPNOptions(**{"recurrent": kind != "f", **changes})


@choose(
    "kind, norm_of, clamp, rule, masks, associate",
    KINDS, NORMS, (None, 0.3), ("hebb", "oja"), rotate=(MASKS, ("previous", "new")),
)  # fmt: skip
def test_every_option_is_the_equation(kind, norm_of, clamp, rule, masks, associate) -> None:
    norm, over = norm_of
    options = options_for(
        kind, norm=norm, norm_over=over, clamp=clamp, rule=rule, associate=associate
    )
    case = make_case(options.recurrent, gated=kind == "l", scale=norm is not None)
    reset = RESET if masks in ("reset", "both") else None
    lengths = LENGTHS if masks in ("lengths", "both") else None
    torch.testing.assert_close(
        run(case, options, reset, lengths), scalar(case, options, reset, lengths)
    )


@choose(
    "kind, stp, nonlinearity, bias, frozen",
    KINDS, [("R", "D"), ("R", "1"), ("1", "1"), ("1", "D")], ["tanh", "sigmoid", "relu"],
    rotate=([True, False], [True, False, False]),
)  # fmt: skip
def test_granularity_bias_nonlinearity_and_freezing(kind, stp, nonlinearity, bias, frozen) -> None:
    options = options_for(kind, nonlinearity=nonlinearity, frozen=frozen)
    case = make_case(options.recurrent, gated=kind == "l", bias=bias, stp=stp)
    torch.testing.assert_close(
        run(case, options, RESET, LENGTHS), scalar(case, options, RESET, LENGTHS)
    )


def test_without_power_weight_there_is_no_power() -> None:
    case = make_case(recurrent=True)
    case["power_weight"] = None
    assert run(case, options_for("r"))[-1] is None


@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("rule", ["hebb", "oja"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, norm, rule) -> None:
    options = options_for(kind, norm=norm, rule=rule, clamp=2.0)
    case = make_case(options.recurrent, gated=kind == "l", scale=norm is not None)
    names = [name for name, value in case.items() if value is not None]

    def outputs(*values: Tensor):
        return run({**case, **dict(zip(names, values, strict=True))}, options, RESET, LENGTHS)

    leaves = [case[name].requires_grad_() for name in names]
    torch.autograd.gradcheck(outputs, leaves, fast_mode=kind == "l")


@pytest.mark.parametrize("over", ["neuron", "layer"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
def test_silent_synapses_have_finite_gradients(kind, norm, over) -> None:
    """Rows of zeros that stay zero: their norm is 0 at every step."""
    options = options_for(kind, norm=norm, norm_over=over)
    case = make_case(options.recurrent, gated=kind == "l")
    for name in ("weight", "f0", "gamma", "bias"):
        case[name] = torch.zeros_like(case[name])
    leaves = {k: v.float().requires_grad_() for k, v in case.items() if v is not None}
    outputs = run({**case, **leaves}, options)
    for value in outputs:
        assert value.isfinite().all()
    sum(value.sum() for value in outputs).backward()
    for name, leaf in leaves.items():
        assert leaf.grad is None or leaf.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_where_it_is_masked(kind) -> None:
    """A broken old state before a reset, and whatever pads a sequence, reach nothing."""
    options = options_for(kind)
    clean = make_case(options.recurrent, gated=kind == "l")
    reset = torch.zeros_like(RESET)
    reset[:, 0] = True
    dirty = {k: v.clone() if v is not None else None for k, v in clean.items()}
    for name in ("h0", "c0", "f0"):
        if dirty[name] is not None:
            dirty[name].fill_(math.nan)
    dirty["x"][torch.arange(T) >= LENGTHS.unsqueeze(1)] = math.nan
    gradients = []
    for case in (clean, dirty):
        leaves = {k: v.requires_grad_() for k, v in case.items() if v is not None}
        outputs = run({**case, **leaves}, options, reset, LENGTHS)
        sum(value.square().sum() for value in outputs).backward()
        gradients.append({k: v.grad for k, v in leaves.items()} | {"outputs": outputs})
    torch.testing.assert_close(*gradients)
    assert gradients[0]["f0"].abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_state_is_not_the_callers_tensor(kind) -> None:
    options = replace(options_for(kind), frozen=True)
    case = make_case(options.recurrent, gated=kind == "l")
    f = run(case, options)[-2]
    assert torch.equal(f, case["f0"])
    assert f.data_ptr() != case["f0"].data_ptr()


def test_step_in_place_is_one_step_of_the_sequence() -> None:
    options, case = options_for("r"), make_case(recurrent=True)
    case["x"] = case["x"][:, :1]
    y, f, power = run(case, options)
    in_place = case["f0"].clone()
    h, step_power = stpn_step_(
        case["x"][:, 0], case["h0"], in_place, case["weight"], case["bias"], case["lambda_"],
        case["gamma"], options=options, power_weight=case["power_weight"],
    )  # fmt: skip
    torch.testing.assert_close((h, in_place, step_power), (y[:, 0], f, power[:, 0]))


def test_lambda_is_kept_and_may_amplify() -> None:
    """F' = lambda F / n where gamma is 0; with lambda > 1 nothing clips it."""
    case = make_case(recurrent=False)
    case |= {"gamma": torch.zeros_like(case["gamma"]), "x": case["x"][:, :1]}
    case["lambda_"] = torch.full_like(case["lambda_"], 7.0)
    n = (case["weight"] + case["f0"]).norm(dim=-1, keepdim=True)
    torch.testing.assert_close(run(case, options_for("f"))[1], 7 * case["f0"] / n)
