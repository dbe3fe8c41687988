"""Fast weights (Ba et al. 2016) in plain PyTorch: their specification.

Notation: B batch, T time steps, H hidden units. The drive `p` (B, T, H) is what comes from outside
the recurrence, input projection and bias, computed for all steps at once by the layer.
Every (H, H) matrix has one row per post-synaptic unit, one column per pre-synaptic unit.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from stpn.ops.power import synaptic_power
from stpn.ops.scan import State, scan


def fast_weights_step(
    p: Tensor,  # (B, H) drive of this step
    h: Tensor,  # (B, H) previous activation
    a: Tensor,  # (B, H, H) fast weights
    w_h: Tensor,  # (H, H) slow recurrent weights
    ln_weight: Tensor,  # (H,) layer norm
    ln_bias: Tensor,  # (H,)
    decay: float = 0.9,
    rate: float = 0.5,
    steps: int = 1,
    eps: float = 1e-5,
    power_weight: Tensor | None = None,  # (H,)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One step of Ba et al. 2016: `(h', a', power)`, power (B,) of slow and fast synapses."""

    def activate(z: Tensor) -> Tensor:
        return torch.tanh(functional.layer_norm(z, z.shape[-1:], ln_weight, ln_bias, eps))

    a = decay * a + rate * torch.einsum("bi,bj->bij", h, h)
    slow = p + h @ w_h.T  # (B, H): stays on through the inner loop
    power = synaptic_power(h, w_h.expand_as(a), power_weight)
    h = activate(slow)
    for _ in range(steps):
        inner = synaptic_power(h, a, power_weight)
        power = None if power is None or inner is None else power + inner
        h = activate(slow + torch.einsum("bij,bj->bi", a, h))
    return h, a, power


def fast_weights(
    p: Tensor,  # (B, T, H)
    h0: Tensor,  # (B, H)
    a0: Tensor,  # (B, H, H)
    w_h: Tensor,  # (H, H)
    ln_weight: Tensor,  # (H,)
    ln_bias: Tensor,  # (H,)
    *,
    decay: float = 0.9,
    rate: float = 0.5,
    steps: int = 1,
    eps: float = 1e-5,
    reset: Tensor | None = None,  # (B, T) bool
    lengths: Tensor | None = None,  # (B,) int64
    power_weight: Tensor | None = None,  # (H,)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """An RNN with fast weights over a sequence; `steps` turns of the inner loop per time step.

    Returns `y` (B, T, H), the final fast weights (B, H, H) and the power (B, T), which is None
    unless `power_weight` is given. Past the end of a sequence `y` and the power are 0.
    """

    def step(p_t: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        h, a = state
        h, a, power = fast_weights_step(
            p_t, h, a, w_h, ln_weight, ln_bias, decay, rate, steps, eps, power_weight
        )
        return h, (h, a), power

    y, (_, a), power = scan(step, p, (h0, a0), reset, lengths)
    return y, a, power
