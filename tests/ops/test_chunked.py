"""Memories in chunks are the specification, which is what the papers say."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import stpn
from stpn.ops import backends, reference
from stpn.ops.convolution import causal_convolution
from stpn.ops.gradient_plasticity.reference import gradient_plasticity_step

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, HEADS, KEYS, VALUES = 3, 2, 5, 4
RULES = ("delta_rule", "gated delta_rule", "gated_linear_attention")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def operands(rule: str, steps: int, dtype: torch.dtype, decay: float = 1.0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(steps)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    found = {
        "q": normal(BATCH, steps, HEADS, KEYS),
        "k": functional.normalize(normal(BATCH, steps, HEADS, KEYS), dim=-1),
        "v": normal(BATCH, steps, HEADS, VALUES),
    }
    if "delta" in rule:
        found["beta"] = normal(BATCH, steps, HEADS).sigmoid()
        gated = rule != "delta_rule"
        found["g"] = decay * functional.logsigmoid(normal(BATCH, steps, HEADS)) if gated else None
    else:
        found["g"] = decay * functional.logsigmoid(normal(BATCH, steps, HEADS, KEYS))
    found["s0"] = normal(BATCH, HEADS, VALUES, KEYS)
    return {
        name: None if value is None else value.to(dtype).requires_grad_()
        for name, value in found.items()
    }


def masks(kind: str, steps: int) -> dict[str, Tensor | None]:
    reset = torch.rand(BATCH, steps, generator=torch.Generator().manual_seed(1)) < 0.1
    reset[0, steps // 2] = True
    lengths = torch.tensor([steps, max(1, steps - 35), max(1, steps // 2)])
    return {
        "reset": reset if kind in ("reset", "both") else None,
        "lengths": lengths if kind in ("lengths", "both") else None,
    }


def results_and_gradients(module, rule: str, tensors: dict[str, Tensor], **options) -> list[Tensor]:
    results = getattr(module, rule.removeprefix("gated "))(*tensors.values(), **options)
    results = [value for value in results if value is not None]
    total = sum(((k + value) ** 2).sum() for k, value in enumerate(results))
    wanted = [value for value in tensors.values() if value is not None]
    return [*results, *torch.autograd.grad(total, wanted)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("steps", "kind"), [(2, "both"), (32, "none"), (70, "reset"), (70, "lengths"), (97, "both")]
)
def test_chunks_are_the_specification(rule: str, steps: int, kind: str, dtype) -> None:
    tensors, options = operands(rule, steps, dtype), {**masks(kind, steps), "power": True}
    expected = results_and_gradients(reference, rule, tensors, **options)
    with stpn.use_backend("chunked"):
        found = results_and_gradients(backends, rule, tensors, **options)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= TOLERANCE[dtype] * (1 + b.abs().max())


@pytest.mark.parametrize("rule", RULES[1:])
def test_strong_forgetting_makes_no_infinities(rule: str) -> None:
    """A chunk in which far more is forgotten than exp could undo."""
    tensors = operands(rule, 64, torch.float32, decay=60.0)
    options = {**masks("both", 64), "power": True}
    expected = results_and_gradients(reference, rule, tensors, **options)
    with stpn.use_backend("chunked"):
        found = results_and_gradients(backends, rule, tensors, **options)
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a - b).abs().max() <= 1e-4 * (1 + b.abs().max())


@pytest.mark.parametrize("g", [-1e6, -1e30, -torch.inf])
@pytest.mark.parametrize("rule", RULES[1:])
def test_a_step_that_forgets_all_blurs_no_other(rule: str, g: float) -> None:
    """Sums over a chunk are rounded as its largest term is, and infinity has no difference."""
    tensors = operands(rule, 40, torch.float32)
    with torch.no_grad():
        tensors["g"][1, 5] = tensors["g"][2, 5, 0] = g
    expected = results_and_gradients(reference, rule, tensors)
    with stpn.use_backend("chunked"):
        found = results_and_gradients(backends, rule, tensors)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= 1e-4 * (1 + b.abs().max())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_shows_where_it_does_in_the_specification(rule: str, bad) -> None:
    reset = torch.zeros(BATCH, 40, dtype=torch.bool)
    reset[:, 25] = True
    for name in operands(rule, 40, torch.float32):
        tensors = operands(rule, 40, torch.float32)
        if tensors[name] is None:
            continue
        with torch.no_grad():
            one = tensors[name][1] if name == "s0" else tensors[name][1, 20]
            one.view(-1)[1] = bad
        for masked in ({}, {"reset": reset}):
            run = rule.removeprefix("gated ")
            expected = getattr(reference, run)(*tensors.values(), **masked, power=True)
            with stpn.use_backend("chunked"):
                found = getattr(backends, run)(*tensors.values(), **masked, power=True)
            for a, b in zip(found, expected, strict=True):
                assert torch.equal(a.isfinite(), b.isfinite()), (name, bad, masked)


@pytest.mark.parametrize("rule", RULES)
def test_a_spoilt_state_does_not_outlive_a_reset_inside_a_chunk(rule: str) -> None:
    tensors = operands(rule, 40, torch.float64)
    tensors["s0"] = torch.full_like(tensors["s0"], torch.nan)
    reset = torch.zeros(BATCH, 40, dtype=torch.bool)
    reset[:, 7] = True
    run = getattr(backends, rule.removeprefix("gated "))
    o, s, power = run(*tensors.values(), reset=reset, power=True)
    assert o[:, :7].isnan().all()
    assert o[:, 7:].isfinite().all()
    assert s.isfinite().all()
    assert power[:, 7:].isfinite().all()


@pytest.mark.parametrize("rule", RULES)
def test_the_specification_is_the_papers_formula(rule: str) -> None:
    """One sequence and head at a time, in matrices, as the papers write it."""
    tensors = operands(rule, 9, torch.float64)
    o, s, power = getattr(reference, rule.removeprefix("gated "))(*tensors.values(), power=True)
    numbers = {n: None if t is None else t.detach().numpy() for n, t in tensors.items()}
    expected_power = np.zeros((BATCH, 9))
    for b, n in itertools.product(range(BATCH), range(HEADS)):
        memory = numbers["s0"][b, n]
        for t in range(9):
            q, k, v = (numbers[name][b, t, n] for name in "qkv")
            g = None if numbers["g"] is None else np.exp(numbers["g"][b, t, n])
            if rule == "gated_linear_attention":
                memory = memory @ np.diag(g) + np.outer(v, k)
            else:
                beta = numbers["beta"][b, t, n]
                erased = memory @ (np.eye(KEYS) - beta * np.outer(k, k))
                memory = (1.0 if g is None else g) * erased + beta * np.outer(v, k)
            np.testing.assert_allclose(o[b, t, n].detach().numpy(), memory @ q, rtol=1e-10)
            expected_power[b, t] += (np.abs(memory) @ q**2).sum()
        np.testing.assert_allclose(s[b, n].detach().numpy(), memory, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(power.detach().numpy(), expected_power, rtol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_the_specification_has_the_figures_of_flash_linear_attention(rule: str) -> None:
    """Which were recorded, since it installs on few machines."""
    recorded = json.loads(Path(__file__).with_name("flash_linear_attention.json").read_text())[rule]
    tensors = [
        None if entry["values"] is None else torch.tensor(entry["values"]).reshape(entry["shape"])
        for entry in recorded["operands"].values()
    ]
    o, s, _ = getattr(reference, rule.removeprefix("gated "))(*tensors)
    torch.testing.assert_close(o.flatten(), torch.tensor(recorded["o"]), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(s.flatten(), torch.tensor(recorded["s"]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore")
def test_the_specification_is_that_of_flash_linear_attention(rule: str) -> None:
    """Whose naive forms scale queries by K^-1/2, have time after heads, and S transposed."""
    tensors = operands(rule, 20, torch.float32)
    o, s, _ = getattr(reference, rule.removeprefix("gated "))(*tensors.values())
    theirs = {n: t if t is None else t.detach().clone() for n, t in tensors.items()}
    theirs["q"] *= KEYS**0.5
    start = theirs["s0"].mT.contiguous()
    if rule == "delta_rule":
        naive = pytest.importorskip("fla.ops.delta_rule.naive")
        q, k, v, beta = (theirs[n].transpose(1, 2) for n in ("q", "k", "v", "beta"))
        found, end = naive.delta_rule_recurrence(q, k, v, beta, initial_state=start)
        found = found.transpose(1, 2)
    elif rule == "gated delta_rule":
        naive = pytest.importorskip("fla.ops.gated_delta_rule.naive")
        found, end = naive.naive_recurrent_gated_delta_rule(
            *(theirs[n] for n in ("q", "k", "v", "beta", "g")),
            initial_state=start, output_final_state=True,
        )  # fmt: skip
    else:
        naive = pytest.importorskip("fla.ops.gla.naive")
        found, end = naive.naive_recurrent_gla(
            *(theirs[n] for n in ("q", "k", "v", "g")), initial_state=start, output_final_state=True
        )
    torch.testing.assert_close(found, o, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(end.mT, s, rtol=1e-4, atol=1e-4)


def test_a_convolution_sees_its_window_and_nothing_before_a_reset() -> None:
    x, window, weight = torch.randn(2, 6, 3), torch.randn(2, 2, 3), torch.randn(3, 3)
    reset = torch.tensor([[False] * 6, [False, False, False, True, False, False]])
    lengths = torch.tensor([4, 6])
    y, after = causal_convolution(x, window, weight, reset=reset, lengths=lengths)
    seen = torch.cat([window, x], 1)
    for b, t in itertools.product(range(2), range(6)):
        expected = torch.zeros(3)
        for back in range(3):
            if b == 1 and t >= 3 and t - back < 3:
                continue
            expected += weight[:, 2 - back] * seen[b, 2 + t - back]
        torch.testing.assert_close(y[b, t], expected)
    torch.testing.assert_close(after, torch.stack([x[0, 2:4], x[1, 4:6]]))
    _, soon = causal_convolution(x[:, :4], window, weight, reset=reset[:, :4])
    assert not soon[1, 0].any()


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_gradient_plasticity_goes_along_the_gradient_of_its_loss(nonlinearity, clip) -> None:
    batch, inputs, hidden, outputs = 3, 4, 5, 2
    torch.manual_seed(0)
    draw = {"dtype": torch.float64}
    x, h = torch.randn(batch, inputs, **draw), torch.rand(batch, hidden, **draw)
    f = torch.randn(batch, hidden, inputs + hidden + 1, **draw).requires_grad_()
    f_out = torch.randn(batch, outputs, hidden + 1, **draw).requires_grad_()
    weight, alpha = torch.randn(2, hidden, inputs + hidden + 1, **draw)
    weight_out, alpha_out = torch.randn(2, outputs, hidden + 1, **draw)
    scale = torch.randn(outputs, **draw)
    new_h, new_f, new_f_out, _ = gradient_plasticity_step(
        x, h, f, f_out, weight, weight_out, alpha, alpha_out, scale,
        rate=0.3, decay=0.2, clip=clip, nonlinearity=nonlinearity,
    )  # fmt: skip

    one = torch.ones(batch, 1, **draw)
    z = ((weight + f) @ torch.cat([x, h, one], 1).unsqueeze(-1)).squeeze(-1)
    activation = getattr(torch, nonlinearity)(z)
    torch.testing.assert_close(new_h, activation)
    o = ((weight_out + f_out) @ torch.cat([activation, one], 1).unsqueeze(-1)).squeeze(-1)
    loss = (scale * o).square().mean(1).sum()
    gradient, gradient_out = torch.autograd.grad(loss, [f, f_out])
    norm = (gradient.square().sum((1, 2)) + gradient_out.square().sum((1, 2))).sqrt()
    assert bool((norm > clip).any()) == (clip < 1)
    m = 2 * torch.sigmoid(o[:, -1])
    step = (0.3 * m * (clip / norm).clamp(max=1))[:, None, None]
    left = (1 - 0.2 * m)[:, None, None]
    torch.testing.assert_close(new_f, left * f + step * alpha * gradient)
    torch.testing.assert_close(new_f_out, left * f_out + step * alpha_out * gradient_out)
