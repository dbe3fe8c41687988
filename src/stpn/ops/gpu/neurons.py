"""What all GPU kernels compute per neuron and step: activations, norms, gates, coefficients.

The notation, and the derivation of the coefficients c1 to c4, are those of the C++ kernels
(docs/kernels.md): dG = c1 u + c2 G + c4 u2 sign(G), and c3 (W + F) from norm post.
Vectors over rows are (RB,), over hidden units (UB,). Gated, the four rows of a unit lie side by
side in them: RB = 4 UB, gates i, f, g, o; elsewhere UB = RB.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_NORM = tl.constexpr(0)
PRE = tl.constexpr(1)
POST = tl.constexpr(2)

TANH = tl.constexpr(0)
SIGMOID = tl.constexpr(1)
RELU = tl.constexpr(2)

# What the forward pass saves of each row and step: slots of `saved` (B, T, K, R). The power's come
# after them, the activations of gates last.
N = tl.constexpr(0)  # the divisor
A = tl.constexpr(1)  # G.u / n
EFF = tl.constexpr(2)  # norm post: 1 / ||W + F||, the scale of F inside G
FU = tl.constexpr(3)  # norm post: F.u
FG = tl.constexpr(4)  # norm post: F.G


@triton.jit
def tanh(z):
    """To the last digits of float32, also near zero, where 1 - e would cancel."""
    square = z * z
    series = z * (1 + square * (-1 / 3 + square * (2 / 15 - square * (17 / 315))))
    e = tl.exp(-2 * tl.abs(z))
    value = (1 - e) / (1 + e)
    return tl.where(tl.abs(z) < 0.1, series, tl.where(z < 0, -value, value))


@triton.jit
def activate(z, gate, ACTIVATION: tl.constexpr, GATED: tl.constexpr):
    if GATED:
        return tl.where(gate == 2, tanh(z), tl.sigmoid(z))
    elif ACTIVATION == TANH:
        return tanh(z)
    elif ACTIVATION == SIGMOID:
        return tl.sigmoid(z)
    else:
        return tl.where(z < 0, 0.0, z)  # a NaN stays one


@triton.jit
def through(act, dact, ACTIVATION: tl.constexpr):
    """dz from the activation and its gradient."""
    if ACTIVATION == TANH:
        return dact * (1 - act * act)
    elif ACTIVATION == SIGMOID:
        return dact * act * (1 - act)
    else:
        return tl.where(act > 0, dact, 0.0)


@triton.jit
def divisor(square):
    """The norm plus a tiny number, or 1 where all synapses are zero."""
    return tl.where(square == 0, 1.0, tl.sqrt_rn(square) + 1e-16)


@triton.jit
def unpadded(f, column_in, ACTIVATION: tl.constexpr, GATED: tl.constexpr):
    """f (RB, DB) with zeros in its padding, where 0 times an infinite activation is NaN."""
    if ACTIVATION == RELU and not GATED:
        return tl.where(column_in[None, :], f, 0.0)
    else:
        return f


@triton.jit
def limited(f, clamp):
    """`clamp` of torch; a NaN stays one."""
    return tl.where(f > clamp, clamp, tl.where(f < -clamp, -clamp, f))


@triton.jit
def sign(g):
    return tl.where(g > 0, 1.0, tl.where(g < 0, -1.0, 0.0))


@triton.jit
def rows_of_block(block, H: tl.constexpr, RB: tl.constexpr, GATED: tl.constexpr):
    """Rows of a block as they lie in memory (RB,), their gates (RB,), their units (UB,)."""
    row = block * RB + tl.arange(0, RB)
    if GATED:
        unit = block * (RB // 4) + tl.arange(0, RB // 4)
        return tl.where(row // 4 < H, row % 4 * H + row // 4, 4 * H), row % 4, unit
    else:
        return row, row, row


@triton.jit
def split_gates(rows, UB: tl.constexpr):
    """(4 UB,) to i, f, g, o, each (UB,)."""
    even, odd = tl.split(tl.reshape(rows, (UB, 2, 2)))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@triton.jit
def join_gates(i, f, g, o, UB: tl.constexpr):
    return tl.reshape(tl.join(tl.join(i, g), tl.join(f, o)), (4 * UB,))


@triton.jit
def settle(post, c, RB: tl.constexpr, GATED: tl.constexpr):
    """h and c (UB,) from the activations of the rows."""
    if GATED:
        i, f, g, o = split_gates(post, RB // 4)
        c = f * c + i * g
        return o * tanh(c), c
    else:
        return post, c


@triton.jit
def unsettle(
    post, dh, s1, dc, c_old, c_new, ACTIVATION: tl.constexpr, RB: tl.constexpr, GATED: tl.constexpr
):
    """dz (RB,) and the dc of the step before (UB,); s1 is what the update wants of `post`."""
    if GATED:
        i, f, g, o = split_gates(post, RB // 4)
        s_i, s_f, s_g, s_o = split_gates(s1, RB // 4)
        tc = tanh(c_new)
        dc = dc + dh * o * (1 - tc * tc)
        dz = join_gates(
            (dc * g + s_i) * i * (1 - i),
            (dc * c_old + s_f) * f * (1 - f),
            (dc * i + s_g) * (1 - g * g),
            (dh * tc + s_o) * o * (1 - o),
            RB // 4,
        )
        return dz, dc * f
    else:
        return through(post, dh + s1, ACTIVATION), dc


@triton.jit
def coefficients(
    at, row, mask, dz, s2, dpower, eff, updated,
    R: tl.constexpr, NORM: tl.constexpr, POWER: tl.constexpr,
):  # fmt: skip
    """c1, c2, c3, c4 (RB,). `at` points to what was saved of the step; `updated` is 1 where F came
    from an update, so that in norm post its eff depends on it, else 0.
    """
    if NORM == NO_NORM:
        zero = tl.zeros_like(dz)
        return dz, zero, zero, zero + dpower
    else:
        inverse = 1 / tl.load(at + N * R + row, mask, 1.0)
        dn = tl.load(at + A * R + row, mask, 0.0) * dz
        c4 = dpower * inverse
        if NORM == PRE:
            dn += s2 * inverse
        if POWER:
            GP: tl.constexpr = 2 if NORM == PRE else 5
            dn += c4 * tl.load(at + GP * R + row, mask, 0.0)
        c1, c2 = dz * inverse, -dn * inverse * inverse
        c3 = tl.zeros_like(dz)
        if NORM == POST:
            deff = s2 + c1 * tl.load(at + FU * R + row, mask, 0.0)
            deff += c2 * tl.load(at + FG * R + row, mask, 0.0)
            if POWER:
                deff += c4 * tl.load(at + 6 * R + row, mask, 0.0)
            c3 = -updated * eff * eff * eff * deff
        return c1, c2, c3, c4


@triton.jit
def kept_and_eff(at, row, mask, R: tl.constexpr, NORM: tl.constexpr):
    """Of a step: the share of F that is kept beside lambda, and the scale of F inside G."""
    if NORM == PRE:
        return 1 / tl.load(at + N * R + row, mask, 1.0), tl.full(row.shape, 1.0, tl.float32)
    elif NORM == POST:
        eff = tl.load(at + EFF * R + row, mask, 1.0)
        return eff, eff
    else:
        one = tl.full(row.shape, 1.0, tl.float32)
        return one, one


@triton.jit
def load_u(
    x, y, h0, h_sb, h_sk, b, t, x_sb, x_st, fresh, column, T,
    I: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """u (DB,) = x_t, or [x_t ; h_prev], from memory."""
    u = tl.load(x + b * x_sb + t * x_st + column, column < I, 0.0).to(tl.float32)
    if D > I:
        hidden = (column >= I) & (column < D)
        if t > 0:
            h = tl.load(y + (b * T + t - 1) * H + column - I, hidden, 0.0)
        else:
            h = tl.load(h0 + b * h_sb + (column - I) * h_sk, hidden, 0.0)
        u += tl.where(fresh != 0, 0.0, h)
    return u


@triton.jit
def starts_afresh(reset, b, t, T):
    if reset is not None:
        return tl.load(reset + b * T + t).to(tl.int32)
    else:
        return tl.full((), 0, tl.int32)


@triton.jit
def h_before(y, h0, h_sb, h_sk, b, t, fresh, unit, T, H: tl.constexpr):
    """The state that step t starts from."""
    if t > 0:
        h = tl.load(y + (b * T + t - 1) * H + unit, unit < H, 0.0)
    else:
        h = tl.load(h0 + b * h_sb + unit * h_sk, unit < H, 0.0)
    return tl.where(fresh != 0, 0.0, h)
