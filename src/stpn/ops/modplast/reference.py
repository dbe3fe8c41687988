"""Modulated plasticity (Miconi et al. 2019) in plain PyTorch: its specification.

Notation: B batch, T time steps, H hidden units. The drive `p` (B, T, H) is what comes from outside
the recurrence, input projection and bias, computed for all steps at once by the layer.
Every (H, H) matrix has one row per post-synaptic unit, one column per pre-synaptic unit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops.power import synaptic_power
from stpn.ops.scan import State, scan


def modplast_step(
    p: Tensor,  # (B, H) drive of this step
    h: Tensor,  # (B, H) previous activation
    hebb: Tensor,  # (B, H, H) Hebbian trace
    w: Tensor,  # (H, H) fixed part of the recurrent efficacies
    alpha: Tensor,  # (H, H) how plastic each synapse is
    v: Tensor | None,  # (H,) modulator; None: unmodulated
    d: Tensor | None,  # () bias of the modulator
    eta: Tensor | None,  # () learning rate of the unmodulated form
    power_weight: Tensor | None = None,  # (H,)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One step of Miconi et al. 2019: `(h', hebb', power)`, power (B,) of recurrent synapses."""
    g = w + alpha * hebb  # (B, H, H)
    new_h = torch.tanh(p + torch.einsum("bij,bj->bi", g, h))
    if v is not None:
        assert d is not None
        rate = torch.tanh(new_h @ v + d)  # (B,): the network decides how much it learns
    else:
        assert eta is not None
        rate = eta.expand(h.shape[0])
    association = torch.einsum("b,bi,bj->bij", rate, new_h, h)
    new_hebb = torch.clamp(hebb + association, -1.0, 1.0)
    return new_h, new_hebb, synaptic_power(h, g, power_weight)


def modplast(
    p: Tensor,  # (B, T, H)
    h0: Tensor,  # (B, H)
    hebb0: Tensor,  # (B, H, H)
    w: Tensor,  # (H, H)
    alpha: Tensor,  # (H, H)
    v: Tensor | None,  # (H,)
    d: Tensor | None,  # ()
    eta: Tensor | None,  # ()
    *,
    reset: Tensor | None = None,  # (B, T) bool: this step starts from a zero state
    lengths: Tensor | None = None,  # (B,) int64: steps that count, from the left
    power_weight: Tensor | None = None,  # (H,)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """An RNN with modulated (or, with `v=d=None`, unmodulated) Hebbian plasticity, over a sequence.

    Returns `y` (B, T, H), the final trace (B, H, H) and the power (B, T), which is None unless
    `power_weight` is given. Past the end of a sequence `y` and the power are 0.
    """
    check_modulation(v, d, eta)

    def step(p_t: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        h, hebb = state
        h, hebb, power = modplast_step(p_t, h, hebb, w, alpha, v, d, eta, power_weight)
        return h, (h, hebb), power

    y, (_, hebb), power = scan(step, p, (h0, hebb0), reset, lengths)
    return y, hebb, power


def check_modulation(v: Tensor | None, d: Tensor | None, eta: Tensor | None) -> None:
    modulated = v is not None
    if modulated != (d is not None) or modulated == (eta is not None):
        raise ValueError("modplast takes either v and d (modulated) or eta (unmodulated)")
