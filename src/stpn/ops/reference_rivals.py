"""Modulated plasticity and fast weights in plain PyTorch: the specification of both.

Each recurrence is a pure step and a loop over time around it. The native kernels have the
signatures of `modplast` and `fast_weights`, and are tested against these.

Notation: B batch, T time steps, H hidden units. The drive `p` (B, T, H) is what comes from outside
the recurrence, input projection and bias, computed for all steps at once by the layer.
Every (H, H) matrix has one row per post-synaptic unit, one column per pre-synaptic unit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# (p_t (B, H), h (B, H), synapses (B, H, H)) -> (h', synapses', power (B,) | None)
_Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


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
    return new_h, new_hebb, _power(h, g, power_weight)


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

    def step(p_t: Tensor, h: Tensor, hebb: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return modplast_step(p_t, h, hebb, w, alpha, v, d, eta, power_weight)

    return _scan(step, p, h0, hebb0, reset, lengths)


def check_modulation(v: Tensor | None, d: Tensor | None, eta: Tensor | None) -> None:
    modulated = v is not None
    if modulated != (d is not None) or modulated == (eta is not None):
        raise ValueError("modplast takes either v and d (modulated) or eta (unmodulated)")


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
    power = _power(h, w_h.expand_as(a), power_weight)
    h = activate(slow)
    for _ in range(steps):
        inner = _power(h, a, power_weight)
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

    def step(p_t: Tensor, h: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return fast_weights_step(
            p_t, h, a, w_h, ln_weight, ln_bias, decay, rate, steps, eps, power_weight
        )

    return _scan(step, p, h0, a0, reset, lengths)


def _power(u: Tensor, g: Tensor, power_weight: Tensor | None) -> Tensor | None:
    """`sum_ij power_weight_j u_j^2 |g_ij|` per batch element; u (B, H), g (B, H, H) -> (B,)."""
    if power_weight is None:
        return None
    return torch.einsum("bj,bij->b", power_weight * u.square(), g.abs())


def _scan(
    step: _Step,
    p: Tensor,  # (B, T, H)
    h: Tensor,  # (B, H)
    synapses: Tensor,  # (B, H, H)
    reset: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run `step` over time, with fresh states at resets and nothing happening past the ends."""
    outputs: list[Tensor] = []
    powers: list[Tensor] = []
    for t, p_t in enumerate(p.unbind(1)):
        fresh = None if reset is None else reset[:, t]
        ended = None if lengths is None else lengths <= t
        if ended is not None:  # padding may hold anything, marks and NaN included
            p_t = _zero_where(ended, p_t)
            fresh = None if fresh is None else fresh & ~ended
        if fresh is not None:
            h, synapses = _zero_where(fresh, h), _zero_where(fresh, synapses)
        new_h, new_synapses, power = step(p_t, h, synapses)
        if ended is None:
            h, synapses, y = new_h, new_synapses, new_h
        else:
            h = torch.where(ended[:, None], h, new_h)
            synapses = torch.where(ended[:, None, None], synapses, new_synapses)
            y = _zero_where(ended, new_h)
            power = None if power is None else _zero_where(ended, power)
        outputs.append(y)
        if power is not None:
            powers.append(power)
    return torch.stack(outputs, 1), synapses, torch.stack(powers, 1) if powers else None


def _zero_where(mask: Tensor, value: Tensor) -> Tensor:
    """`value` (B, ...) with 0 in the batch elements of `mask` (B,)."""
    return value.masked_fill(mask.reshape(-1, *(1,) * (value.dim() - 1)), 0.0)
