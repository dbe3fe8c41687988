"""STPN recurrences of large networks: F lies in memory, and each step is one launch.

Forward, a program has some rows of one sequence, whole, because their sums need every column. As in
the C++ kernels the update that ends step t - 1 is made at the start of step t, in the same sweep as
the sums of step t: F is read and written once per step. (Norm post reads its rows again, from the
cache, when their norm is known.)

Backward, a program has a tile of rows and columns and goes through the sequences, so that the
gradients of its parameters stay in registers. What step t needs of its rows before its sweep, s1
and s2, the sweep of step t + 1 has left behind as one partial sum per block of columns; what it
needs of its units, dh, as one per block of rows. Buffers of such sums are two: one is written while
the other is read. No atomics: the same bits in every run.
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

_FREE = ["B", "T", "S", "t", "t0", "t1", "every", "x_sb", "x_st", "h_sb", "c_sb", "f_sb"]


@triton.jit(do_not_specialize=_FREE)
def step(
    x, x_sb, x_st, h0, h_sb, h_sk, c0, c_sb, c_sk, f0, f_sb, f_sr, f_sd,
    weight, bias, lam, gam, reset, lengths, power_weight,
    y, c_T, f_T, power, saved, cells, checkpoints, t, B, T, S, every, clamp,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, CLAMPED: tl.constexpr,
    RB: tl.constexpr, DB: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Step t of `triton_on_chip.forward`, the last one, t = T, ends the update of F.

    f_T (B, R, DP) holds F all the time; saved (B, S, K, R) and cells (B, S, H) hold the last S
    steps.
    """
    GATED: tl.constexpr = c0 is not None
    POWER: tl.constexpr = power_weight is not None
    UB: tl.constexpr = RB // 4 if GATED else RB
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, gate, unit = rows_of_block(block, H, RB, GATED)
    row_in, unit_in = row < R, unit < H
    length = T
    if lengths is not None:
        length = tl.load(lengths + b).to(tl.int32)
    if t <= length:
        now, before = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
        if reset is not None:
            if t < length:
                now = starts_afresh(reset, b, t, T)
            if t > 0:
                before = starts_afresh(reset, b, t - 1, T)
        f_T += b * R * DP
        at = saved + (b * S + t % S) * K * R
        post = tl.zeros((RB,), tl.float32)
        kept = tl.full((RB,), 1.0, tl.float32)
        if t > 0:
            at_prev = saved + (b * S + (t - 1) % S) * K * R
            kept, _eff = kept_and_eff(at_prev, row, row_in, R, NORM)
            if GATED:
                post = tl.load(at_prev + (K - 1) * R + row, row_in, 0.0)
            else:
                post = tl.load(y + (b * T + t - 1) * H + row, row_in, 0.0)
        gu = tl.zeros((RB, DB), tl.float32)
        gg = tl.zeros((RB, DB), tl.float32)
        gp = tl.zeros((RB, DB), tl.float32)
        for first in range(0, D, DB):
            column = first + tl.arange(0, DB)
            tile = row_in[:, None] & (column < DP)[None, :]
            place = row[:, None] * DP + column[None, :]
            w = tl.load(weight + place, tile, 0.0)
            if t > 0:
                u_prev = load_u(
                    x, y, h0, h_sb, h_sk, b, t - 1, x_sb, x_st, before, column, T, I, H, D
                )
                f = tl.load(f_T + place, tile, 0.0) * tl.load(lam + place, tile, 0.0)
                f = f * kept[:, None]
                f += tl.load(gam + place, tile, 0.0) * u_prev[None, :] * post[:, None]
                f = unpadded(f, column < D, ACTIVATION, GATED)
            else:
                whole = row_in[:, None] & (column < D)[None, :]
                at_f0 = f0 + b * f_sb + row[:, None] * f_sr + column[None, :] * f_sd
                f = tl.load(at_f0, whole, 0.0)
            f = tl.where(now != 0, 0.0, f)
            if checkpoints is not None:
                if (t % every == 0) & (t < length):
                    segment = b * tl.cdiv(T, every) + t // every
                    tl.store(checkpoints + segment * R * DP + place, f, tile)
            if CLAMPED:
                if t > 0:  # what was given is taken as it is
                    f = limited(f, clamp)
            tl.store(f_T + place, f, tile)
            g = w + f
            gg += g * g
            if NORM != POST:
                if t < length:
                    u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, now, column, T, I, H, D)
                    gu += g * u[None, :]
                    if POWER:
                        u2 = tl.load(power_weight + column, column < D, 0.0) * u * u
                        gp += tl.abs(g) * u2[None, :]
        eff = tl.full((RB,), 1.0, tl.float32)
        if NORM == POST:
            if (t > 0) & (now == 0):  # an F that no update made is taken as it is
                eff = 1 / divisor(tl.sum(gg, 1))
            tl.debug_barrier()  # what one thread wrote another may read
            gg = tl.zeros((RB, DB), tl.float32)
            fu = tl.zeros((RB, DB), tl.float32)
            fg = tl.zeros((RB, DB), tl.float32)
            fp = tl.zeros((RB, DB), tl.float32)
            for first in range(0, D, DB):
                column = first + tl.arange(0, DB)
                tile = row_in[:, None] & (column < DP)[None, :]
                place = row[:, None] * DP + column[None, :]
                f = tl.load(f_T + place, tile, 0.0)
                if t < length:
                    g = tl.load(weight + place, tile, 0.0) + eff[:, None] * f
                    u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, now, column, T, I, H, D)
                    gu += g * u[None, :]
                    gg += g * g
                    fu += f * u[None, :]
                    fg += f * g
                    if POWER:
                        u2 = tl.load(power_weight + column, column < D, 0.0) * u * u
                        gp += tl.abs(g) * u2[None, :]
                        fp += f * sign(g) * u2[None, :]
                else:
                    tl.store(f_T + place, eff[:, None] * f, tile)
            tl.store(at + EFF * R + row, eff, row_in)
            tl.store(at + FU * R + row, tl.sum(fu, 1), row_in)
            tl.store(at + FG * R + row, tl.sum(fg, 1), row_in)
            if POWER:
                tl.store(at + 6 * R + row, tl.sum(fp, 1), row_in)
        if t < length:
            a = tl.sum(gu, 1)
            n = tl.full((RB,), 1.0, tl.float32)
            if NORM != NO_NORM:
                n = divisor(tl.sum(gg, 1))
                a = a / n
                tl.store(at + N * R + row, n, row_in)
                tl.store(at + A * R + row, a, row_in)
            if POWER:
                of_rows = tl.sum(gp, 1)
                if NORM != NO_NORM:
                    GP: tl.constexpr = 2 if NORM == PRE else 5
                    tl.store(at + GP * R + row, of_rows, row_in)
                of_rows = tl.where(row_in, of_rows / n, 0.0)
                tl.store(power + (block * B + b) * T + t, tl.sum(of_rows, 0))
            if bias is not None:
                a += tl.load(bias + row, row_in, 0.0)
            post = activate(a, gate, ACTIVATION, GATED)
            c = tl.zeros((UB,), tl.float32)
            if GATED:
                tl.store(at + (K - 1) * R + row, post, row_in)
                if t > 0:
                    c = tl.load(cells + (b * S + (t - 1) % S) * H + unit, unit_in, 0.0)
                else:
                    c = tl.load(c0 + b * c_sb + unit * c_sk, unit_in, 0.0)
                c = tl.where(now != 0, 0.0, c)
            h, c = settle(post, c, RB, GATED)
            tl.store(y + (b * T + t) * H + unit, h, unit_in)
            if GATED:
                tl.store(cells + (b * S + t % S) * H + unit, c, unit_in)
                if t == length - 1:
                    tl.store(c_T + b * H + unit, c, unit_in)


