"""The STPN recurrences on the C++ kernels. Same signatures and same results as `reference`.

One thing goes better than in plain PyTorch of the same precision: dL/dF is held to 1e18 (double:
1e150) on its way back, so that synapses which amplify without being used make no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stpn.ops.operands import (
    LSTM,
    PLAIN,
    Operands,
    always_power,
    check,
    check_sequence,
    given,
    new_records,
    run_backward,
    run_forward,
)
from stpn.ops.operators import (
    Forward,
    define,
    differentiable,
    not_differentiable,
    traced,
    wants_gradient,
)
from stpn.ops.reference import STPNOptions

_NORMS = {None: 0, "pre": 1, "post": 2}
_ACTIVATIONS = {"tanh": 0, "sigmoid": 1, "relu": 2}


# --- STPN, plain and gated ----------------------------------------------------------------------

_STPN_INPUTS = (
    "Tensor x, Tensor h0, Tensor? c0, Tensor f0, Tensor weight, Tensor? bias, Tensor lambda_, "
    "Tensor gamma, Tensor? reset, Tensor? lengths, Tensor? power_weight, "
    "int norm, int activation, bool recurrent, float clamp"
)


def _stpn_saved_size(rows: int, hidden: int, norm: int, power: bool, gated: bool) -> int:
    """Values per step and batch element; the layout of `Record` in csrc/lane.h."""
    without, with_power = {0: (0, 0), 1: (2, 3), 2: (5, 7)}[norm]
    per_row = with_power if power else without
    return rows * per_row + (5 * hidden if gated else 0)


def _rate_shape(tensor: Tensor, rows: int, columns: int) -> Sequence[int]:
    shared = ((rows, 1), (1, 1))
    return tensor.shape if tensor.shape in shared else (rows, columns)


def _stpn_operands(
    x: Tensor, h0: Tensor, c0: Tensor | None, f0: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, reset: Tensor | None, lengths: Tensor | None,
    power_weight: Tensor | None, norm: int, activation: int, recurrent: bool, clamp: float,
) -> Operands:  # fmt: skip
    check_sequence("x", x, reset, lengths)
    batch, steps, inputs = x.shape
    hidden = h0.shape[-1]
    rows, columns = hidden if c0 is None else 4 * hidden, inputs + hidden * recurrent
    check(
        x, h0=(h0, (batch, hidden)), c0=(c0, (batch, hidden)), f0=(f0, (batch, rows, columns)),
        weight=(weight, (rows, columns)), bias=(bias, (rows,)),
        lambda_=(lambda_, _rate_shape(lambda_, rows, columns)),
        gamma=(gamma, _rate_shape(gamma, rows, columns)), power_weight=(power_weight, (columns,)),
    )  # fmt: skip
    operands = Operands(PLAIN if c0 is None else LSTM, x, batch * steps * rows * columns)
    call = operands.call
    call.norm, call.activation, call.recurrent, call.clamp = norm, activation, recurrent, clamp
    call.B, call.T, call.I, call.H = batch, steps, inputs, hidden
    operands.put_sequence("x", x)
    operands.put_sequence("reset", reset)
    operands.put_start(h0=h0, c0=c0, f0=f0)
    operands.put(weight=weight, bias=bias, lengths=lengths, power_weight=power_weight)
    operands.put_rate("lambda_", lambda_, rows, columns)
    operands.put_rate("gamma", gamma, rows, columns)
    return operands


def _stpn_results(
    x: Tensor, h0: Tensor, c0: Tensor | None, f0: Tensor, norm: int, power: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y (B, T, H), c_T, f_T, power (B, T) and what the backward pass needs."""
    batch, steps, _ = x.shape
    hidden, rows = h0.shape[1], f0.shape[1]
    gated = c0 is not None
    size = _stpn_saved_size(rows, hidden, norm, power or always_power(x, gated), gated)
    return (
        x.new_empty(batch, steps, hidden),
        x.new_empty(batch, hidden) if c0 is not None else x.new_empty(0),
        x.new_empty(f0.shape),
        x.new_empty(batch, steps) if power else x.new_empty(0),
        new_records(x, batch, steps, size) if save else x.new_empty(0),
    )


