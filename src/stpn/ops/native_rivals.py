"""Modulated plasticity and fast weights on the C++ kernels.

Same signatures and same results as `reference_rivals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stpn import _native
from stpn.ops.operands import (
    FAST_WEIGHTS,
    MODPLAST,
    Operands,
    check,
    check_sequence,
    given,
    in_rows,
    new_records,
    run_backward,
    run_forward,
)
from stpn.ops.operators import Forward, define, differentiable, not_differentiable, wants_gradient

_INPUTS = "Tensor p, Tensor h0, Tensor f0, Tensor weight"
_MASKS = "Tensor? reset, Tensor? lengths, Tensor? power_weight"


def _operands(
    cell: int, p: Tensor, h0: Tensor, f0: Tensor, weight: Tensor,
    reset: Tensor | None, lengths: Tensor | None, power_weight: Tensor | None,
) -> Operands:  # fmt: skip
    check_sequence("p", p, reset, lengths)
    batch, steps, hidden = p.shape
    check(
        p, h0=(h0, (batch, hidden)), f0=(f0, (batch, hidden, hidden)),
        weight=(weight, (hidden, hidden)), power_weight=(power_weight, (hidden,)),
    )  # fmt: skip
    operands = Operands(cell, p, batch * steps * hidden * hidden)
    call = operands.call
    call.B, call.T, call.I, call.H, call.recurrent = batch, steps, hidden, hidden, 1
    operands.put_sequence("x", p)
    operands.put_sequence("reset", reset)
    operands.put_start(h0=h0, f0=f0)
    operands.put(weight=weight, lengths=lengths, power_weight=power_weight)
    return operands


def _results(p: Tensor, f0: Tensor, extra: int, power: bool, save: bool) -> tuple[Tensor, ...]:
    """y (B, T, H), f_T (B, H, H), power (B, T) and what the backward pass needs."""
    batch, steps, hidden = p.shape
    return (
        p.new_empty(batch, steps, hidden),
        p.new_empty(f0.shape),
        p.new_empty(batch, steps) if power else p.new_empty(0),
        new_records(p, batch, steps, extra) if save else p.new_empty(0),
    )


def _forward(operands: Operands, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    y, f_T, power, saved = results
    operands.put_sequence("y", y)
    operands.put(f_T=f_T, power=given(power), saved=given(saved))
    run_forward(operands)
    return results


def _gradients(tensors: Sequence[Tensor | None], needs: Sequence[bool]) -> list[Tensor]:
    like = tensors[0]
    assert like is not None
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if wanted and tensor is not None
        else like.new_empty(0)
        for tensor, wanted in zip(tensors, needs, strict=True)
    ]


def _backward(
    operands: Operands, names: Sequence[str], gradients: list[Tensor], results: Sequence[Any]
) -> tuple[Tensor, ...]:
    y, saved, dy, df_T, dpower = results
    operands.put_sequence("y", y)
    operands.put_sequence("dy", dy)
    operands.put_sequence("dx", given(gradients[0]))
    operands.put(saved=saved, df_T=df_T, dpower=dpower)
    operands.put(**{name: given(g) for name, g in zip(names, gradients[1:], strict=True)})
    run_backward(operands)
    return tuple(gradients)


# --- Modulated plasticity -----------------------------------------------------------------------

_MODPLAST = f"{_INPUTS}, Tensor alpha, Tensor? v, Tensor? d, Tensor? eta, {_MASKS}"


def _modplast_operands(*inputs: Any) -> Operands:
    p, h0, f0, weight, alpha, v, d, eta, reset, lengths, power_weight = inputs
    operands = _operands(MODPLAST, p, h0, f0, weight, reset, lengths, power_weight)
    check(p, alpha=(alpha, weight.shape), v=(v, h0.shape[1:]), d=(d, ()), eta=(eta, ()))
    operands.call.clamp = 1.0
    operands.put(alpha=alpha, mod_v=v, mod_d=d, eta=eta)
    return operands


def _modplast_fake(*args: Any) -> tuple[Tensor, ...]:
    return _results(args[0], args[2], 1, args[10] is not None, args[11])


def _modplast_run(*args: Any) -> tuple[Tensor, ...]:
    return _forward(_modplast_operands(*args[:-1]), _modplast_fake(*args))


_modplast_op = define(
    "modplast",
    f"({_MODPLAST}, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    _modplast_run,
    _modplast_fake,
)

_MODPLAST_GRADIENTS = ("dh0", "df0", "dweight", "dalpha", "dmod_v", "dmod_d", "deta")


def _modplast_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return tuple(_gradients(args[:8], args[16]))


def _modplast_backward_run(*args: Any) -> tuple[Tensor, ...]:
    gradients = _gradients(args[:8], args[16])
    return _backward(_modplast_operands(*args[:11]), _MODPLAST_GRADIENTS, gradients, args[11:16])


_RESULTS = "Tensor y, Tensor saved, Tensor? dy, Tensor? df_T, Tensor? dpower, bool[] needs"

_modplast_backward_op = define(
    "modplast_backward",
    f"({_MODPLAST}, {_RESULTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _modplast_backward_run,
    _modplast_backward_fake,
)


def _modplast_gradient(ctx: Any, backward: Forward, dy: Any, df_T: Any, dpower: Any, _: Any) -> Any:
    *inputs, y, saved = ctx.saved_tensors
    needs = ctx.needs_input_grad[:8]
    dpower = dpower if inputs[10] is not None else None
    gradients = backward(*inputs, y, saved, dy, df_T, dpower, list(needs))
    wanted = zip(gradients, needs, strict=True)
    return *(g if needed else None for g, needed in wanted), *(None,) * 4


_modplast = differentiable(
    "modplast",
    _modplast_op,
    _modplast_run,
    _modplast_gradient,
    11,
    _modplast_backward_run,
    _modplast_backward_op,
)
not_differentiable("modplast_backward")


def modplast(
    p: Tensor, h0: Tensor, hebb0: Tensor, w: Tensor, alpha: Tensor, v: Tensor | None,
    d: Tensor | None, eta: Tensor | None, *, reset: Tensor | None = None,
    lengths: Tensor | None = None, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference_rivals.modplast`."""
    save = wants_gradient(p, h0, hebb0, w, alpha, v, d, eta)
    y, hebb, power, _ = _modplast(
        p, h0, hebb0, w, alpha, v, d, eta, reset, lengths, power_weight, save
    )
    return y, hebb, None if power_weight is None else power


