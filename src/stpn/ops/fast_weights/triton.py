"""Fast weights on the GPU: those of a sequence stay in registers, as in stpn/triton_on_chip.

Same signature and same results as the specification, for one turn of the inner loop and networks
whose fast weights fit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stpn.ops.fast_weights import reference
from stpn.ops.gpu import plan
from stpn.ops.gpu.launch import Sequence, check, in_rows, launch
from stpn.ops.gpu.neurons import h_before, limited, sign, starts_afresh, tanh
from stpn.ops.gpu.recurrence import Recurrence, Values

_FREE = ["B", "T", "every", "p_sb", "p_st", "h_sb", "f_sb"]


@triton.jit
def standardised(z, inside, eps, H: tl.constexpr):
    """(z - mean) / deviation (HB,), 0 in the padding, and 1 / deviation."""
    hat = tl.where(inside, z - tl.sum(z, 0) / H, 0.0)
    inverse = 1 / tl.sqrt_rn(tl.sum(hat * hat, 0) / H + eps)
    return hat * inverse, inverse


@triton.jit
def through_norm(hat, inverse, out, dout, ln_w, inside, H: tl.constexpr):
    """dz of out = tanh(LN(z)), and what it adds to the gradients of ln_weight and ln_bias."""
    dn = dout * (1 - out * out)
    work = dn * ln_w
    mean, dot = tl.sum(work, 0) / H, tl.sum(work * hat, 0) / H
    return tl.where(inside, (work - mean - hat * dot) * inverse, 0.0), dn * hat, dn


@triton.jit(do_not_specialize=_FREE)
def forward(
    p, p_sb, p_st, h0, h_sb, h_sk, f0, f_sb, f_sr, f_sd, w, ln_weight, ln_bias,
    reset, lengths, power_weight, y, f_T, power, slows, settled, checkpoints,
    B, T, every, decay, rate, eps, H: tl.constexpr, HP: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """p (B, T, H) -> y (B, T, H), fast weights f_T (B, H, HP), power (B, T); for a backward pass
    what went into both layer norms, slows and settled (B, T, H), and checkpoints (B, ceil(T /
    every), H, HP) of the fast weights before their update.
    """
    b = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, HB)
    inside = unit < H
    tile = inside[:, None] & (unit < HP)[None, :]
    place = unit[:, None] * HP + unit[None, :]
    ln_w = tl.load(ln_weight + unit, inside, 0.0)
    ln_b = tl.load(ln_bias + unit, inside, 0.0)
    h = tl.load(h0 + b * h_sb + unit * h_sk, inside, 0.0)
    at_f0 = f0 + b * f_sb + unit[:, None] * f_sr + unit[None, :] * f_sd
    f = tl.load(at_f0, inside[:, None] & inside[None, :], 0.0)
    length = T
    if lengths is not None:
        length = tl.load(lengths + b).to(tl.int32)
    for t in range(length):
        if reset is not None:
            if starts_afresh(reset, b, t, T) != 0:
                h, f = tl.zeros_like(h), tl.zeros_like(f)
        if checkpoints is not None:
            if t % every == 0:
                segment = b * tl.cdiv(T, every) + t // every
                tl.store(checkpoints + segment * H * HP + place, f, tile)
        f = decay * f + rate * h[:, None] * h[None, :]
        w_ = tl.load(w + place, tile, 0.0)
        slow = tl.load(p + b * p_sb + t * p_st + unit, inside, 0.0).to(tl.float32)
        slow += tl.sum(w_ * h[None, :], 1)
        hat, _ = standardised(slow, inside, eps, H)
        u = tanh(hat * ln_w + ln_b)
        if power_weight is not None:
            counted = tl.load(power_weight + unit, inside, 0.0)
            used = tl.abs(w_) * (counted * h * h)[None, :] + tl.abs(f) * (counted * u * u)[None, :]
            tl.store(power + b * T + t, tl.sum(tl.sum(used, 1), 0))
        z = slow + tl.sum(f * u[None, :], 1)
        hat, _ = standardised(z, inside, eps, H)
        h = tanh(hat * ln_w + ln_b)
        at = (b * T + t) * H + unit
        tl.store(y + at, h, inside)
        if slows is not None:
            tl.store(slows + at, slow, inside)
            tl.store(settled + at, z, inside)
    tl.store(f_T + b * H * HP + place, f, tile)


@triton.jit(do_not_specialize=_FREE)
def backward(
    h0, h_sb, h_sk, w, ln_weight, ln_bias, reset, lengths, power_weight,
    y, slows, settled, checkpoints, dy, df_T, dpower,
    dp, dh0, df0, dw, dln_weight, dln_bias, segment, B, T, every, decay, rate, eps,
    H: tl.constexpr, HP: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """Gradients of p (B, T, H) and the initial state, and one partial sum per program of dw
    (P, H, HP), dln_weight and dln_bias (P, H). `segment` (P, every, H, HP) is scratch.
    """
    program = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, HB)
    inside = unit < H
    tile = inside[:, None] & (unit < HP)[None, :]
    place = unit[:, None] * HP + unit[None, :]
    segment += program * every * H * HP
    ln_w = tl.load(ln_weight + unit, inside, 0.0)
    ln_b = tl.load(ln_bias + unit, inside, 0.0)
    sum_w = tl.zeros((HB, HB), tl.float32)
    sum_ln_w = tl.zeros((HB,), tl.float32)
    sum_ln_b = tl.zeros((HB,), tl.float32)
    for b in range(program, B, tl.num_programs(0)):
        length = T
        if lengths is not None:
            length = tl.load(lengths + b).to(tl.int32)
        dF = tl.zeros((HB, HB), tl.float32)  # of the fast weights as step t leaves them
        if df_T is not None:
            dF = tl.load(df_T + b * H * HP + place, tile, 0.0)
        dh = tl.zeros((HB,), tl.float32)
        segments = tl.cdiv(length, every)
        for back in range(segments):
            t0 = (segments - 1 - back) * every
            t1 = tl.minimum(t0 + every, length)
            start = checkpoints + (b * tl.cdiv(T, every) + t0 // every) * H * HP
            f = tl.load(start + place, tile, 0.0)
            for t in range(t0, t1):
                fresh = starts_afresh(reset, b, t, T)
                h = h_before(y, h0, h_sb, h_sk, b, t, fresh, unit, T, H)
                f = decay * tl.where(fresh != 0, 0.0, f) + rate * h[:, None] * h[None, :]
                tl.store(segment + (t - t0) * H * HP + place, f, tile)
            tl.debug_barrier()  # what one thread wrote another may read
            for k in range(t1 - t0):
                t = t1 - 1 - k
                at = (b * T + t) * H + unit
                fresh = starts_afresh(reset, b, t, T)
                h = h_before(y, h0, h_sb, h_sk, b, t, fresh, unit, T, H)
                f = tl.load(segment + (t - t0) * H * HP + place, tile, 0.0)
                if dy is not None:
                    dh += tl.load(dy + at, inside, 0.0)
                out = tl.load(y + at, inside, 0.0)
                z = tl.load(settled + at, inside, 0.0)
                hat, inverse = standardised(z, inside, eps, H)
                dz, to_w, to_b = through_norm(hat, inverse, out, dh, ln_w, inside, H)
                sum_ln_w += to_w
                sum_ln_b += to_b
                slow = tl.load(slows + at, inside, 0.0)
                hat, inverse = standardised(slow, inside, eps, H)
                u = tanh(hat * ln_w + ln_b)
                dF += dz[:, None] * u[None, :]
                to_u = dz[:, None] * f
                if dpower is not None:
                    counted = tl.load(dpower + b * T + t)
                    counted = counted * tl.load(power_weight + unit, inside, 0.0)
                    dF += (counted * u * u)[None, :] * sign(f)
                    to_u += 2 * (counted * u)[None, :] * tl.abs(f)
                dslow, to_w, to_b = through_norm(hat, inverse, u, tl.sum(to_u, 0), ln_w, inside, H)
                sum_ln_w += to_w
                sum_ln_b += to_b
                dslow += dz
                tl.store(dp + at, dslow, inside)
                w_ = tl.load(w + place, tile, 0.0)
                sum_w += dslow[:, None] * h[None, :]
                to_h = dslow[:, None] * w_ + rate * dF * h[:, None]
                if dpower is not None:
                    sum_w += (counted * h * h)[None, :] * sign(w_)
                    to_h += 2 * (counted * h)[None, :] * tl.abs(w_)
                dh = tl.sum(to_h, 0) + rate * tl.sum(dF * h[None, :], 1)
                dF = decay * dF
                if t % 16 == 0:
                    if t > 0:
                        dF = limited(dF, 1e18)
                if fresh != 0:
                    dF, dh = tl.zeros_like(dF), tl.zeros_like(dh)
            tl.debug_barrier()  # the next segment takes the same memory
        tl.store(df0 + b * H * HP + place, dF, tile)
        tl.store(dh0 + b * H + unit, dh, inside)
    tl.store(dw + program * H * HP + place, sum_w, tile)
    tl.store(dln_weight + program * H + unit, sum_ln_w, inside)
    tl.store(dln_bias + program * H + unit, sum_ln_b, inside)


Constants = tuple[float, float, float]  # decay, rate, eps


def _forward(constants: Constants, save: bool, *tensors: Any) -> Values:
    lengths, power_weight = tensors[-2:]
    call = _call(constants, *tensors)
    new, ends = call.new, lengths is not None
    y = new(call.batch, call.steps, call.hidden, zero=ends)
    f_T = new(call.batch, call.hidden, call.padded)
    power = None if power_weight is None else new(call.batch, call.steps, zero=ends)
    slows, settled = (torch.empty_like(y) if save else None for _ in range(2))
    checkpoints = call.new_checkpoints() if save else None
    launch(
        forward, (call.batch,), call.tile, call.arguments, y=y, f_T=f_T, power=power, slows=slows,
        settled=settled, checkpoints=checkpoints,
    )  # fmt: skip
    return y, f_T, power, slows, settled, checkpoints


def _backward(
    constants: Constants, needs: Values, tensors: Values, outputs: Values, grads: Values
) -> Values:
    p, lengths = tensors[0], tensors[-2]
    y, _, _, slows, settled, checkpoints = outputs
    call = _call(constants, *tensors)
    new, parts = call.new, min(call.batch, plan.MOST_PROGRAMS)
    dp = new(*p.shape, zero=lengths is not None)
    dh0, df0 = new(call.batch, call.hidden), new(call.batch, call.hidden, call.padded)
    dw = new(parts, call.hidden, call.padded)
    dln_weight, dln_bias = new(parts, call.hidden), new(parts, call.hidden)
    launch(
        backward, (parts,), call.tile, call.arguments, call.given(*grads), y=y, slows=slows,
        settled=settled, checkpoints=checkpoints, dp=dp, dh0=dh0, df0=df0, dw=dw,
        dln_weight=dln_weight, dln_bias=dln_bias,
        segment=new(parts, call.every, call.hidden, call.padded),
    )  # fmt: skip
    return (
        dp.to(p.dtype), dh0, df0[..., : call.hidden], call.summed(dw), dln_weight.sum(0),
        dln_bias.sum(0),
    )  # fmt: skip


def _call(
    constants: Constants, p: Tensor, h0: Tensor, a0: Tensor, w_h: Tensor, ln_weight: Tensor,
    ln_bias: Tensor, reset: Tensor | None, lengths: Tensor | None, power_weight: Tensor | None,
) -> Sequence:  # fmt: skip
    call = Sequence(p, h0, a0, reset, lengths, power_weight)
    units = (call.hidden,)
    check(p, w_h=(w_h, units * 2), ln_weight=(ln_weight, units), ln_bias=(ln_bias, units))
    call.arguments |= {
        "w": in_rows(w_h), "ln_weight": ln_weight.contiguous(), "ln_bias": ln_bias.contiguous(),
        "decay": constants[0], "rate": constants[1], "eps": constants[2],
    }  # fmt: skip
    return call


def _specification(constants: Constants, p: Tensor, *tensors: Any) -> Values:
    *others, reset, lengths, power_weight = tensors
    decay, rate, eps = constants
    return reference.fast_weights(
        p.float(), *others, decay=decay, rate=rate, eps=eps, reset=reset, lengths=lengths,
        power_weight=power_weight,
    )  # fmt: skip


_run = Recurrence(
    "fast_weights_triton", "p h0 a0 w_h ln_weight ln_bias reset lengths power_weight",
    differentiable=6, constants="float decay, float rate, float eps", outputs=6, results=3,
    padded=(1, 2), forward=_forward, backward=_backward, specification=_specification,
)  # fmt: skip


def fast_weights(
    p: Tensor, h0: Tensor, a0: Tensor, w_h: Tensor, ln_weight: Tensor, ln_bias: Tensor, *,
    decay: float = 0.9, rate: float = 0.5, steps: int = 1, eps: float = 1e-5,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`fast_weights` of the specification, for one turn of the inner loop."""
    constants = float(decay), float(rate), float(eps)
    y, a, power = _run(constants, p, h0, a0, w_h, ln_weight, ln_bias, reset, lengths, power_weight)
    return y, a, power
