"""Gradient-based plasticity (Duan et al. 2023) in plain PyTorch: its specification.

An RNN has, beside its activations, some internal outputs o, the last of which modulates. At every
step each short-term weight goes along the gradient of an internal loss, the mean of (scale o)^2,
by a rate of its own, which is trained: the network decides by o what is learnt. The gradient is
that of this step alone, so it can be written down:

    u = [x; h; 1],  z = (W + F) u,  h' = act(z),  o = (W_out + F_out) [h'; 1]
    e = dL/do,  delta = dL/dz
    F = (1 - decay m) F + rate m alpha * (delta outer u),  F_out likewise with e outer [h'; 1]

with m = 2 sigmoid(o_last), and all gradients together no longer than `clip`. What is nonlinear in
its own state has no form in chunks: this runs step by step.

Notation: B batch, T time steps, I inputs, H hidden units, D = I + H, plus 1 with a bias, O internal
outputs. One row per post-synaptic unit, one column per pre-synaptic unit, that of the bias last.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stpn.ops.power import synaptic_power
from stpn.ops.scan import State, scan


def gradient_plasticity_step(
    x: Tensor,  # (B, I)
    h: Tensor,  # (B, H)
    f: Tensor,  # (B, H, D)
    f_out: Tensor,  # (B, O, H + 1), or H without a bias
    weight: Tensor,  # (H, D)
    weight_out: Tensor,  # (O, H + 1)
    alpha: Tensor,  # (H, D)
    alpha_out: Tensor,  # (O, H + 1)
    scale: Tensor,  # (O,)
    rate: float = 0.1,
    decay: float = 0.1,
    clip: float = 1.0,
    nonlinearity: str = "relu",
    frozen: bool = False,
    power_weight: Tensor | None = None,  # (I + H,)
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One step: `(h', f', f_out', power)`, power (B,)."""
    inputs, hidden = x.shape[1] + h.shape[1], h.shape[1]
    u = _with_bias(torch.cat([x, h], 1), f.shape[2])  # (B, D)
    g, g_out = weight + f, weight_out + f_out
    z = torch.einsum("bij,bj->bi", g, u)
    new_h = torch.relu(z) if nonlinearity == "relu" else torch.tanh(z)
    seen = _with_bias(new_h, f_out.shape[2])  # (B, H + 1)
    o = torch.einsum("bij,bj->bi", g_out, seen)  # (B, O)
    power = synaptic_power(u[:, :inputs], g[:, :, :inputs], power_weight)
    if power is not None:
        power = power + torch.einsum("bj,bij->b", new_h.square(), g_out[:, :, :hidden].abs())
    if frozen:
        return new_h, f, f_out, power
    e = 2 / o.shape[1] * scale.square() * o
    slope = (z > 0).to(z.dtype) if nonlinearity == "relu" else 1 - new_h.square()
    delta = torch.einsum("bij,bi->bj", g_out[:, :, :hidden], e) * slope  # (B, H)
    squared = _squared(delta) * _squared(u) + _squared(e) * _squared(seen)  # (B,): of all gradients
    shorter = clip / squared.clamp(min=clip * clip).sqrt()
    modulation = 2 * torch.sigmoid(o[:, -1])  # (B,)
    step = (rate * modulation * shorter).unsqueeze(1)
    left = (1 - decay * modulation)[:, None, None]
    new_f = left * f + alpha * torch.einsum("bi,bj->bij", step * delta, u)
    new_f_out = left * f_out + alpha_out * torch.einsum("bi,bj->bij", step * e, seen)
    return new_h, new_f, new_f_out, power


def gradient_plasticity(
    x: Tensor,  # (B, T, I)
    h0: Tensor,  # (B, H)
    f0: Tensor,  # (B, H, D)
    f_out0: Tensor,  # (B, O, H + 1)
    weight: Tensor,  # (H, D)
    weight_out: Tensor,  # (O, H + 1)
    alpha: Tensor,  # (H, D)
    alpha_out: Tensor,  # (O, H + 1)
    scale: Tensor,  # (O,)
    *,
    rate: float = 0.1,
    decay: float = 0.1,
    clip: float = 1.0,
    nonlinearity: str = "relu",
    frozen: bool = False,
    reset: Tensor | None = None,  # (B, T) bool: this step starts from a zero state
    lengths: Tensor | None = None,  # (B,) int64: steps that count, from the left
    power_weight: Tensor | None = None,  # (I + H,)
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Over a sequence: `y` (B, T, H), the final F and F_out, and the power (B, T), which is None
    unless `power_weight` is given. Past the end of a sequence `y` and the power are 0."""

    def step(x_t: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        h, f, f_out = state
        h, f, f_out, power = gradient_plasticity_step(
            x_t, h, f, f_out, weight, weight_out, alpha, alpha_out, scale,
            rate, decay, clip, nonlinearity, frozen, power_weight,
        )  # fmt: skip
        return h, (h, f, f_out), power

    y, (_, f, f_out), power = scan(step, x, (h0, f0, f_out0), reset, lengths)
    return y, f, f_out, power


def _with_bias(u: Tensor, columns: int) -> Tensor:
    """A constant 1 beside u, if the synapses have a column for it."""
    return functional.pad(u, (0, columns - u.shape[1]), value=1.0)


def _squared(x: Tensor) -> Tensor:
    return x.square().sum(-1)