def _stpn_run(*args: Any) -> tuple[Tensor, ...]:
    *inputs, save = args
    x, h0, c0, f0 = inputs[:4]
    operands = _stpn_operands(*inputs)
    results = y, c_T, f_T, power, saved = _stpn_results(
        x, h0, c0, f0, inputs[11], inputs[10] is not None, save
    )
    operands.put_sequence("y", y)
    operands.put(c_T=given(c_T), f_T=f_T, power=given(power), saved=given(saved))
    run_forward(operands)
    return results


def _stpn_fake(*args: Any) -> tuple[Tensor, ...]:
    x, h0, c0, f0 = args[:4]
    return _stpn_results(x, h0, c0, f0, args[11], args[10] is not None, args[15])


_stpn_op = define(
    "stpn",
    f"({_STPN_INPUTS}, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _stpn_run,
    _stpn_fake,
)


def _stpn_gradients(inputs: Sequence[Any], needs: Sequence[bool]) -> list[Tensor]:
    """Of x, h0, c0, f0, weight, bias, lambda and gamma, empty where not wanted."""
    like = inputs[0]
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if wanted and tensor is not None
        else like.new_empty(0)
        for tensor, wanted in zip(inputs[:8], needs, strict=True)
    ]


def _stpn_backward_run(*args: Any) -> tuple[Tensor, ...]:
    inputs, (y, saved, dy, dc_T, df_T, dpower, needs) = args[:15], args[15:]
    gradients = _stpn_gradients(inputs, needs)
    dx, dh0, dc0, df0, dweight, dbias, dlambda, dgamma = map(given, gradients)
    operands = _stpn_operands(*inputs)
    operands.put_sequence("y", y)
    operands.put_sequence("dy", dy)
    operands.put_sequence("dx", dx)
    operands.put(
        saved=saved, dc_T=dc_T, df_T=df_T, dpower=dpower, dh0=dh0, dc0=dc0, df0=df0,
        dweight=dweight, dbias=dbias, dlambda=dlambda, dgamma=dgamma,
    )  # fmt: skip
    run_backward(operands)
    return tuple(gradients)


def _stpn_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return tuple(_stpn_gradients(args[:15], args[21]))


_stpn_backward_op = define(
    "stpn_backward",
    f"({_STPN_INPUTS}, Tensor y, Tensor saved, Tensor? dy, Tensor? dc_T, Tensor? df_T, "
    "Tensor? dpower, bool[] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _stpn_backward_run,
    _stpn_backward_fake,
)


def _stpn_gradient(
    ctx: Any, backward: Forward, dy: Any, dc_T: Any, df_T: Any, dpower: Any, _: Any
) -> Any:
    *inputs, y, saved = ctx.saved_tensors
    gradients = backward(
        *inputs, *ctx.options, y, saved, dy,
        dc_T if inputs[2] is not None else None, df_T, dpower if inputs[10] is not None else None,
        list(ctx.needs_input_grad[:8]),
    )  # fmt: skip
    wanted = zip(gradients, ctx.needs_input_grad, strict=False)
    return *(g if needed else None for g, needed in wanted), *(None,) * 8


_stpn = differentiable(
    "stpn", _stpn_op, _stpn_run, _stpn_gradient, 11, _stpn_backward_run, _stpn_backward_op
)
not_differentiable("stpn_backward")


def _rate(tensor: Tensor, weight: Tensor) -> Tensor:
    """lambda or gamma in a shape that the kernel knows: (R, D), (R, 1) or (1, 1)."""
    if tensor.dim() == 2 and tensor.shape in (weight.shape, (weight.shape[0], 1), (1, 1)):
        return tensor
    return tensor.expand(weight.shape)


def _stpn_options(options: STPNOptions) -> tuple[int, int, bool, float]:
    return (
        _NORMS[options.norm],
        _ACTIVATIONS[options.nonlinearity],
        options.recurrent,
        math.inf if options.clamp is None else options.clamp,
    )


