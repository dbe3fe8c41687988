"""Modulated plasticity on the GPU: the trace stays in registers, as F does in stpn/triton_on_chip.

Same signature and same results as the specification, for networks whose trace fits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from stpn.ops.gpu import plan
from stpn.ops.gpu.launch import Sequence, check, contiguous, in_rows, launch
from stpn.ops.gpu.neurons import h_before, limited, sign, starts_afresh, tanh
from stpn.ops.gpu.recurrence import Recurrence, Values
from stpn.ops.modplast import reference

_FREE = ["B", "T", "every", "p_sb", "p_st", "h_sb", "f_sb"]


@triton.jit(do_not_specialize=_FREE)
def forward(
    p, p_sb, p_st, h0, h_sb, h_sk, f0, f_sb, f_sr, f_sd, w, alpha, v, d, eta,
    reset, lengths, power_weight, y, f_T, power, rates, checkpoints, B, T, every,
    H: tl.constexpr, HP: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """p (B, T, H) -> y (B, T, H), trace f_T (B, H, HP), power (B, T); for a backward pass rates
    (B, T) and checkpoints (B, ceil(T / every), H, HP).
    """
    b = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, HB)
    inside = unit < H
    tile = inside[:, None] & (unit < HP)[None, :]
    place = unit[:, None] * HP + unit[None, :]
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
        if t > 0:  # what was given is taken as it is
            f = limited(f, 1.0)
        g = tl.load(w + place, tile, 0.0) + tl.load(alpha + place, tile, 0.0) * f
        if power_weight is not None:
            u2 = tl.load(power_weight + unit, inside, 0.0) * h * h
            of_rows = tl.where(inside, tl.sum(tl.abs(g) * u2[None, :], 1), 0.0)
            tl.store(power + b * T + t, tl.sum(of_rows, 0))
        z = tl.load(p + b * p_sb + t * p_st + unit, inside, 0.0).to(tl.float32)
        new = tl.where(inside, tanh(z + tl.sum(g * h[None, :], 1)), 0.0)
        if v is not None:
            rate = tanh(tl.sum(tl.load(v + unit, inside, 0.0) * new, 0) + tl.load(d))
        else:
            rate = tl.load(eta)
        if rates is not None:
            tl.store(rates + b * T + t, rate)
        tl.store(y + (b * T + t) * H + unit, new, inside)
        f += rate * new[:, None] * h[None, :]
        h = new
    if length > 0:
        f = limited(f, 1.0)
    tl.store(f_T + b * H * HP + place, f, tile)


@triton.jit(do_not_specialize=_FREE)
def backward(
    h0, h_sb, h_sk, w, alpha, v, reset, lengths, power_weight, y, rates, checkpoints,
    dy, df_T, dpower, dp, dh0, df0, dw, dalpha, dv, drate, segment, B, T, every,
    H: tl.constexpr, HP: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """Gradients of p (B, T, H) and the initial state, and one partial sum per program of dw and
    dalpha (P, H, HP), dv (P, H) and drate (P), of d or eta. `segment` (P, every + 1, H, HP).
    """
    program = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, HB)
    inside = unit < H
    tile = inside[:, None] & (unit < HP)[None, :]
    place = unit[:, None] * HP + unit[None, :]
    segment += program * (every + 1) * H * HP
    sum_w = tl.zeros((HB, HB), tl.float32)
    sum_alpha = tl.zeros((HB, HB), tl.float32)
    sum_v = tl.zeros((HB,), tl.float32)
    sum_rate = tl.full((), 0.0, tl.float32)
    for b in range(program, B, tl.num_programs(0)):
        length = T
        if lengths is not None:
            length = tl.load(lengths + b).to(tl.int32)
        dF = tl.zeros((HB, HB), tl.float32)
        dh = tl.zeros((HB,), tl.float32)
        segments = tl.cdiv(length, every)
        for back in range(segments):
            t0 = (segments - 1 - back) * every
            t1 = tl.minimum(t0 + every, length)
            start = checkpoints + (b * tl.cdiv(T, every) + t0 // every) * H * HP
            f = tl.load(start + place, tile, 0.0)
            tl.store(segment + place, f, tile)  # each of it before the clamp
            for t in range(t0, t1):
                if t > 0:
                    f = limited(f, 1.0)
                fresh = starts_afresh(reset, b, t, T)
                h = h_before(y, h0, h_sb, h_sk, b, t, fresh, unit, T, H)
                post = tl.load(y + (b * T + t) * H + unit, inside, 0.0)
                post = post * tl.load(rates + b * T + t)
                f += post[:, None] * h[None, :]
                if reset is not None:
                    if t + 1 < length:
                        if starts_afresh(reset, b, t + 1, T) != 0:
                            f = tl.zeros_like(f)
                tl.store(segment + (t + 1 - t0) * H * HP + place, f, tile)
            tl.debug_barrier()  # what one thread wrote another may read
            if df_T is not None:
                if t1 == length:
                    dF = tl.load(df_T + b * H * HP + place, tile, 0.0)
                    dF = tl.where(tl.abs(f) <= 1, dF, 0.0)
            for k in range(t1 - t0):
                t = t1 - 1 - k
                fresh = starts_afresh(reset, b, t, T)
                h = h_before(y, h0, h_sb, h_sk, b, t, fresh, unit, T, H)
                new = tl.load(y + (b * T + t) * H + unit, inside, 0.0)
                rate = tl.load(rates + b * T + t)
                s1 = tl.sum(dF * h[None, :], 1)
                to_rate = tl.sum(new * s1, 0)
                dh += rate * s1
                if v is not None:
                    to_rate = to_rate * (1 - rate * rate)
                    dh += to_rate * tl.load(v + unit, inside, 0.0)
                    sum_v += to_rate * new
                sum_rate += to_rate
                if dy is not None:
                    dh += tl.load(dy + (b * T + t) * H + unit, inside, 0.0)
                dz = dh * (1 - new * new)
                tl.store(dp + (b * T + t) * H + unit, dz, inside)
                unclamped = tl.load(segment + (t - t0) * H * HP + place, tile, 0.0)
                f = unclamped
                if t > 0:
                    f = limited(unclamped, 1.0)
                alpha_ = tl.load(alpha + place, tile, 0.0)
                g = tl.load(w + place, tile, 0.0) + alpha_ * f
                dG = dz[:, None] * h[None, :]
                to_h = dz[:, None] * g + (rate * new)[:, None] * dF
                if dpower is not None:
                    u_w = tl.load(dpower + b * T + t) * h
                    u_w = u_w * tl.load(power_weight + unit, inside, 0.0)
                    dG += (u_w * h)[None, :] * sign(g)
                    to_h += 2 * u_w[None, :] * tl.abs(g)
                sum_w += dG
                sum_alpha += dG * f
                dF += alpha_ * dG
                if t > 0:  # no update made the first trace
                    dF = tl.where(tl.abs(unclamped) <= 1, dF, 0.0)
                dh = tl.sum(to_h, 0)
                if fresh != 0:
                    dF, dh = tl.zeros_like(dF), tl.zeros_like(dh)
            tl.debug_barrier()  # the next segment takes the same memory
        tl.store(df0 + b * H * HP + place, dF, tile)
        tl.store(dh0 + b * H + unit, dh, inside)
    tl.store(dw + program * H * HP + place, sum_w, tile)
    tl.store(dalpha + program * H * HP + place, sum_alpha, tile)
    tl.store(dv + program * H + unit, sum_v, inside)
    tl.store(drate + program, sum_rate)


def _forward(_: Values, save: bool, *tensors: Any) -> Values:
    w, alpha, v, d, eta, _, lengths, power_weight = tensors[3:]
    call = _call(*tensors)
    new, ends = call.new, lengths is not None
    y = new(call.batch, call.steps, call.hidden, zero=ends)
    f_T = new(call.batch, call.hidden, call.padded)
    power = None if power_weight is None else new(call.batch, call.steps, zero=ends)
    rates = new(call.batch, call.steps) if save else None
    checkpoints = call.new_checkpoints() if save else None
    launch(
        forward, (call.batch,), call.tile, call.arguments, w=in_rows(w), alpha=in_rows(alpha),
        v=contiguous(v), d=d, eta=eta, y=y, f_T=f_T, power=power, rates=rates,
        checkpoints=checkpoints,
    )  # fmt: skip
    return y, f_T, power, rates, checkpoints


def _backward(_: Values, needs: Values, tensors: Values, outputs: Values, grads: Values) -> Values:
    p, w, alpha, v, lengths = (tensors[k] for k in (0, 3, 4, 5, 9))
    y, _, _, rates, checkpoints = outputs
    call = _call(*tensors)
    new, parts = call.new, min(call.batch, plan.MOST_PROGRAMS)
    dp = new(*p.shape, zero=lengths is not None)
    dh0, df0 = new(call.batch, call.hidden), new(call.batch, call.hidden, call.padded)
    dw, dalpha = (new(parts, call.hidden, call.padded) for _ in range(2))
    dv, drate = new(parts, call.hidden), new(parts)
    launch(
        backward, (parts,), call.tile, call.arguments, call.given(*grads), w=in_rows(w),
        alpha=in_rows(alpha), v=contiguous(v), y=y, rates=rates, checkpoints=checkpoints, dp=dp,
        dh0=dh0, df0=df0, dw=dw, dalpha=dalpha, dv=dv, drate=drate,
        segment=new(parts, call.every + 1, call.hidden, call.padded),
    )  # fmt: skip
    rate = drate.sum()
    return (
        dp.to(p.dtype), dh0, df0[..., : call.hidden], call.summed(dw), call.summed(dalpha),
        dv.sum(0), rate, rate.clone(),
    )  # fmt: skip


def _call(
    p: Tensor, h0: Tensor, hebb0: Tensor, w: Tensor, alpha: Tensor, v: Tensor | None,
    d: Tensor | None, eta: Tensor | None, reset: Tensor | None, lengths: Tensor | None,
    power_weight: Tensor | None,
) -> Sequence:  # fmt: skip
    call = Sequence(p, h0, hebb0, reset, lengths, power_weight)
    synapses = call.hidden, call.hidden
    check(
        p, w=(w, synapses), alpha=(alpha, synapses), v=(v, synapses[:1]), d=(d, ()), eta=(eta, ())
    )
    return call


def _specification(_: Values, p: Tensor, *tensors: Any) -> Values:
    *others, reset, lengths, power_weight = tensors
    return reference.modplast(
        p.float(), *others, reset=reset, lengths=lengths, power_weight=power_weight
    )


_run = Recurrence(
    "modplast_triton", "p h0 hebb0 w alpha v d eta reset lengths power_weight", differentiable=8,
    constants="", outputs=5, results=3, padded=(1, 2), forward=_forward, backward=_backward,
    specification=_specification,
)  # fmt: skip


def modplast(
    p: Tensor, h0: Tensor, hebb0: Tensor, w: Tensor, alpha: Tensor, v: Tensor | None,
    d: Tensor | None, eta: Tensor | None, *, reset: Tensor | None = None,
    lengths: Tensor | None = None, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`modplast` of the specification."""
    y, hebb, power = _run((), p, h0, hebb0, w, alpha, v, d, eta, reset, lengths, power_weight)
    return y, hebb, power
