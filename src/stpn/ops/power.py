"""Power of synapses that stay as they are: `sum_ij power_weight_j u_j^2 |w_ij|`.

Plastic synapses change at every step, so their power comes out of their recurrences.
"""

from __future__ import annotations

import torch
from torch import Tensor


def static_power(u: Tensor, weight: Tensor, power_weight: Tensor | None = None) -> Tensor:
    """u (..., D) into `weight` (R, D), summed over all synapses: (...,).

    `power_weight` (D,) is what each input counts; None: all count 1.
    """
    cost = weight.abs().sum(0)  # (D,): of one unit of squared input
    return u.square() @ (cost if power_weight is None else cost * power_weight)


def plus_static_power(power: Tensor, u: Tensor, weight: Tensor, power_weight: Tensor) -> Tensor:
    """`power` (B, T) and that of static synapses that see u (B, T, D)."""
    return power + static_power(u, weight, power_weight)


def synaptic_power(u: Tensor, g: Tensor, power_weight: Tensor | None) -> Tensor | None:
    """Of efficacies that differ between sequences: u (B, D), g (B, R, D) -> (B,)."""
    if power_weight is None:
        return None
    return torch.einsum("bj,bij->b", power_weight * u.square(), g.abs())


def hidden_power(
    y: Tensor,  # (B, T, H)
    h0: Tensor,  # (B, H)
    weight: Tensor,  # (R, H)
    power_weight: Tensor | None = None,  # (H,)
    reset: Tensor | None = None,  # (B, T) bool
    lengths: Tensor | None = None,  # (B,)
) -> Tensor:
    """Power (B, T) of synapses that saw h_prev when `y` came out; 0 past the ends."""
    # What y costs one step later: (B, T) is shifted in time, not (B, T, H).
    first = static_power(h0, weight, power_weight).unsqueeze(1)
    power = torch.cat([first, static_power(y, weight, power_weight)[:, :-1]], 1)
    silent = reset
    if lengths is not None:
        ended = torch.arange(y.shape[1], device=y.device) >= lengths.unsqueeze(1)
        silent = ended if silent is None else silent | ended
    return power if silent is None else power.masked_fill(silent, 0.0)
