"""The kernels as operators of torch: opcheck, torch.compile, gradients, and what they save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from stpn.nn import STPNl, STPNr
from stpn.nn.fast_weights import FastWeights
from stpn.nn.hebbff import HebbFF
from stpn.nn.modulated import ModPlast
from stpn.nn.stpn import STPNf
from stpn.ops import backends
from stpn.ops.backends import use_backend

pytest.importorskip("stpn._native", reason="the kernels are not built")

BATCH, STEPS, INPUTS, HIDDEN = 2, 3, 5, 4
NORMS = {None: 0, "pre": 1, "post": 2}


def draw(*shape: int, grad: bool = True, scale: float = 0.5) -> Tensor:
    return (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_(grad)


def masks(wanted: bool) -> tuple[Tensor | None, Tensor | None]:
    """reset (B, T) and lengths (B,)."""
    if not wanted:
        return None, None
    return torch.rand(BATCH, STEPS) < 0.3, torch.tensor([STEPS, 1])


def stpn_arguments(
    *,
    gated: bool = False,
    recurrent: bool = True,
    norm: str | None = "pre",
    clamp: float = math.inf,
    activation: int = 0,
    factors: str = "synapse",
    masked: bool = False,
    power: bool = False,
    bias: bool = True,
    grad: bool = True,
    steps: int = STEPS,
    inputs: int = INPUTS,
    associate_new: bool = False,
) -> list[Any]:
    """Everything that torch.ops.stpn.stpn takes, but for `save`."""
    rows, columns = HIDDEN * (4 if gated else 1), inputs + HIDDEN * recurrent
    shape = {"synapse": (rows, columns), "neuron": (rows, 1), "uniform": (1, 1)}[factors]
    return [
        draw(BATCH, steps, inputs, grad=grad),
        draw(BATCH, HIDDEN, grad=grad),
        draw(BATCH, HIDDEN, grad=grad) if gated else None,
        draw(BATCH, rows, columns, grad=grad),
        draw(rows, columns, grad=grad),
        draw(rows, grad=grad) if bias else None,
        draw(*shape, grad=grad),
        draw(*shape, grad=grad),
        *masks(masked),
        torch.rand(columns, dtype=torch.float64) if power else None,
        NORMS[norm],
        activation,
        recurrent,
        clamp,
        associate_new,
    ]


def modplast_arguments(
    *, modulated: bool = True, masked: bool = False, power: bool = False, grad: bool = True
) -> list[Any]:
    def of(*shape: int) -> Tensor:
        return draw(*shape, grad=grad)

    rule = [of(HIDDEN), of(), None] if modulated else [None, None, of()]
    return [
        of(BATCH, STEPS, HIDDEN), of(BATCH, HIDDEN), of(BATCH, HIDDEN, HIDDEN),
        of(HIDDEN, HIDDEN), of(HIDDEN, HIDDEN), *rule, *masks(masked),
        torch.rand(HIDDEN, dtype=torch.float64) if power else None,
    ]  # fmt: skip


def fast_weights_arguments(
    *, masked: bool = False, power: bool = False, grad: bool = True
) -> list[Any]:
    def of(*shape: int) -> Tensor:
        return draw(*shape, grad=grad)

    return [
        of(BATCH, STEPS, HIDDEN), of(BATCH, HIDDEN), of(BATCH, HIDDEN, HIDDEN),
        of(HIDDEN, HIDDEN), of(HIDDEN), of(HIDDEN), *masks(masked),
        torch.rand(HIDDEN, dtype=torch.float64) if power else None, 0.9, 0.5, 1e-5,
    ]  # fmt: skip


STPN_OPTIONS: list[dict[str, Any]] = [
    {},
    {"recurrent": False, "norm": None, "factors": "neuron", "bias": False, "activation": 2},
    {"norm": "post", "clamp": 0.3, "factors": "uniform", "activation": 1, "power": True},
    {"gated": True, "power": True},
]
FORWARD: list[Any] = [
    *(pytest.param("stpn", stpn_arguments, o, id=f"stpn {o}") for o in STPN_OPTIONS),
    pytest.param("modplast", modplast_arguments, {"power": True}, id="modulated"),
    pytest.param("modplast", modplast_arguments, {"modulated": False}, id="unmodulated"),
    pytest.param("fast_weights", fast_weights_arguments, {"power": True}, id="fast weights"),
]
Make = Callable[..., list[Any]]


@pytest.mark.parametrize(("name", "make", "options"), FORWARD)
def test_opcheck(name: str, make: Make, options: dict[str, Any]) -> None:
    torch.library.opcheck(getattr(torch.ops.stpn, name).default, (*make(**options), True))


@pytest.mark.parametrize(("name", "make", "options"), FORWARD)
def test_opcheck_with_masks_and_nothing_to_save(name: str, make: Make, options) -> None:
    arguments = make(**options, masked=True, grad=False)
    torch.library.opcheck(getattr(torch.ops.stpn, name).default, (*arguments, False))


@pytest.mark.parametrize(("name", "make", "options"), FORWARD)
def test_opcheck_of_the_backward_operators(name: str, make: Make, options) -> None:
    arguments = make(**options, grad=False)
    y, *final, power, saved = getattr(torch.ops.stpn, name)(*arguments, True)
    inputs = {"stpn": 8, "modplast": 8, "fast_weights": 6}[name]
    gradients = [torch.randn_like(v) if v.numel() else None for v in (y, *final, power)]
    for needs in ([True] * inputs, [k % 2 == 1 for k in range(inputs)]):
        torch.library.opcheck(
            getattr(torch.ops.stpn, f"{name}_backward").default,
            (*arguments, y, saved, *gradients, needs),
        )


@pytest.mark.parametrize("options", [{}, {"recurrent": False, "norm": "post", "power": True}])
def test_opcheck_of_the_step_in_place(options: dict[str, Any]) -> None:
    x, h, _, f, weight, bias, lambda_, gamma, _, _, power_weight, *rest = stpn_arguments(
        **options, grad=False
    )
    torch.library.opcheck(
        torch.ops.stpn.stpn_step_.default,
        (x[:, 0], h, f, weight, bias, lambda_, gamma, power_weight, *rest),
    )


def test_the_step_says_what_it_changes() -> None:
    schema = torch.ops.stpn.stpn_step_.default._schema
    changed = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    assert changed == ["f"]


LAYERS: list[tuple[Any, dict[str, Any]]] = [
    (STPNf, {"norm": "post", "clamp": 0.5}),
    (STPNr, {"stp": "neuron"}),
    (STPNl, {}),
    (ModPlast, {}),
    (FastWeights, {}),
    (HebbFF, {}),
]


def loss_and_gradients(run: Any, layer: Any, x: Tensor, reset: Tensor) -> list[Tensor]:
    """y, the final state, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y, states = run(x, None, reset)
    final = [value for state in states for value in state]
    total = y.square().sum() + sum(value.sin().sum() for value in final)
    leaves = [x, *layer.parameters()]
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
    return [value.detach() for value in (y, *final, *gradients)]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=lambda v: getattr(v, "__name__", ""))