@triton.jit(do_not_specialize=_FREE)
def replay(
    x, x_sb, x_st, h0, h_sb, h_sk, lam, gam, reset, lengths, y, saved, checkpoints, segment,
    t0, T, S, every, clamp, GATED: tl.constexpr,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, CLAMPED: tl.constexpr,
    RB: tl.constexpr, DB: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """F of the steps from the checkpoint t0 on, before the clamp: segment (B, every + 1, R, DP)."""
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, _gate, _unit = rows_of_block(block, H, RB, GATED)
    row_in = row < R
    column = tl.program_id(2) * DB + tl.arange(0, DB)
    tile = row_in[:, None] & (column < DP)[None, :]
    place = row[:, None] * DP + column[None, :]
    length = T
    if lengths is not None:
        length = tl.load(lengths + b).to(tl.int32)
    if t0 < length:
        t1 = tl.minimum(t0 + every, length)
        segment += b * (every + 1) * R * DP
        start = checkpoints + (b * tl.cdiv(T, every) + t0 // every) * R * DP
        f = tl.load(start + place, tile, 0.0)
        tl.store(segment + place, f, tile)
        lam_ = tl.load(lam + place, tile, 0.0)
        gam_ = tl.load(gam + place, tile, 0.0)
        for t in range(t0, t1):
            if CLAMPED:
                if t > 0:
                    f = limited(f, clamp)
            fresh = starts_afresh(reset, b, t, T)
            u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, fresh, column, T, I, H, D)
            at = saved + (b * S + t) * K * R
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


@triton.jit
def of_blocks(buffer, offset, mask, size, BLOCKS: tl.constexpr, BP: tl.constexpr):
    """The sum of the partial sums that the blocks left in `buffer` (BLOCKS, size)."""
    block = tl.arange(0, BP)
    inside = (block < BLOCKS)[:, None] & mask[None, :]
    return tl.sum(tl.load(buffer + block[:, None] * size + offset[None, :], inside, 0.0), 0)


@triton.jit(do_not_specialize=_FREE)
def sweep(
    x, x_sb, x_st, h0, h_sb, h_sk, c0, c_sb, c_sk,
    weight, lam, gam, reset, lengths, power_weight,
    y, saved, cells, dy, dc_T, df_T, dpower, dot,
    dx, dF, dweight, dbias, dlam, dgam, segment, sums, dh_sums, dcs, t, t0, B, T, S, every, clamp,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, CLAMPED: tl.constexpr,
    RB: tl.constexpr, DB: tl.constexpr, DP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RP: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """Step t of `triton_on_chip.backward`, whose segment starts at t0; t = T begins it.

    dF (B, R, DP) is dL/dF of step t + 1 before and of step t after. dot (B, R) = sum of df_T F_T,
    of norm post. sums (2, 2, COLUMNS, B, R), dh_sums (2, ROWS, B, H) and dcs (2, B, H) go from
    step to step; ROWS and COLUMNS are the numbers of blocks, RP and CP the powers of two above.
    """
    GATED: tl.constexpr = c0 is not None
    POWER: tl.constexpr = dpower is not None
    DU: tl.constexpr = (D > I) or (dx is not None)
    UB: tl.constexpr = RB // 4 if GATED else RB
    block, column_block = tl.program_id(0), tl.program_id(1)
    split = tl.program_id(2).to(tl.int64)
    row, _gate, unit = rows_of_block(block, H, RB, GATED)
    row_in, unit_in = row < R, unit < H
    column = column_block * DB + tl.arange(0, DB)
    column_in = column < D
    tile = row_in[:, None] & (column < DP)[None, :]
    place = row[:, None] * DP + column[None, :]
    w = tl.load(weight + place, tile, 0.0)
    lam_ = tl.load(lam + place, tile, 0.0)
    gam_ = tl.load(gam + place, tile, 0.0)
    dw = tl.zeros((RB, DB), tl.float32)
    dl = tl.zeros((RB, DB), tl.float32)
    dg = tl.zeros((RB, DB), tl.float32)
    db = tl.zeros((RB,), tl.float32)
    size = B.to(tl.int64) * R
    came, goes = (t + 1) % 2, t % 2  # which of the two buffers
    for b in range(split, B, tl.num_programs(2)):
        length = T
        if lengths is not None:
            length = tl.load(lengths + b).to(tl.int32)
        # The end of a sequence belongs to the segment of its last step.
        if (t0 < length) & ((t == length) | ((t < length) & (t < t0 + every))):
            of_step = segment + (b * (every + 1) + t - t0) * R * DP
            unclamped = tl.load(of_step + place, tile, 0.0)
            f = unclamped
            if CLAMPED:
                if t > 0:
                    f = limited(unclamped, clamp)
            at = saved + (b * S + t) * K * R
            kept, eff = kept_and_eff(at, row, row_in, R, NORM)
            du = tl.zeros((DB,), tl.float32)
            dc = tl.zeros((UB,), tl.float32)
            now = tl.full((), 0, tl.int32)
            if t == length:
                D_ = tl.zeros((RB, DB), tl.float32)
                if df_T is not None:
                    D_ = tl.load(df_T + b * R * DP + place, tile, 0.0)
                    if NORM == POST:
                        c3 = -eff * eff * eff * tl.load(dot + b * R + row, row_in, 0.0)
                        dm = c3[:, None] * (w + f)
                        dw += dm
                        D_ = D_ * eff[:, None] + dm
                if GATED:
                    if dc_T is not None:
                        dc = tl.load(dc_T + b * H + unit, unit_in, 0.0)
            else:
                now = starts_afresh(reset, b, t, T)
                u = load_u(x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, now, column, T, I, H, D)
                D_ = tl.load(dF + b * R * DP + place, tile, 0.0)
                offset = b * R + row
                s1 = of_blocks(sums + came * 2 * COLUMNS * size, offset, row_in, size, COLUMNS, CP)
                if GATED:
                    post = tl.load(at + (K - 1) * R + row, row_in, 0.0)
                else:
                    post = tl.load(y + (b * T + t) * H + row, row_in, 0.0)
                s2 = tl.zeros((RB,), tl.float32)
                if NORM != NO_NORM:  # lambda kept F_t = F_{t+1} - gamma post u, where dF is not 0
                    s2 = of_blocks(
                        sums + (came * 2 + 1) * COLUMNS * size, offset, row_in, size, COLUMNS, CP
                    )
                    s2 = (s2 - post * s1) / kept
                dh = tl.zeros((UB,), tl.float32)
                if D > I:
                    units = B.to(tl.int64) * H
                    dh = of_blocks(
                        dh_sums + came * ROWS * units, b * H + unit, unit_in, units, ROWS, RP
                    )
                if dy is not None:
                    dh += tl.load(dy + (b * T + t) * H + unit, unit_in, 0.0)
                c_old, c_new = dc, dc
                if GATED:
                    dc = tl.load(dcs + (came * B + b) * H + unit, unit_in, 0.0)
                    c_new = tl.load(cells + (b * S + t) * H + unit, unit_in, 0.0)
                    if t > 0:
                        c_old = tl.load(cells + (b * S + t - 1) * H + unit, unit_in, 0.0)
                    else:
                        c_old = tl.load(c0 + b * c_sb + unit * c_sk, unit_in, 0.0)
                    c_old = tl.where(now != 0, 0.0, c_old)
                dz, dc = unsettle(post, dh, s1, dc, c_old, c_new, ACTIVATION, RB, GATED)
                dz = tl.where(row_in, dz, 0.0)
                db += dz
                dp = 0.0
                if POWER:
                    dp = tl.load(dpower + b * T + t)
                updated = ((t > 0) & (now == 0)).to(tl.float32)
                c1, c2, c3, c4 = coefficients(
                    at, row, row_in, dz, s2, dp, eff, updated, R, NORM, POWER
                )
                g = w + eff[:, None] * f
                dG = c1[:, None] * u[None, :]
                if NORM != NO_NORM:
                    dG += c2[:, None] * g
                if POWER:
                    u_w = tl.load(power_weight + column, column_in, 0.0) * u
                    dG += c4[:, None] * (u_w * u)[None, :] * sign(g)
                if DU:
                    to_u = c1[:, None] * g + gam_ * post[:, None] * D_
                    if POWER:
                        to_u += 2 * c4[:, None] * u_w[None, :] * tl.abs(g)
                    du = tl.sum(tl.where(row_in[:, None], to_u, 0.0), 0)
                if dlam is not None:
                    dl += kept[:, None] * D_ * f
                if dgam is not None:
                    dg += post[:, None] * D_ * u[None, :]
                dw += dG
                D_ = lam_ * kept[:, None] * D_ + eff[:, None] * dG
                if NORM == POST:
                    dm = c3[:, None] * (w + f)
                    dw += dm
                    D_ += dm
                if dx is not None:
                    tl.store(dx + ((block * B + b) * T + t) * I + column, du, column < I)
            if CLAMPED:
                if t > 0:  # no update made the first F
                    D_ = tl.where(tl.abs(unclamped) <= clamp, D_, 0.0)
            if (t % 16 == 0) & (t > 0):  # see triton_on_chip
                D_ = limited(D_, 1e18)
            D_ = tl.where(now != 0, 0.0, D_)
            du = tl.where(now != 0, 0.0, du)
            dc = tl.where(now != 0, 0.0, dc)
            tl.store(dF + b * R * DP + place, D_, tile)
            if D > I:
                to_units = dh_sums + ((goes * ROWS + block) * B + b) * H + column - I
                tl.store(to_units, du, (column >= I) & column_in)
            if GATED:
                if column_block == 0:
                    tl.store(dcs + (goes * B + b) * H + unit, dc, unit_in)
            if t > 0:  # the sums of step t - 1
                before = starts_afresh(reset, b, t - 1, T)
                u = load_u(x, y, h0, h_sb, h_sk, b, t - 1, x_sb, x_st, before, column, T, I, H, D)
                to_rows = sums + (goes * 2 * COLUMNS + column_block) * size + b * R + row
                tl.store(to_rows, tl.sum(D_ * gam_ * u[None, :], 1), row_in)
                if NORM != NO_NORM:
                    tl.store(to_rows + COLUMNS * size, tl.sum(D_ * f, 1), row_in)
    at_partial = split * R * DP + place
    tl.store(dweight + at_partial, tl.load(dweight + at_partial, tile, 0.0) + dw, tile)
    if dlam is not None:
        tl.store(dlam + at_partial, tl.load(dlam + at_partial, tile, 0.0) + dl, tile)
    if dgam is not None:
        tl.store(dgam + at_partial, tl.load(dgam + at_partial, tile, 0.0) + dg, tile)
    if dbias is not None:
        if column_block == 0:
            to_bias = dbias + split * R + row
            tl.store(to_bias, tl.load(to_bias, row_in, 0.0) + db, row_in)
