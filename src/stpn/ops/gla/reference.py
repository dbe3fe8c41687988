"""Gated linear attention (Yang et al. 2024): the specification.

A head is a memory S with one row per value and one column per key. A step forgets, column by
column, as much as it likes, and adds its pair of value and key:

    S = S diag(exp(g)) + v outer k            # g <= 0, an entry per key
    o = S q

Notation: B batch, T time steps, N heads, K entries of keys and queries, V of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops.delta_rule.reference import read_power
from stpn.ops.scan import State, scan


def gated_linear_attention_step(
    q: Tensor,  # (B, N, K)
    k: Tensor,  # (B, N, K)
    v: Tensor,  # (B, N, V)
    g: Tensor,  # (B, N, K)
    s: Tensor,  # (B, N, V, K)
) -> tuple[Tensor, Tensor]:
    """One step: `(o, s')`, o (B, N, V)."""
    s = s * g.exp().unsqueeze(-2) + torch.einsum("bnv,bnk->bnvk", v, k)
    return torch.einsum("bnvk,bnk->bnv", s, q), s


def gated_linear_attention(
    q: Tensor,  # (B, T, N, K)
    k: Tensor,  # (B, T, N, K)
    v: Tensor,  # (B, T, N, V)
    g: Tensor,  # (B, T, N, K)
    s0: Tensor,  # (B, N, V, K)
    *,
    reset: Tensor | None = None,  # (B, T) bool: this step starts from a zero state
    lengths: Tensor | None = None,  # (B,) int64: steps that count, from the left
    power: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Over a sequence: o (B, T, N, V), the final S, and, if asked, the power (B, T) of reading it.

    The power is that of the synapses S seen by q, the sum of q_j^2 |s_ij|. Past the end of a
    sequence o and the power are 0, and S stands still.
    """
    sizes = [q.shape[-1], k.shape[-1], v.shape[-1], g.shape[-1]]

    def step(x: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        q, k, v, g = x.split(sizes, -1)
        o, s = gated_linear_attention_step(q, k, v, g, state[0])
        return o, (s,), read_power(q, s) if power else None

    o, (s,), spent = scan(step, torch.cat([q, k, v, g], -1), (s0,), reset, lengths)
    return o, s, spent
