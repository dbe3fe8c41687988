"""Second derivatives are those of the specification, however they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stpn
from stpn.ops.backends import use_backend

pytest.importorskip("stpn._native", reason="the kernels are not built")

BATCH, STEPS, INPUTS, HIDDEN = 2, 3, 4, 3
CORES: list[tuple[Any, dict[str, Any]]] = [
    (stpn.STPNf, {"norm": "post", "clamp": 0.5, "stp": "neuron"}),
    (stpn.STPNr, {}),
    (stpn.STPNr, {"norm": None, "stp": "uniform", "nonlinearity": "sigmoid"}),
    (stpn.STPNl, {}),
    (stpn.ModPlast, {}),
    (stpn.ModPlast, {"modulated": False}),
    (stpn.FastWeights, {}),
    (stpn.HebbFF, {}),
]
cores = pytest.mark.parametrize(("kind", "options"), CORES)


def make(kind: Any, options: dict[str, Any]) -> tuple[Any, Tensor]:
    core = kind(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(1.5)
    return core, torch.randn(BATCH, STEPS, INPUTS, dtype=torch.float64)


def on_both(compute: Any) -> None:
    with use_backend("native"):
        actual = compute()
    with use_backend("reference"):
        expected = compute()
    torch.testing.assert_close(actual, expected)
    assert any(value.abs().max() > 1e-6 for value in expected)


@cores
def test_hessian_of_a_loss_that_is_linear_in_the_output(kind: Any, options: dict) -> None:
    core, x = make(kind, options)
    loss = lambda x: core(x)[0].sum()  # noqa: E731
    on_both(lambda: [torch.autograd.functional.hessian(loss, x)])


@cores
def test_gradient_penalty(kind: Any, options: dict) -> None:
    core, x = make(kind, options)
    reset = torch.rand(BATCH, STEPS) < 0.3

    def compute() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y, (state,) = core(leaf, None, reset)
        score = y[:, -1].sum() + state[-1].square().sum()
        (slope,) = torch.autograd.grad(score, leaf, create_graph=True)
        penalty = score + 10 * (slope.norm() - 1).square()
        leaves = [leaf, *core.parameters()]
        return list(torch.autograd.grad(penalty, leaves, materialize_grads=True))

    on_both(compute)


@cores
def test_gradgradcheck(kind: Any, options: dict) -> None:
    if options.get("clamp"):
        pytest.skip("not smooth at the limit")
    core, x = make(kind, options)
    with use_backend("native"):
        leaf = x[:1, :2].clone().requires_grad_()
        assert torch.autograd.gradgradcheck(lambda x: core(x)[0], leaf, fast_mode=True)


def test_an_input_that_depends_on_another_one() -> None:
    """Its own part of the gradient is not counted twice."""
    core, x = make(stpn.STPNr, {})

    def compute() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        start = stpn.STPNState(leaf[:, 0, :HIDDEN].tanh(), core.initial_state(BATCH)[0].f)
        y, _ = core(leaf, (start,))
        (slope,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), leaf)
        return [slope.detach(), second]

    on_both(compute)


def test_many_gradients_at_once() -> None:
    core, x = make(stpn.STPNr, {})

    def compute() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        last = core(leaf)[0][0, -1]
        return list(
            torch.autograd.grad(last, leaf, torch.eye(HIDDEN, dtype=x.dtype), is_grads_batched=True)
        )

    on_both(compute)


def test_an_ordinary_backward_pass_stays_on_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    core, x = make(stpn.STPNr, {})
    y = core(x)[0].sum()

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the specification ran")

    monkeypatch.setattr("stpn.ops.stpn.reference.stpn", fail)
    y.backward()


def test_operators_have_them_too_and_their_backward_operator_names_the_way_out() -> None:
    core, x = make(stpn.STPNr, {})
    h, f = torch.zeros(BATCH, HIDDEN).double(), torch.zeros(BATCH, HIDDEN, INPUTS + HIDDEN).double()
    parameters = [core.weight_l0, core.bias_l0, core.lambda_l0, core.gamma_l0]
    leaf = x.clone().requires_grad_()
    arguments = [leaf, h, None, f, *parameters, None, None, None, 1, 0, True, float("inf"), False]

    def slope(run: Any) -> Tensor:
        (first,) = torch.autograd.grad(run().sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        return second

    with use_backend("reference"):
        expected = slope(lambda: core(leaf)[0])
    actual = slope(lambda: torch.ops.stpn.stpn(*arguments, True)[0])
    torch.testing.assert_close(actual, expected)

    y, *_, saved = torch.ops.stpn.stpn(*arguments, True)
    needs = [True] * 8
    dx, *_ = torch.ops.stpn.stpn_backward(*arguments, y, saved, y, None, None, None, needs)
    with pytest.raises(RuntimeError, match=r'use_backend\("reference"\)'):
        dx.sum().backward()
