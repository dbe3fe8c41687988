"""STPN recurrences of small networks: F stays in registers for the whole sequence.

One launch forward, one backward. A program has one sequence and either all rows of its synapses
(recurrent) or a block of them (feed-forward, where rows know nothing of each other), as one tile
(RB, DB) that is padded to powers of two. Arrays that its inner loops read have rows of DP columns,
whole vectors of four. The forward pass leaves a checkpoint of F every `every`
steps; the backward pass recomputes the F of one segment after the other, from the last to the
first, without a single reduction, into memory of its own.

Gradients of parameters are summed in registers over all sequences of a program and leave it as one
partial sum each: no atomics, and the same bits in every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stpn.ops.gpu.neurons import (
    EFF,
    FG,
    FU,
    NO_NORM,
    POST,
    PRE,
    A,
    N,
    activate,
    coefficients,
    divisor,
    kept_and_eff,
    limited,
    load_u,
    rows_of_block,
    settle,
    sign,
    starts_afresh,
    unpadded,
    unsettle,
)

# Neither the batch nor the number of steps is part of a kernel's key: no stall when they change.
_FREE = ["B", "T", "every", "x_sb", "x_st", "h_sb", "c_sb", "f_sb"]


@triton.jit(do_not_specialize=_FREE)
def forward(
    x, x_sb, x_st, h0, h_sb, h_sk, c0, c_sb, c_sk, f0, f_sb, f_sr, f_sd,
    weight, bias, lam, gam, reset, lengths, power_weight,
    y, c_T, f_T, power, saved, cells, checkpoints, B, T, every, clamp,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, CLAMPED: tl.constexpr,
    RB: tl.constexpr, DB: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """x (B, T, I) -> y (B, T, H), c_T (B, H), f_T (B, R, DP), power (blocks, B, T); for a
    backward pass saved (B, T, K, R), cells (B, T, H) and checkpoints (B, ceil(T / every), R, DP).
    """
    GATED: tl.constexpr = c0 is not None
    POWER: tl.constexpr = power_weight is not None
    UB: tl.constexpr = RB // 4 if GATED else RB
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, gate, unit = rows_of_block(block, H, RB, GATED)
    column = tl.arange(0, DB)
    row_in, unit_in, column_in = row < R, unit < H, column < D
    tile = row_in[:, None] & (column < DP)[None, :]
    place = row[:, None] * DP + column[None, :]
    w = tl.load(weight + place, tile, 0.0)
    lam_ = tl.load(lam + place, tile, 0.0)
    gam_ = tl.load(gam + place, tile, 0.0)
    h = tl.load(h0 + b * h_sb + unit * h_sk, unit_in, 0.0)
    c = tl.zeros((UB,), tl.float32)
    if GATED:
        c = tl.load(c0 + b * c_sb + unit * c_sk, unit_in, 0.0)
    at_f0 = f0 + b * f_sb + row[:, None] * f_sr + column[None, :] * f_sd
    f = tl.load(at_f0, row_in[:, None] & column_in[None, :], 0.0)
    eff = tl.full((RB,), 1.0, tl.float32)
    length = T
    if lengths is not None:
        length = tl.load(lengths + b).to(tl.int32)
    for t in range(length):
        if reset is not None:
            if starts_afresh(reset, b, t, T) != 0:
                h, c = tl.zeros_like(h), tl.zeros_like(c)
                f, eff = tl.zeros_like(f), tl.full((RB,), 1.0, tl.float32)
        if checkpoints is not None:
            if t % every == 0:
                segment = b * tl.cdiv(T, every) + t // every
                tl.store(checkpoints + segment * R * DP + place, f, tile)
        if CLAMPED:
            if t > 0:  # what was given is taken as it is
                f = limited(f, clamp)
        u = tl.load(x + b * x_sb + t * x_st + column, column < I, 0.0).to(tl.float32)
        if D > I:
            hidden = tl.gather(h, tl.minimum(tl.maximum(column - I, 0), UB - 1), 0)
            u = tl.where((column >= I) & column_in, hidden, u)
        g = w + f
        if NORM == POST:
            g = w + eff[:, None] * f
        a = tl.sum(g * u[None, :], 1)
        n = tl.full((RB,), 1.0, tl.float32)
        if NORM != NO_NORM:
            n = divisor(tl.sum(g * g, 1))
            a = a / n
        z = a
        if bias is not None:
            z += tl.load(bias + row, row_in, 0.0)
        post = activate(z, gate, ACTIVATION, GATED)
        if saved is not None:
            at = saved + (b * T + t) * K * R
            if NORM != NO_NORM:
                tl.store(at + N * R + row, n, row_in)
                tl.store(at + A * R + row, a, row_in)
            if NORM == POST:
                tl.store(at + EFF * R + row, eff, row_in)
                tl.store(at + FU * R + row, tl.sum(f * u[None, :], 1), row_in)
                tl.store(at + FG * R + row, tl.sum(f * g, 1), row_in)
            if GATED:
                tl.store(at + (K - 1) * R + row, post, row_in)
        if POWER:
            u2 = tl.load(power_weight + column, column_in, 0.0) * u * u
            gp = tl.sum(tl.abs(g) * u2[None, :], 1)  # of rows not yet divided
            if saved is not None:
                if NORM != NO_NORM:
                    GP: tl.constexpr = 2 if NORM == PRE else 5
                    tl.store(at + GP * R + row, gp, row_in)
                if NORM == POST:
                    fp = tl.sum(f * sign(g) * u2[None, :], 1)
                    tl.store(at + 6 * R + row, fp, row_in)
            tl.store(power + (block * B + b) * T + t, tl.sum(tl.where(row_in, gp / n, 0.0), 0))
        h, c = settle(post, c, RB, GATED)
        tl.store(y + (b * T + t) * H + unit, h, unit_in)
        if GATED:
            if cells is not None:
                tl.store(cells + (b * T + t) * H + unit, c, unit_in)
        kept = eff
        if NORM == PRE:
            kept = 1 / n
        f = lam_ * f * kept[:, None] + gam_ * u[None, :] * post[:, None]
        f = unpadded(f, column_in, ACTIVATION, GATED)
        if NORM == POST:
            m = w + f
            if CLAMPED:
                m = w + limited(f, clamp)
            eff = 1 / divisor(tl.sum(m * m, 1))
    if CLAMPED:
        if length > 0:
            f = limited(f, clamp)
    if NORM == POST:
        f = eff[:, None] * f
    tl.store(f_T + b * R * DP + place, f, tile)
    if GATED:
        tl.store(c_T + b * H + unit, c, unit_in)


@triton.jit(do_not_specialize=_FREE)
def backward(
    x, x_sb, x_st, h0, h_sb, h_sk, c0, c_sb, c_sk,
    weight, lam, gam, reset, lengths, power_weight,
    y, saved, cells, checkpoints, dy, dc_T, df_T, dpower,
    dx, dh0, dc0, df0, dweight, dbias, dlam, dgam, segment, B, T, every, clamp,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, CLAMPED: tl.constexpr,
    RB: tl.constexpr, DB: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Gradients of x (blocks, B, T, I) and the initial state, and of the parameters one partial
    sum per program: dweight, dlam, dgam (P, R, DP), dbias (P, R). `segment` (P, every + 1, R, DP)
    is scratch. What is None is not wanted, or zero.
    """
    GATED: tl.constexpr = c0 is not None
    POWER: tl.constexpr = dpower is not None
    DU: tl.constexpr = (D > I) or (dx is not None)
    UB: tl.constexpr = RB // 4 if GATED else RB
    program, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, _gate, unit = rows_of_block(block, H, RB, GATED)
    column = tl.arange(0, DB)
    row_in, unit_in, column_in = row < R, unit < H, column < D
    tile = row_in[:, None] & (column < DP)[None, :]
    place = row[:, None] * DP + column[None, :]
    segment += program * (every + 1) * R * DP
    dw = tl.zeros((RB, DB), tl.float32)
    dl = tl.zeros((RB, DB), tl.float32)
    dg = tl.zeros((RB, DB), tl.float32)
    db = tl.zeros((RB,), tl.float32)
    for b in range(program, B, tl.num_programs(0)):
        length = T
        if lengths is not None:
            length = tl.load(lengths + b).to(tl.int32)
        dF = tl.zeros((RB, DB), tl.float32)  # dL/dF_{t+1}, masked where F_{t+1} was clamped
        dh = tl.zeros((UB,), tl.float32)
        dc = tl.zeros((UB,), tl.float32)
        if GATED:
            if dc_T is not None:
                dc = tl.load(dc_T + b * H + unit, unit_in, 0.0)
        segments = tl.cdiv(length, every)
        for back in range(segments):
            t0 = (segments - 1 - back) * every
            t1 = tl.minimum(t0 + every, length)
            # F of the steps t0 to t1; the last of them is of use only where the sequence ends.
            start = checkpoints + (b * tl.cdiv(T, every) + t0 // every) * R * DP
            f = tl.load(start + place, tile, 0.0)
            tl.store(segment + place, f, tile)  # each F of it before the clamp
            lam_ = tl.load(lam + place, tile, 0.0)
            gam_ = tl.load(gam + place, tile, 0.0)
            for t in range(t0, t1):
                if CLAMPED:
                    if t > 0:
                        f = limited(f, clamp)
                fresh = starts_afresh(reset, b, t, T)
                u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, fresh, column, T, I, H, D)
                at = saved + (b * T + t) * K * R
                if GATED:
                    post = tl.load(at + (K - 1) * R + row, row_in, 0.0)
                else:
                    post = tl.load(y + (b * T + t) * H + row, row_in, 0.0)
                kept, _eff = kept_and_eff(at, row, row_in, R, NORM)
                f = lam_ * f * kept[:, None] + gam_ * u[None, :] * post[:, None]
                if reset is not None:
                    if t + 1 < length:
                        if starts_afresh(reset, b, t + 1, T) != 0:
                            f = tl.zeros_like(f)
                tl.store(segment + (t + 1 - t0) * R * DP + place, f, tile)
            tl.debug_barrier()  # what one thread wrote another may read
            if df_T is not None:
                if t1 == length:
                    dF = tl.load(df_T + b * R * DP + place, tile, 0.0)
                    if NORM == POST:
                        within = f
                        if CLAMPED:
                            within = limited(f, clamp)
                        m = tl.load(weight + place, tile, 0.0) + within
                        eff = 1 / divisor(tl.sum(m * m, 1))
                        c3 = -eff * eff * eff * tl.sum(dF * within, 1)
                        dw += c3[:, None] * m
                        dF = dF * eff[:, None] + c3[:, None] * m
                    if CLAMPED:
                        dF = tl.where(tl.abs(f) <= clamp, dF, 0.0)
            for k in range(t1 - t0):
                t = t1 - 1 - k
                fresh = starts_afresh(reset, b, t, T)
                u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, fresh, column, T, I, H, D)
                unclamped = tl.load(segment + (t - t0) * R * DP + place, tile, 0.0)
                f = unclamped
                if CLAMPED:
                    if t > 0:
                        f = limited(unclamped, clamp)
                lam_ = tl.load(lam + place, tile, 0.0)
                gam_ = tl.load(gam + place, tile, 0.0)
                at = saved + (b * T + t) * K * R
                kept, eff = kept_and_eff(at, row, row_in, R, NORM)
                s1 = tl.sum(dF * gam_ * u[None, :], 1)
                s2 = tl.sum(dF * lam_ * f, 1)
                if dy is not None:
                    dh += tl.load(dy + (b * T + t) * H + unit, unit_in, 0.0)
                c_old, c_new = dc, dc
                if GATED:
                    post = tl.load(at + (K - 1) * R + row, row_in, 0.0)
                    c_new = tl.load(cells + (b * T + t) * H + unit, unit_in, 0.0)
                    if t > 0:
                        c_old = tl.load(cells + (b * T + t - 1) * H + unit, unit_in, 0.0)
                    else:
                        c_old = tl.load(c0 + b * c_sb + unit * c_sk, unit_in, 0.0)
                    c_old = tl.where(fresh != 0, 0.0, c_old)
                else:
                    post = tl.load(y + (b * T + t) * H + row, row_in, 0.0)
                dz, dc = unsettle(post, dh, s1, dc, c_old, c_new, ACTIVATION, RB, GATED)
                dz = tl.where(row_in, dz, 0.0)
                db += dz
                dp = 0.0
                if POWER:
                    dp = tl.load(dpower + b * T + t)
                updated = ((t > 0) & (fresh == 0)).to(tl.float32)
                c1, c2, c3, c4 = coefficients(
                    at, row, row_in, dz, s2, dp, eff, updated, R, NORM, POWER
                )
                # Loaded once more, not kept in registers, of which there are too few.
                tl.debug_barrier()
                w = tl.load(weight + place, tile, 0.0)
                lam_ = tl.load(lam + place, tile, 0.0)
                gam_ = tl.load(gam + place, tile, 0.0)
                g = w + eff[:, None] * f
                dG = c1[:, None] * u[None, :]
                if NORM != NO_NORM:
                    dG += c2[:, None] * g
                if POWER:
                    u_w = tl.load(power_weight + column, column_in, 0.0) * u
                    dG += c4[:, None] * (u_w * u)[None, :] * sign(g)
                if DU:
                    to_u = c1[:, None] * g + gam_ * post[:, None] * dF
                    if POWER:
                        to_u += 2 * c4[:, None] * u_w[None, :] * tl.abs(g)
                    du = tl.sum(tl.where(row_in[:, None], to_u, 0.0), 0)
                if dlam is not None:
                    dl += kept[:, None] * dF * f
                if dgam is not None:
                    dg += post[:, None] * dF * u[None, :]
                dw += dG
                dF = lam_ * kept[:, None] * dF + eff[:, None] * dG
                if NORM == POST:
                    dm = c3[:, None] * (w + f)
                    dw += dm
                    dF += dm
                if CLAMPED:
                    if t > 0:  # no update made the first F
                        dF = tl.where(tl.abs(unclamped) <= clamp, dF, 0.0)
                # Of synapses that are never used dL/dF may grow until infinity times zero is NaN.
                if t % 16 == 0:
                    if t > 0:
                        dF = limited(dF, 1e18)
                if dx is not None:
                    tl.store(dx + ((block * B + b) * T + t) * I + column, du, column < I)
                dh = tl.zeros((UB,), tl.float32)
                if D > I:
                    dh = tl.gather(du, tl.minimum(I + unit, DB - 1), 0)
                if fresh != 0:
                    dF, dh, dc = tl.zeros_like(dF), tl.zeros_like(dh), tl.zeros_like(dc)
            tl.debug_barrier()  # the next segment takes the same memory
        if df0 is not None:
            tl.store(df0 + b * R * DP + place, dF, tile)
        if dh0 is not None:
            tl.store(dh0 + b * H + unit, dh, unit_in)
        if GATED:
            if dc0 is not None:
                tl.store(dc0 + b * H + unit, dc, unit_in)
    tl.store(dweight + program * R * DP + place, dw, tile)
    if dbias is not None:
        tl.store(dbias + program * R + row, db, row_in)
    if dlam is not None:
        tl.store(dlam + program * R * DP + place, dl, tile)
    if dgam is not None:
        tl.store(dgam + program * R * DP + place, dg, tile)