def test_compiled_layers_equal_eager_ones(kind: Any, options: dict[str, Any]) -> None:
    layer = kind(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64, **options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x, reset = draw(BATCH, STEPS, INPUTS, grad=False), torch.rand(BATCH, STEPS) < 0.3
    with use_backend("native"):
        expected = loss_and_gradients(layer, layer, x, reset)
        torch.testing.assert_close(loss_and_gradients(compiled, layer, x, reset), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # Inductor's own
def test_inductor() -> None:
    layer = STPNr(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True)
    x, reset = draw(BATCH, STEPS, INPUTS, grad=False), torch.rand(BATCH, STEPS) < 0.3
    with use_backend("native"):
        expected = loss_and_gradients(layer, layer, x, reset)
        torch.testing.assert_close(loss_and_gradients(compiled, layer, x, reset), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("kind", [STPNr, STPNl, ModPlast, FastWeights])
def test_other_kinds_of_derivative_come_from_the_specification(kind: Any) -> None:
    core = kind(4, 3, batch_first=True, dtype=torch.float64)
    x, tangent = draw(2, 5, 4, grad=False), draw(2, 5, 4, grad=False)

    def loss(x: Tensor) -> Tensor:
        return core(x)[0].square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)
    slope = (expected * tangent).sum()
    torch.testing.assert_close(torch.func.jvp(loss, (x,), (tangent,))[1], slope)
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, tangent)))
    torch.testing.assert_close(dual.tangent, slope)
    with use_backend("native"), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.grad(loss)(x)


