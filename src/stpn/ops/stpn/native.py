"""The STPN recurrences on the C++ kernels. Same signatures and same results as `reference`.

One thing goes better than in plain PyTorch of the same precision: dL/dF is held to 1e18 (double:
1e150) on its way back, so that synapses which amplify without being used make no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from stpn import _native
from stpn._native import Activation, Cell, Norm
from stpn.ops.operands import (
    Operand,
    Rate,
    Sequence,
    Start,
    last_size,
    present,
    schema,
    sequence_sizes,
)
from stpn.ops.operators import Operator, Sizes, check_devices, define
from stpn.ops.stpn import reference
from stpn.ops.stpn.reference import STPNOptions
from stpn.ops.tracing import traced

_NORMS: dict[str | None, int] = {None: Norm.none, "pre": Norm.pre, "post": Norm.post}
_ACTIVATIONS: dict[str, int] = {
    name: getattr(Activation, name) for name in ("tanh", "sigmoid", "relu")
}


class Inputs(NamedTuple):
    x: Annotated[Tensor, Sequence("B T I")]
    h0: Annotated[Tensor, Start("B H")]
    c0: Annotated[Tensor | None, Start("B H")]
    """Given: gates of an LSTM, R = 4H."""
    f0: Annotated[Tensor, Start("B R D")]
    weight: Annotated[Tensor, Operand("R D")]
    bias: Annotated[Tensor | None, Operand("R")]
    lambda_: Annotated[Tensor, Rate("R D")]
    gamma: Annotated[Tensor, Rate("R D")]
    reset: Annotated[Tensor | None, Sequence("B T", dtype=torch.bool, differentiable=False)]
    lengths: Annotated[Tensor | None, Operand("B", dtype=torch.int64, differentiable=False)]
    power_weight: Annotated[Tensor | None, Operand("D", differentiable=False)]
    norm: int
    activation: int
    recurrent: bool
    clamp: float
    """Infinite: none."""
    associate_new: bool


class Results(NamedTuple):
    y: Annotated[Tensor, Sequence("B T H")]
    c_T: Annotated[Tensor | None, Operand("B H")]
    f_T: Annotated[Tensor, Operand("B R D")]
    power: Annotated[Tensor | None, Operand("B T")]


class _STPN(Operator[Inputs, Results]):
    name = "stpn"
    inputs, results = Inputs, Results

    def sizes(self, inputs: Inputs) -> Sizes:
        batch, steps, features = sequence_sizes("x", inputs.x)
        hidden = last_size("h0", inputs.h0)
        rows = hidden if inputs.c0 is None else 4 * hidden
        columns = features + hidden if inputs.recurrent else features
        return Sizes(batch, steps, features, hidden, rows, columns)

    def kind(self, inputs: Inputs) -> tuple[int, int]:
        return Cell.plain if inputs.c0 is None else Cell.lstm, inputs.norm

    def set_options(self, call: _native.Call, inputs: Inputs) -> None:
        if not inputs.clamp >= 0:
            raise ValueError(f"clamp: expected a positive number, got {inputs.clamp}")
        call.activation, call.recurrent = inputs.activation, inputs.recurrent
        call.clamp, call.associate_new = inputs.clamp, inputs.associate_new

    def gives(self, inputs: Inputs) -> tuple[bool, ...]:
        return True, inputs.c0 is not None, True, inputs.power_weight is not None

    def specification(self, inputs: Inputs) -> Results:
        x, h0, c0, f0, weight, bias, lambda_, gamma, *_ = inputs
        rest: Any = {
            "options": _specified(inputs),
            "reset": inputs.reset,
            "lengths": inputs.lengths,
            "power_weight": inputs.power_weight,
        }
        if c0 is None:
            y, f_T, power = reference.stpn(x, h0, f0, weight, bias, lambda_, gamma, **rest)
            return Results(y, None, f_T, power)
        return Results(*reference.stpn_lstm(x, h0, c0, f0, weight, bias, lambda_, gamma, **rest))


operator = _STPN()


def _numbered(options: STPNOptions) -> tuple[int, int, bool, float, bool]:
    """Options as the operator takes them."""
    return (
        _NORMS[options.norm],
        _ACTIVATIONS[options.nonlinearity],
        options.recurrent,
        math.inf if options.clamp is None else options.clamp,
        options.associate == "new",
    )


def _specified(inputs: Inputs) -> STPNOptions:
    """Options as the specification takes them."""
    names = {number: name for name, number in _NORMS.items()}
    activations = {number: name for name, number in _ACTIVATIONS.items()}
    return STPNOptions(
        recurrent=inputs.recurrent,
        norm=names[inputs.norm],  # type: ignore[arg-type]
        clamp=None if math.isinf(inputs.clamp) else inputs.clamp,
        nonlinearity=activations[inputs.activation],  # type: ignore[arg-type]
        associate="new" if inputs.associate_new else "previous",
    )


def _rate(tensor: Tensor, weight: Tensor) -> Tensor:
    """lambda or gamma in a shape that the kernel knows: (R, D), (R, 1) or (1, 1)."""
    if tensor is None or weight is None:
        return tensor  # refused with all others
    shape, full = tensor.shape, weight.shape
    if shape == full or shape in ((full[0], 1), (1, 1)):
        return tensor
    return tensor.expand(weight.shape)


def stpn(
    x: Tensor, h0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn`."""
    inputs = Inputs(
        x, h0, None, f0, weight, bias, _rate(lambda_, weight), _rate(gamma, weight), reset, lengths,
        power_weight, *_numbered(options),
    )  # fmt: skip
    y, _, f_T, power = operator.apply(inputs)
    return y, f_T, power


