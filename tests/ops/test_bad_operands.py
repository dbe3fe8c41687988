"""Operands that are odd in memory, at the edge of what is allowed, or wrong: right or an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stpn.nn import STPNl, STPNr
from stpn.nn.fast_weights import FastWeights
from stpn.nn.modulated import ModPlast
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


@pytest.mark.parametrize("name", NAMES)
def test_operands_that_are_still_to_be_negated(name: str) -> None:
    """A view of the imaginary part of a conjugate has torch's negative bit."""
    given = operands()
    value = torch.complex(torch.zeros_like(given[name]), -given[name]).conj().imag
    assert value.is_neg()
    assert_right(given | {name: value})
    assert_right(given | {name: torch._neg_view(-given[name])})


def test_gradients_that_are_still_to_be_negated() -> None:
    def loss(y: Tensor, f: Tensor) -> Tensor:
        return _Negated.apply(y).square().sum() + _Negated.apply(f).sum()

    assert_right(operands(), loss)


class _Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return -value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch._neg_view(gradient.contiguous())


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
            layer.step(x[:, 0], state, inplace=True)
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


WRONG |= {
    f"{what} {name}": ({name: change}, ValueError if what != "no" else TypeError, name)
    for name in ("h0", "f0", "weight", "lambda_", "gamma")
    for what, change in (("no", None), ("freed", "freed"), ("shrunk", "shrunk"))
} | {"freed x": ({"x": "freed"}, ValueError, "x")}


def freed(tensor: Tensor, size: int) -> Tensor:
    """All its storage is gone but for `size` bytes, as sharding does it."""
    tensor.untyped_storage().resize_(size)
    return tensor


@pytest.mark.parametrize("case", WRONG)
def test_wrong_operands_are_errors_that_name_them(case: str) -> None:
    wrong, error, name = WRONG[case]
    fixed = {n: wrong[n] for n in wrong if n not in NAMES}
    given = operands() | {"lambda_": draw(1, 1), "gamma": draw(1, 1)}
    for n in wrong:
        if n in NAMES:
            freeing = {"freed": lambda t: freed(t, 0), "shrunk": lambda t: freed(t, 8)}
            change = freeing.get(wrong[n]) if isinstance(wrong[n], str) else None
            whole = operands()[n]
            given[n] = change(whole) if change else wrong[n]
    with use_backend("native"), pytest.raises(error, match=f"^{name}: expected"):
        run(backends, given, **fixed)


BASELINES_WRONG: dict[str, tuple[str, int, Tensor, type[Exception], str]] = {
    "modplast state": ("modplast", 2, draw(BATCH, HIDDEN, 1), ValueError, "f0"),
    "modplast alpha": ("modplast", 4, draw(HIDDEN, 1), ValueError, "alpha"),
    "modplast v": ("modplast", 5, draw(1), ValueError, "v"),
    "modplast dtype": ("modplast", 3, draw(HIDDEN, HIDDEN).float(), TypeError, "weight"),
    "fast weights state": ("fast_weights", 1, draw(1, HIDDEN), ValueError, "h0"),
    "fast weights norm": ("fast_weights", 4, draw(1), ValueError, "ln_weight"),
}


@pytest.mark.parametrize("case", BASELINES_WRONG)
def test_wrong_operands_of_the_baselines_are_errors(case: str) -> None:
    op, position, wrong, error, name = BASELINES_WRONG[case]
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


MISSING = {
    "modplast": ["h0", "f0", "weight", "alpha"],
    "fast_weights": ["h0", "f0", "weight", "ln_weight", "ln_bias"],
}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in MISSING for name in MISSING[op]])
def test_missing_operands_of_the_baselines_are_errors(op: str, name: str) -> None:
    given: dict[str, Any] = {
        "p": draw(BATCH, STEPS, HIDDEN), "h0": draw(BATCH, HIDDEN),
        "f0": draw(BATCH, HIDDEN, HIDDEN), "weight": draw(HIDDEN, HIDDEN),
    }  # fmt: skip
    if op == "modplast":
        given |= {"alpha": draw(HIDDEN, HIDDEN), "v": draw(HIDDEN), "d": draw(), "eta": None}
    else:
        given |= {"ln_weight": draw(HIDDEN), "ln_bias": draw(HIDDEN)}
    with use_backend("native"), pytest.raises(TypeError, match=f"^{name}: expected a Tensor"):
        getattr(backends, op)(*(given | {name: None}).values())


@pytest.mark.parametrize("missing", ["v", "d", "v d"])
def test_half_a_modulation_is_an_error(missing: str) -> None:
    rule = {"v": draw(HIDDEN), "d": draw(), "eta": None} | dict.fromkeys(missing.split())
    with use_backend("native"), pytest.raises(ValueError, match="either v and d"):
        backends.modplast(
            draw(BATCH, STEPS, HIDDEN), draw(BATCH, HIDDEN), draw(BATCH, HIDDEN, HIDDEN),
            draw(HIDDEN, HIDDEN), draw(HIDDEN, HIDDEN), *rule.values(),
        )  # fmt: skip


