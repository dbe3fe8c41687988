"""The delta rule in chunks, by the WY form of products of Householder-like matrices.

Inside a chunk S_t = d_t S_0 + sum over s <= t of d_ts (u_s outer k_s), where d is what decay leaves
and u_t = beta_t (v_t - d_t S_0 k_t - sum over s < t of d_ts (k_s . k_t) u_s): all u at once are the
solution of one triangular system, whose matrix does not depend on the state (Yang et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops.chunks import Chunks, kept, kept_state
from stpn.ops.delta_rule import reference

CHUNK = 32


def delta_rule(
    q: Tensor,  # (B, T, N, K)
    k: Tensor,  # (B, T, N, K)
    v: Tensor,  # (B, T, N, V)
    beta: Tensor,  # (B, T, N)
    g: Tensor | None,  # (B, T, N)
    s0: Tensor,  # (B, N, V, K)
    *,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    power: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference.delta_rule`, with a loop over chunks in place of one over steps."""
    if q.shape[1] == 1:
        return reference.delta_rule(q, k, v, beta, g, s0, reset=reset, lengths=lengths, power=power)
    chunks = Chunks.of(q, reset, lengths, CHUNK)
    q, k, v, beta = map(chunks.cut, (q, k, v, beta.unsqueeze(-1)))  # (B, N, M, C, .)
    if g is None:
        total, decay = None, chunks.connected(q).to(q.dtype)  # (., 1, ., C, C)
    else:
        g = chunks.cut(g.unsqueeze(-1))
        total, decay = g.cumsum(-2), chunks.decay(g.squeeze(-1))  # (B, N, M, C, 1 or C)
    eye = torch.eye(chunks.size, dtype=q.dtype, device=q.device)
    before = (beta * decay * (k @ k.mT)).tril(-1)  # (B, N, M, C, C)
    solve = torch.linalg.solve_triangular(eye + before, eye, upper=False, unitriangular=True)
    read = decay * (q @ k.mT)
    to_end = decay[..., -1:, :].mT * k  # (B, N, M, C, K)

    s, outputs, powers = s0, [], []
    for m in range(q.shape[2]):
        continues = chunks.continues(m)
        left = 1.0 if total is None else total[:, :, m].exp()  # (B, N, C, 1)
        q_m, k_m = q[:, :, m], k[:, :, m]  # (B, N, C, K)
        held = kept(continues, left * (k_m @ s.mT))
        u = solve[:, :, m] @ (beta[:, :, m] * (v[:, :, m] - held))  # (B, N, C, V)
        outputs.append(kept(continues, left * (q_m @ s.mT)) + read[:, :, m] @ u)
        if power:
            d = decay[:, :, m if decay.shape[2] > 1 else 0]
            powers.append(_read_power(q_m, k_m, u, s, d, left, continues))
        remains = s if total is None else total[:, :, m, -1:].exp() * s
        s = kept_state(continues, remains) + u.mT @ to_end[:, :, m]
    spent = chunks.joined_power(powers) if power else None
    return chunks.joined(outputs), s, spent


def _read_power(
    q: Tensor,  # (B, N, C, K)
    k: Tensor,  # (B, N, C, K)
    u: Tensor,  # (B, N, C, V)
    s: Tensor,  # (B, N, V, K) before the chunk
    decay: Tensor,  # (B or 1, N or 1, C, C)
    left: Tensor | float,  # (B, N, C, 1)
    continues: Tensor | None,  # (B, 1, C, 1)
) -> Tensor:  # (B, C)
    """The power needs S of every step, which nothing else does."""
    written = torch.einsum("bncv,bnck->bncvk", u, k).flatten(-2)  # (B, N, C, V K)
    start = kept(continues, left * s.flatten(-2).unsqueeze(-2))
    states = (start + decay @ written).unflatten(-1, s.shape[-2:])  # (B, N, C, V, K)
    return torch.einsum("bnck,bncvk->bc", q.square(), states.abs())
