"""Operands that are odd in memory, at the edge of what is allowed, or wrong: right or an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stpn.nn import STPNr
from stpn.ops import backends, reference
from stpn.ops.backends import use_backend
from stpn.ops.reference import STPNOptions

pytest.importorskip("stpn._native", reason="the kernels are not built")
pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 3, 4, 5, 6
COLUMNS = INPUTS + HIDDEN
OPTIONS = STPNOptions(recurrent=True)
NAMES = ("x", "h0", "f0", "weight", "bias", "lambda_", "gamma")
Operands = dict[str, Tensor]


def draw(*shape: int) -> Tensor:
    return 0.3 * torch.randn(shape, dtype=torch.float64)


def operands() -> Operands:
    return {
        "x": draw(BATCH, STEPS, INPUTS),
        "h0": draw(BATCH, HIDDEN),
        "f0": draw(BATCH, HIDDEN, COLUMNS),
        "weight": draw(HIDDEN, COLUMNS),
        "bias": draw(HIDDEN),
        "lambda_": draw(HIDDEN, COLUMNS),
        "gamma": draw(HIDDEN, COLUMNS),
    }


def run(module: Any, given: Operands, **fixed: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    return module.stpn(*(given[name] for name in NAMES), options=OPTIONS, **fixed)


def results(module: Any, given: Operands, loss: Any = None, **fixed: Any) -> list[Tensor]:
    """y, the final F, and the gradient of every operand."""
    leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
    y, f, _ = run(module, leaves, **fixed)
    total = loss(y, f) if loss else y.square().sum() + f.sin().sum()
    return [y.detach(), f.detach(), *torch.autograd.grad(total, list(leaves.values()))]


def assert_right(given: Operands, loss: Any = None, **fixed: Any) -> None:
    with use_backend("native"):
        actual = results(backends, given, loss, **fixed)
    expected = results(reference, given, loss, **fixed)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def reordered(value: Tensor) -> Tensor:
    """The same values, the last dimension first in memory."""
    return value.movedim(-1, 0).contiguous().movedim(0, -1)


def sliced(value: Tensor) -> Tensor:
    """The same values, every third of a larger array that is NaN elsewhere."""
    wide = value.new_full((*value.shape[:-1], 3 * value.shape[-1]), torch.nan)
    wide[..., 1::3] = value
    return wide[..., 1::3]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [reordered, sliced])
def test_operands_that_are_not_contiguous(name: str, change: Any) -> None:
    given = operands()
    assert_right(given | {name: change(given[name])})


EXPANDED = {
    "x, one sequence for all": ("x", (1, STEPS, INPUTS)),
    "x, one step for all": ("x", (BATCH, 1, INPUTS)),
    "x, one number": ("x", (1, 1, 1)),
    "h0": ("h0", (1, HIDDEN)),
    "f0, one for all": ("f0", (1, HIDDEN, COLUMNS)),
    "f0, one per neuron": ("f0", (BATCH, HIDDEN, 1)),
    "lambda, one per column": ("lambda_", (1, COLUMNS)),
    "lambda, one per neuron": ("lambda_", (HIDDEN, 1)),
    "gamma, one number": ("gamma", (1, 1)),
    "weight": ("weight", (1, 1)),
}


@pytest.mark.parametrize("case", EXPANDED)
def test_expanded_operands(case: str) -> None:
    name, shape = EXPANDED[case]
    given = operands()
    assert_right(given | {name: draw(*shape).expand(given[name].shape)})


@pytest.mark.parametrize("name", ["lambda_", "gamma"])
@pytest.mark.parametrize("shape", [(), (1,), (COLUMNS,), (1, COLUMNS), (HIDDEN, 1), (1, 1)])
def test_plasticity_of_any_shape_that_broadcasts(name: str, shape: tuple[int, ...]) -> None:
    assert_right(operands() | {name: draw(*shape)})


def test_a_reset_mask_that_is_a_view() -> None:
    for reset in (
        (torch.rand(STEPS, BATCH) < 0.5).T,
        (torch.rand(BATCH, 1) < 0.5).expand(BATCH, STEPS),
        (torch.rand(BATCH, 2 * STEPS) < 0.5)[:, ::2],
    ):
        assert_right(operands(), reset=reset)


LOSSES = {
    "expanded": lambda y, f: y.sum() + f.sum(),
    "transposed": lambda y, f: (
        (y.transpose(0, 1) * torch.arange(HIDDEN)).sum() + f.transpose(1, 2).square().sum()
    ),
    "last step": lambda y, f: y[:, -1].square().sum(),
    "every second neuron": lambda y, f: y[..., ::2].square().sum() + f[:, ::2].square().sum(),
    "time first in memory": lambda y, f: (
        y.movedim(-1, 0).contiguous() * draw_like(HIDDEN, BATCH, STEPS)
    ).sum(),
}


def draw_like(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_results_that_are_views(loss: str) -> None:
    assert_right(operands(), LOSSES[loss])


@pytest.mark.parametrize("name", ["x", "h", "f"])
@pytest.mark.parametrize("change", [reordered, sliced])
def test_a_step_in_place_on_views(name: str, change: Any) -> None:
    given = operands()
    now = {"x": given["x"][:, 0], "h": given["h0"], "f": given["f0"]}
    rest = [given[n] for n in NAMES[3:]]
    actual = {n: change(v.clone()) if n == name else v.clone() for n, v in now.items()}
    with torch.no_grad(), use_backend("native"):
        h, _ = backends.stpn_step_(*actual.values(), *rest, options=OPTIONS)
        expected, _ = reference.stpn_step_(*now.values(), *rest, options=OPTIONS)
    torch.testing.assert_close([h, actual["f"]], [expected, now["f"]])


def test_a_step_in_place_on_what_a_gradient_needs_is_an_error() -> None:
    layer = STPNr(INPUTS, HIDDEN, batch_first=True)
    x = torch.randn(BATCH, STEPS, INPUTS)
    with use_backend("native"):
        state = layer.initial_state(BATCH)
        y, _ = layer(x, state)
        with torch.no_grad():
            layer.step(x[:, 0], state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 1, 5), (1, 1, 1), (2, 3, 0)], ids=str)
def test_small_and_empty_inputs(shape: tuple[int, int, int]) -> None:
    batch, _, inputs = shape
    columns = inputs + HIDDEN
    assert_right(
        operands()
        | {
            "x": draw(*shape),
            "h0": draw(batch, HIDDEN),
            "f0": draw(batch, HIDDEN, columns),
            "weight": draw(HIDDEN, columns),
            "lambda_": draw(HIDDEN, columns),
            "gamma": draw(HIDDEN, columns),
        }
    )


def test_a_very_long_sequence_of_few_synapses() -> None:
    """As one, and in pieces that autograd connects."""
    steps = 50_000
    weights = {"weight": draw(1, 2), "bias": draw(1), "lambda_": draw(1, 2), "gamma": draw(1, 2)}
    x, h, f = draw(1, steps, 1), draw(1, 1), draw(1, 1, 2)

    def gradients(length: int) -> list[Tensor]:
        leaves = [v.clone().requires_grad_() for v in (x, h, f, *weights.values())]
        xs, h_t, f_t, *parameters = leaves
        outputs = []
        for part in xs.split(length, dim=1):
            y, f_t, _ = backends.stpn(part, h_t, f_t, *parameters, options=OPTIONS)
            h_t = y[:, -1]
            outputs.append(y)
        y = torch.cat(outputs, 1)
        return [y, f_t, *torch.autograd.grad(y.square().sum() + f_t.sum(), leaves)]

    with use_backend("native"):
        torch.testing.assert_close(gradients(steps), gradients(777))


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "x without time": ({"x": draw(BATCH, INPUTS)}, ValueError, "x"),
    "no step": ({"x": draw(BATCH, 0, INPUTS)}, ValueError, "x"),
    "batch of h0": ({"h0": draw(1, HIDDEN)}, ValueError, "h0"),
    "batch of f0": ({"f0": draw(1, HIDDEN, COLUMNS)}, ValueError, "f0"),
    "columns of f0": ({"f0": draw(BATCH, HIDDEN, INPUTS)}, ValueError, "f0"),
    "columns of weight": ({"weight": draw(HIDDEN, INPUTS)}, ValueError, "weight"),
    "rows of weight": ({"weight": draw(1, COLUMNS)}, ValueError, "weight"),
    "size of bias": ({"bias": draw(HIDDEN + 1)}, ValueError, "bias"),
    "dtype of weight": ({"weight": draw(HIDDEN, COLUMNS).float()}, TypeError, "weight"),
    "dtype of f0": ({"f0": draw(BATCH, HIDDEN, COLUMNS).float()}, TypeError, "f0"),
    "dtype of gamma": ({"gamma": draw(1, 1).float()}, TypeError, "gamma"),
    "device of weight": ({"weight": draw(HIDDEN, COLUMNS).to("meta")}, ValueError, "weight"),
    "power weight": ({"power_weight": draw(INPUTS)}, ValueError, "power_weight"),
    "time of reset": ({"reset": torch.zeros(BATCH, 1, dtype=torch.bool)}, ValueError, "reset"),
    "dtype of reset": ({"reset": torch.zeros(BATCH, STEPS)}, TypeError, "reset"),
    "batch of lengths": ({"lengths": torch.tensor([1])}, ValueError, "lengths"),
    "dtype of lengths": ({"lengths": torch.ones(BATCH, dtype=torch.int32)}, TypeError, "lengths"),
    "lengths beyond x": ({"lengths": torch.tensor([1, STEPS + 1, 1])}, ValueError, "lengths"),
    "a length of 0": ({"lengths": torch.tensor([1, 0, 1])}, ValueError, "lengths"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_operands_are_errors_that_name_them(case: str) -> None:
    wrong, error, name = WRONG[case]
    fixed = {n: wrong[n] for n in wrong if n not in NAMES}
    given = operands() | {"lambda_": draw(1, 1), "gamma": draw(1, 1)}
    given |= {n: wrong[n] for n in wrong if n in NAMES}
    with use_backend("native"), pytest.raises(error, match=f"^{name}: expected"):
        run(backends, given, **fixed)


RIVALS_WRONG: dict[str, tuple[str, int, Tensor, type[Exception], str]] = {
    "modplast state": ("modplast", 2, draw(BATCH, HIDDEN, 1), ValueError, "f0"),
    "modplast alpha": ("modplast", 4, draw(HIDDEN, 1), ValueError, "alpha"),
    "modplast v": ("modplast", 5, draw(1), ValueError, "v"),
    "modplast dtype": ("modplast", 3, draw(HIDDEN, HIDDEN).float(), TypeError, "weight"),
    "fast weights state": ("fast_weights", 1, draw(1, HIDDEN), ValueError, "h0"),
    "fast weights norm": ("fast_weights", 4, draw(1), ValueError, "ln_weight"),
}


@pytest.mark.parametrize("case", RIVALS_WRONG)
def test_wrong_operands_of_the_rivals_are_errors(case: str) -> None:
    op, position, wrong, error, name = RIVALS_WRONG[case]
    given: list[Any] = [
        draw(BATCH, STEPS, HIDDEN), draw(BATCH, HIDDEN), draw(BATCH, HIDDEN, HIDDEN),
        draw(HIDDEN, HIDDEN),
    ]  # fmt: skip
    if op == "modplast":
        given += [draw(HIDDEN, HIDDEN), draw(HIDDEN), draw(), None]
    else:
        given += [draw(HIDDEN), draw(HIDDEN)]
    given[position] = wrong
    with use_backend("native"), pytest.raises(error, match=f"^{name}: expected"):
        getattr(backends, op)(*given)