def stpn_lstm(
    x: Tensor, h0: Tensor, c0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm`."""
    inputs = Inputs(
        x, h0, present("c0", c0), f0, weight, bias, _rate(lambda_, weight), _rate(gamma, weight),
        reset, lengths, power_weight, *_numbered(options),
    )  # fmt: skip
    y, c_T, f_T, power = operator.apply(inputs)
    assert c_T is not None
    return y, c_T, f_T, power


# --- One step in place, for streams -------------------------------------------------------------


def _step(
    x: Tensor, h: Tensor, c: Tensor | None, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, power_weight: Tensor | None, *options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if present("x", x).dim() != 2:
        raise ValueError(f"x: expected shape (B, I), got {tuple(x.shape)}")
    inputs = Inputs(
        x.unsqueeze(1), h, c, f, weight, bias, lambda_, gamma, None, None, power_weight, *options
    )
    call, sizes, _kept = operator.call(inputs)
    y = x.new_empty(sizes.B, 1, sizes.H)
    call.y, call.y_sb, call.y_st = y.data_ptr(), sizes.H, sizes.H
    power = x.new_empty(sizes.B if power_weight is not None else 0)
    call.power = power.data_ptr()
    new_f, new_c = _target(f), None if c is None else _target(c)
    call.f_T, call.c_T = new_f.data_ptr(), 0 if new_c is None else new_c.data_ptr()
    _native.forward(call)
    _update(f, new_f)
    if c is not None and new_c is not None:
        _update(c, new_c)
    return y.squeeze(1), power


def _target(state: Tensor) -> Tensor:
    """Where a kernel can write the new state: the tensor itself, or another of its shape."""
    in_place = state.is_contiguous() and not state.is_neg()
    return state if in_place else state.new_empty(state.shape)


def _update(state: Tensor, new: Tensor) -> None:
    if new is not state:
        state.copy_(new)
    else:  # autograd is to notice, as it does of torch's own operations in place
        torch.autograd.graph.increment_version(state)


def _step_fake(
    x: Tensor, h: Tensor, c: Tensor | None, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, power_weight: Tensor | None, *options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    check_devices(
        x=present("x", x), h=present("h", h), c=c, f=f, weight=weight, bias=bias, lambda_=lambda_,
        gamma=gamma, power_weight=power_weight,
    )  # fmt: skip
    return x.new_empty(h.shape), x.new_empty(x.shape[0] if power_weight is not None else 0)


def _step_schema(gated: bool) -> str:
    """That of the sequence, without what only a sequence has."""
    state = {"h0": "Tensor h", "c0": "Tensor(a!) c", "f0": "Tensor(b!) f"}
    omitted = {"reset", "lengths"} if gated else {"reset", "lengths", "c0"}
    fields = [
        state.get(name, f"{kind} {name}")
        for name, kind in schema(Inputs).items()
        if name not in omitted
    ]
    return f"({', '.join(fields)}) -> (Tensor, Tensor)"


def _plain_step(x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _step(x, h, None, *rest)


_step_op = define(
    "stpn_step_",
    _step_schema(gated=False),
    _plain_step,
    lambda x, h, *rest: _step_fake(x, h, None, *rest),
)
_lstm_step_op = define("stpn_lstm_step_", _step_schema(gated=True), _step, _step_fake)


def stpn_step_(
    x: Tensor, h: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_step_`."""
    step = _step_op if traced(x) else _plain_step
    h_new, power = step(
        x, h, f, weight, bias, _rate(lambda_, weight), _rate(gamma, weight), power_weight,
        *_numbered(options),
    )  # fmt: skip
    return h_new, None if power_weight is None else power


def stpn_lstm_step_(
    x: Tensor, h: Tensor, c: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm_step_`."""
    present("c", c)
    step = _lstm_step_op if traced(x) else _step
    h_new, power = step(
        x, h, c, f, weight, bias, _rate(lambda_, weight), _rate(gamma, weight), power_weight,
        *_numbered(options),
    )  # fmt: skip
    return h_new, None if power_weight is None else power


class BoundStep:
    """`stpn_step_` bound to its tensors, and the new h written back: `y = step()`.

    A kernel takes addresses. In a stream they do not change, so what each call of `stpn_step_`
    checks and looks up is done once here, and again only when a tensor has got other memory.

    x (B, I), h (B, H) and f (B, H, D) are read anew by each call, and so are the weight, bias,
    lambda and gamma that `parameters` returns. y (B, H) is one buffer that the next call
    overwrites.
    """

    def __init__(
        self, x: Tensor, h: Tensor, f: Tensor, parameters: Callable[[], Iterable[Any]],
        *, options: STPNOptions,
    ) -> None:  # fmt: skip
        self._state, self._parameters, self._options = (x, h, f), parameters, options
        self._bind()

    def _bind(self) -> None:
        x, h, f = self._state
        weight, bias, lambda_, gamma = self._parameters()
        inputs = Inputs(
            x.unsqueeze(1), h, None, f, weight, bias, _rate(lambda_, weight),
            _rate(gamma, weight), None, None, None, *_numbered(self._options),
        )  # fmt: skip
        tensors: Any = inputs[: len(operator.operands)]
        for operand, tensor in zip(operator.operands, tensors, strict=True):
            # A copy would be read in its place.
            if tensor is not None and (tensor.is_neg() or not tensor.is_contiguous()):
                raise ValueError(f"{operand.name}: expected a contiguous tensor to bind a step to")
        self._call, _, self._kept = operator.call(inputs)
        self._y = h.new_empty(h.shape)
        hidden = h.shape[1]
        self._call.y, self._call.y_sb, self._call.y_st = self._y.data_ptr(), hidden, hidden
        self._call.f_T = f.data_ptr()
        self._storages = [t.untyped_storage() for t in tensors if t is not None]
        self._bound = self._places()

    def _places(self) -> list[Any]:
        """Where the tensors lie, and how: as long as it is the same, so are the addresses."""
        return [
            None if t is None else (t.data_ptr(), t.shape, t.stride(), t.dtype)
            for t in (*self._state, *self._parameters())
        ]

    def __call__(self) -> Tensor:
        if self._places() != self._bound:
            self._bind()
        _native.forward(self._call)
        _, h, f = self._state
        torch.autograd.graph.increment_version(f)
        h.copy_(self._y)
        return self._y