# --- Fast weights -------------------------------------------------------------------------------

_FAST = f"{_INPUTS}, Tensor ln_weight, Tensor ln_bias, {_MASKS}, float decay, float rate, float eps"


def _fast_operands(*inputs: Any) -> Operands:
    p, h0, f0, weight, ln_weight, ln_bias, reset, lengths, power_weight, *constants = inputs
    operands = _operands(FAST_WEIGHTS, p, h0, f0, weight, reset, lengths, power_weight)
    check(p, ln_weight=(ln_weight, h0.shape[1:]), ln_bias=(ln_bias, h0.shape[1:]))
    call = operands.call
    call.decay, call.rate, call.ln_eps = constants
    operands.put(ln_weight=ln_weight, ln_bias=ln_bias)
    return operands


def _fast_fake(*args: Any) -> tuple[Tensor, ...]:
    p = args[0]
    return _results(p, args[2], 2 * p.shape[2], args[8] is not None, args[12])


def _fast_run(*args: Any) -> tuple[Tensor, ...]:
    return _forward(_fast_operands(*args[:-1]), _fast_fake(*args))


_fast_op = define(
    "fast_weights",
    f"({_FAST}, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    _fast_run,
    _fast_fake,
)

_FAST_GRADIENTS = ("dh0", "df0", "dweight", "dln_weight", "dln_bias")


def _fast_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    return tuple(_gradients(args[:6], args[17]))


def _fast_backward_run(*args: Any) -> tuple[Tensor, ...]:
    gradients = _gradients(args[:6], args[17])
    return _backward(_fast_operands(*args[:12]), _FAST_GRADIENTS, gradients, args[12:17])


_fast_backward_op = define(
    "fast_weights_backward",
    f"({_FAST}, {_RESULTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fast_backward_run,
    _fast_backward_fake,
)


def _fast_gradient(ctx: Any, backward: Forward, dy: Any, df_T: Any, dpower: Any, _: Any) -> Any:
    *inputs, y, saved = ctx.saved_tensors
    needs = ctx.needs_input_grad[:6]
    dpower = dpower if inputs[8] is not None else None
    gradients = backward(*inputs, *ctx.options, y, saved, dy, df_T, dpower, list(needs))
    wanted = zip(gradients, needs, strict=True)
    return *(g if needed else None for g, needed in wanted), *(None,) * 7


_fast = differentiable(
    "fast_weights", _fast_op, _fast_run, _fast_gradient, 9, _fast_backward_run, _fast_backward_op
)
not_differentiable("fast_weights_backward")


def fast_weights(
    p: Tensor, h0: Tensor, a0: Tensor, w_h: Tensor, ln_weight: Tensor, ln_bias: Tensor, *,
    decay: float = 0.9, rate: float = 0.5, steps: int = 1, eps: float = 1e-5,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference_rivals.fast_weights`, for one turn of the inner loop and a positive decay."""
    save = wants_gradient(p, h0, a0, w_h, ln_weight, ln_bias)
    y, a, power, _ = _fast(
        p, h0, a0, w_h, ln_weight, ln_bias, reset, lengths, power_weight, decay, rate, eps, save
    )
    return y, a, None if power_weight is None else power


# --- Their input, which is not plastic --------------------------------------------------------


def plus_static_power(power: Tensor, u: Tensor, weight: Tensor, power_weight: Tensor) -> Tensor:
    """`power` (B, T) + `static_power(u, weight, power_weight)`, without gradients.

    `power` may be overwritten. In torch's operations this would be an eighth of the time of metered
    Fast Weights on ART.
    """
    (batch, steps), (rows, inputs) = power.shape, weight.shape
    check(
        u, u=(u, (batch, steps, inputs)), power=(power, (batch, steps)),
        weight=(weight, (rows, inputs)), power_weight=(power_weight, (inputs,)),
    )  # fmt: skip
    power, power_weight = power.detach().contiguous(), power_weight.contiguous()
    u, weight = in_rows(u), in_rows(weight)
    _native.add_static_power(
        power.data_ptr(), u.data_ptr(), u.stride(0), u.stride(1), weight.data_ptr(),
        weight.stride(0), power_weight.data_ptr(), batch, steps, inputs, rows,
        u.dtype == torch.float64,
    )  # fmt: skip
    return power