def stpn(
    x: Tensor, h0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn`."""
    lambda_, gamma = _rate(lambda_, weight), _rate(gamma, weight)
    save = wants_gradient(x, h0, f0, weight, bias, lambda_, gamma)
    y, _, f_T, power, _ = _stpn(
        x, h0, None, f0, weight, bias, lambda_, gamma, reset, lengths, power_weight,
        *_stpn_options(options), save,
    )  # fmt: skip
    return y, f_T, None if power_weight is None else power


def stpn_lstm(
    x: Tensor, h0: Tensor, c0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm`."""
    lambda_, gamma = _rate(lambda_, weight), _rate(gamma, weight)
    save = wants_gradient(x, h0, c0, f0, weight, bias, lambda_, gamma)
    y, c_T, f_T, power, _ = _stpn(
        x, h0, c0, f0, weight, bias, lambda_, gamma, reset, lengths, power_weight,
        *_stpn_options(options), save,
    )  # fmt: skip
    return y, c_T, f_T, None if power_weight is None else power


# --- One step in place, for streams -------------------------------------------------------------


def _step(
    x: Tensor, h: Tensor, c: Tensor | None, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, power_weight: Tensor | None, *options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    target = f if f.is_contiguous() else f.contiguous()
    cell = c if c is None or c.is_contiguous() else c.contiguous()
    operands = _stpn_operands(
        x.unsqueeze(1), h, cell, target, weight, bias, lambda_, gamma, None, None, power_weight,
        *options,
    )  # fmt: skip
    y = x.new_empty(x.shape[0], 1, h.shape[1])
    power = x.new_empty(x.shape[0]) if power_weight is not None else x.new_empty(0)
    operands.put_sequence("y", y)
    operands.put(f_T=target, c_T=cell, power=given(power))
    run_forward(operands)
    for state, written in ((f, target), (c, cell)):
        if state is None or written is None:
            continue
        if written is not state:
            state.copy_(written)
        else:  # autograd is to notice, as it does of torch's own operations in place
            torch.autograd.graph.increment_version(state)
    return y.squeeze(1), power


def _step_run(x: Tensor, h: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return _step(x, h, None, *args)


def _step_fake(x: Tensor, h: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    batch = x.shape[0]
    return x.new_empty(h.shape), x.new_empty(batch) if args[5] is not None else x.new_empty(0)


_step_op = define(
    "stpn_step_",
    "(Tensor x, Tensor h, Tensor(a!) f, Tensor weight, Tensor? bias, Tensor lambda_, "
    "Tensor gamma, Tensor? power_weight, int norm, int activation, bool recurrent, float clamp) "
    "-> (Tensor, Tensor)",
    _step_run,
    _step_fake,
)


_lstm_step_op = define(
    "stpn_lstm_step_",
    "(Tensor x, Tensor h, Tensor(a!) c, Tensor(b!) f, Tensor weight, Tensor? bias, Tensor lambda_, "
    "Tensor gamma, Tensor? power_weight, int norm, int activation, bool recurrent, float clamp) "
    "-> (Tensor, Tensor)",
    _step,
    lambda x, h, c, *args: _step_fake(x, h, *args),
)


def stpn_step_(
    x: Tensor, h: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_step_`."""
    step = _step_op if traced(x) else _step_run
    h_new, power = step(
        x, h, f, weight, bias, _rate(lambda_, weight), _rate(gamma, weight), power_weight,
        *_stpn_options(options),
    )  # fmt: skip
    return h_new, None if power_weight is None else power


def stpn_lstm_step_(
    x: Tensor, h: Tensor, c: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm_step_`."""
    step = _lstm_step_op if traced(x) else _step
    h_new, power = step(
        x, h, c, f, weight, bias, _rate(lambda_, weight), _rate(gamma, weight), power_weight,
        *_stpn_options(options),
    )  # fmt: skip
    return h_new, None if power_weight is None else power