@pytest.mark.parametrize("core", [ModPlast, FastWeights, STPNr, STPNl])
def test_a_parameter_set_to_none_is_an_error_on_both_backends(core: type) -> None:
    names = [name for name, _ in core(INPUTS, HIDDEN).named_parameters()]
    for name in names:
        layer = core(INPUTS, HIDDEN)
        layer._parameters[name] = None
        errors = []
        for backend in ("native", "reference"):
            with use_backend(backend):
                try:
                    layer(torch.randn(STEPS, BATCH, INPUTS))
                    errors.append(None)
                except (TypeError, ValueError, AttributeError) as error:
                    errors.append(error)
        native, specification = errors
        if native is None:
            assert specification is None, name
            assert name.startswith("bias")


# --- Malformed calls of the operators -----------------------------------------------------------

OPERATOR_INPUTS = (
    "x", "h0", "c0", "f0", "weight", "bias", "lambda_", "gamma", "reset", "lengths",
    "power_weight", "norm", "activation", "recurrent", "clamp",
    "associate_new",
)  # fmt: skip


def operator_arguments() -> dict[str, Any]:
    given = dict.fromkeys(OPERATOR_INPUTS) | operands()
    given |= {"power_weight": torch.rand(COLUMNS).double()}
    options = {"norm": 1, "activation": 0, "recurrent": True, "clamp": 0.5, "associate_new": False}
    return given | options


def backward_arguments() -> dict[str, Any]:
    given = operator_arguments()
    y, _, f_T, power, saved = torch.ops.stpn.stpn(**given, save=True)
    given |= {"y": y, "saved": saved, "dy": y.clone(), "dc_T": None, "df_T": f_T.clone()}
    return given | {"dpower": power.clone(), "needs": [True] * 8}


@pytest.mark.parametrize("name", ["x", "h0", "f0", "weight", "y", "saved", "dy", "df_T", "dpower"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.bool, torch.float32])
def test_operators_refuse_every_other_dtype(name: str, dtype: torch.dtype) -> None:
    given = backward_arguments()
    given[name] = given[name].to(dtype)
    with pytest.raises(TypeError, match="expected dtype"):
        torch.ops.stpn.stpn_backward(**given)


def test_operators_refuse_a_dtype_that_all_operands_have() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
        given = {
            n: v.to(dtype) if isinstance(v, Tensor) else v for n, v in operator_arguments().items()
        }
        with pytest.raises(TypeError, match="expected dtype"):
            torch.ops.stpn.stpn(**given, save=True)


@pytest.mark.parametrize("name", ["y", "saved", "dy", "df_T", "dpower"])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:1], lambda t: t[:, :1], lambda t: t.flatten(), lambda t: t.unsqueeze(0),
        lambda t: t.new_zeros(0), lambda t: t.to("meta"), lambda t: freed(t.clone(), 0),
    ],
    ids=["rows", "columns", "flat", "rank", "empty", "meta", "freed"],
)  # fmt: skip
def test_operators_check_what_a_backward_pass_is_given(name: str, change: Any) -> None:
    given = backward_arguments()
    given[name] = change(given[name])
    with pytest.raises(ValueError, match=f"^{name}|expected"):
        torch.ops.stpn.stpn_backward(**given)


@pytest.mark.parametrize("name", ["x", "h0", "f0", "weight", "lambda_", "gamma", "y", "saved"])
def test_operators_refuse_none(name: str) -> None:
    with pytest.raises((TypeError, RuntimeError), match=name):
        torch.ops.stpn.stpn_backward(**backward_arguments() | {name: None})


@pytest.mark.parametrize("heading", [0.0, 2.0, 4.0, 8.0, -4.0, 1e9, float("nan")])
def test_a_heading_that_no_forward_pass_of_these_inputs_wrote(heading: float) -> None:
    given = backward_arguments()  # three sequences, which go into no lane of several
    given["saved"][0, 0] = heading
    with pytest.raises((ValueError, RuntimeError), match=r"saved|instruction set"):
        torch.ops.stpn.stpn_backward(**given)


def test_operators_refuse_gradients_of_results_that_are_not_there() -> None:
    given = backward_arguments()
    with pytest.raises(ValueError, match=r"^dc_T: expected None"):
        torch.ops.stpn.stpn_backward(**given | {"dc_T": draw(BATCH, HIDDEN)})
    with pytest.raises(ValueError, match=r"^dpower: expected None"):
        torch.ops.stpn.stpn_backward(**given | {"power_weight": None})
    for needs in ([], [True] * 7, [True] * 9):
        with pytest.raises(ValueError, match=r"^needs: expected 8"):
            torch.ops.stpn.stpn_backward(**given | {"needs": needs})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm", 3), ("norm", -1), ("activation", 3), ("activation", -1), ("recurrent", False),
        ("clamp", -1.0), ("clamp", float("nan")),
    ],
)  # fmt: skip
def test_operators_refuse_options_that_mean_nothing(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|not a value"):
        torch.ops.stpn.stpn(**operator_arguments() | {name: value}, save=False)


@pytest.mark.parametrize("name", ["weight", "bias", "power_weight"])
def test_operators_refuse_a_tensor_without_data(name: str) -> None:
    given = operator_arguments()
    given[name] = given[name].to("meta")
    with pytest.raises(ValueError, match="expected a tensor on"):
        torch.ops.stpn.stpn(**given, save=False)