@pytest.mark.parametrize("modulated", [True, False])
def test_gradcheck_modplast(modulated: bool) -> None:
    # Within the clamp, where the function is smooth.
    arguments = modplast_arguments(modulated=modulated, masked=True, power=True)
    *tensors, reset, lengths, power_weight = arguments
    leaves = [t for t in tensors if t is not None]

    def run(*values: Tensor) -> tuple[Tensor | None, ...]:
        given = iter(values)
        filled = [next(given) if t is not None else None for t in tensors]
        return backends.modplast(*filled, reset=reset, lengths=lengths, power_weight=power_weight)

    with use_backend("native"), torch.no_grad():
        for leaf in leaves:
            leaf.mul_(0.5)
    with use_backend("native"):
        assert torch.autograd.gradcheck(run, leaves, nondet_tol=0.0)


def test_gradcheck_fast_weights() -> None:
    *leaves, reset, lengths, power_weight, _, _, _ = fast_weights_arguments(masked=True, power=True)

    def run(*values: Tensor) -> tuple[Tensor | None, ...]:
        return backends.fast_weights(
            *values, reset=reset, lengths=lengths, power_weight=power_weight
        )

    with use_backend("native"):
        assert torch.autograd.gradcheck(run, leaves, nondet_tol=0.0)


# The backward pass recomputes F; what it keeps of a step is a few numbers per neuron.
MOST_PER_ROW = 7


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", [None, "pre", "post"])
@pytest.mark.parametrize("power", [False, True])
def test_what_is_saved_of_a_step_does_not_grow_with_the_synapses(gated, norm, power) -> None:
    sizes = []
    for inputs in (5, 500):
        arguments = stpn_arguments(gated=gated, norm=norm, power=power, steps=2, inputs=inputs)
        arguments = [a.detach().float() if isinstance(a, Tensor) else a for a in arguments]
        *_, saved = torch.ops.stpn.stpn(*arguments, True)
        assert len(saved) == 1 + BATCH * 2
        sizes.append(saved.shape[1])
    rows = HIDDEN * (4 if gated else 1)
    assert sizes[0] == sizes[1] <= MOST_PER_ROW * rows + 5 * HIDDEN * gated


@pytest.mark.parametrize(
    ("name", "make"), [("modplast", modplast_arguments), ("fast_weights", fast_weights_arguments)]
)
def test_what_the_baselines_save_of_a_step_is_linear_in_the_neurons(name: str, make: Make) -> None:
    *_, saved = getattr(torch.ops.stpn, name)(*make(grad=False, power=True), True)
    assert len(saved) == 1 + BATCH * STEPS
    assert saved.shape[1] <= 3 * HIDDEN + 1


@pytest.mark.parametrize("kind", [STPNr, STPNl, ModPlast, FastWeights])
def test_autograd_keeps_no_state_of_any_step(kind: Any) -> None:
    """All that the graph holds on to is far less than F of every step."""
    steps, hidden = 40, 64
    layer = kind(INPUTS, hidden, batch_first=True)
    x = torch.randn(BATCH, steps, INPUTS)
    held: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor.numel())
        return tensor

    with use_backend("native"), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y, (state,) = layer(x)
    assert y.requires_grad
    assert held
    assert sum(held) < steps * state[-1].numel() / 3


def test_nothing_is_saved_without_gradients() -> None:
    *_, saved = torch.ops.stpn.stpn(*stpn_arguments(grad=False), False)
    assert saved.numel() == 0
