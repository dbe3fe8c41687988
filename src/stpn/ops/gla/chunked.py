"""Gated linear attention in chunks: attention inside a chunk, the state from chunk to chunk.

Every key decays at a rate of its own, so that what is left of step s at step t is a vector. It is
computed pair by pair, as the exponential of a sum, which never overflows; a product of exponentials
would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops.chunks import Chunks, kept, kept_state
from stpn.ops.gla import reference

CHUNK = 16


def gated_linear_attention(
    q: Tensor,  # (B, T, N, K)
    k: Tensor,  # (B, T, N, K)
    v: Tensor,  # (B, T, N, V)
    g: Tensor,  # (B, T, N, K)
    s0: Tensor,  # (B, N, V, K)
    *,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    power: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference.gated_linear_attention`, with a loop over chunks in place of one over steps."""
    if q.shape[1] == 1:
        return reference.gated_linear_attention(
            q, k, v, g, s0, reset=reset, lengths=lengths, power=power
        )
    chunks = Chunks.of(q, reset, lengths, CHUNK)
    q, k, v, g = map(chunks.cut, (q, k, v, g))  # (B, N, M, C, .)
    total = g.cumsum(-2)  # (B, N, M, C, K)
    decay = chunks.decay(g)  # (B, N, M, C, C, K)
    read = torch.einsum("bnmtk,bnmsk,bnmtsk->bnmts", q, k, decay)
    to_end = decay[..., -1, :, :] * k  # (B, N, M, C, K)
    inside = read @ v
    written = v.mT @ to_end  # (B, N, M, V, K)

    s, outputs, powers = s0, [], []
    for m in range(q.shape[2]):
        continues, left = chunks.continues(m), total[:, :, m].exp()  # (B, N, C, K)
        outputs.append(kept(continues, (q[:, :, m] * left) @ s.mT) + inside[:, :, m])
        if power:
            start = left.unsqueeze(-2) * s.unsqueeze(2)  # (B, N, C, V, K)
            pieces = decay[:, :, m], v[:, :, m], k[:, :, m]
            added = torch.einsum("bntsk,bnsv,bnsk->bntvk", *pieces)
            shown = None if continues is None else continues.unsqueeze(-1)
            states = kept(shown, start) + added
            powers.append(torch.einsum("bntk,bntvk->bt", q[:, :, m].square(), states.abs()))
        s = kept_state(continues, s * left[:, :, -1:]) + written[:, :, m]
    return chunks.joined(outputs), s, chunks.joined_power(powers) if power else None
