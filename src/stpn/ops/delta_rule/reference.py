"""The delta rule (Schlag et al. 2021), gated or not (Yang et al. 2024, 2025): the specification.

A head is an associative memory S with one row per value and one column per key. A step reads what
S holds for its key, and moves it towards its value:

    S = exp(g) S                              # g <= 0: forgetting; None: nothing is forgotten
    S = S + beta (v - S k) outer k
    o = S q

Notation: B batch, T time steps, N heads, K entries of keys and queries, V of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops.scan import State, scan


def delta_rule_step(
    q: Tensor,  # (B, N, K)
    k: Tensor,  # (B, N, K)
    v: Tensor,  # (B, N, V)
    beta: Tensor,  # (B, N)
    g: Tensor | None,  # (B, N)
    s: Tensor,  # (B, N, V, K)
) -> tuple[Tensor, Tensor]:
    """One step: `(o, s')`, o (B, N, V)."""
    if g is not None:
        s = g.exp()[..., None, None] * s
    held = torch.einsum("bnvk,bnk->bnv", s, k)
    s = s + torch.einsum("bn,bnv,bnk->bnvk", beta, v - held, k)
    return torch.einsum("bnvk,bnk->bnv", s, q), s


def delta_rule(
    q: Tensor,  # (B, T, N, K)
    k: Tensor,  # (B, T, N, K)
    v: Tensor,  # (B, T, N, V)
    beta: Tensor,  # (B, T, N)
    g: Tensor | None,  # (B, T, N)
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
    sizes = [q.shape[-1], k.shape[-1], v.shape[-1], 1] + [1] * (g is not None)
    last = [beta.unsqueeze(-1)] + ([] if g is None else [g.unsqueeze(-1)])

    def step(x: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        q, k, v, beta, *decay = x.split(sizes, -1)
        g = decay[0].squeeze(-1) if decay else None
        o, s = delta_rule_step(q, k, v, beta.squeeze(-1), g, state[0])
        return o, (s,), read_power(q, s) if power else None

    o, (s,), spent = scan(step, torch.cat([q, k, v, *last], -1), (s0,), reset, lengths)
    return o, s, spent


def read_power(q: Tensor, s: Tensor) -> Tensor:
    """Power (B,) of synapses s (B, N, V, K) that see q (B, N, K)."""
    return torch.einsum("bnk,bnvk->b", q.square(), s.abs())
