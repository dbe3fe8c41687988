"""The STPN recurrences in plain PyTorch. This is their specification: every backend equals it.

Notation, the same in the whole package:
    B batch, T time steps, I inputs, H hidden units, R rows of synapses (H, or 4H with gates)
    u = what the synapses see: x (feed-forward, D = I) or [x ; h_prev] (recurrent, D = I + H)
    W, F, G = W + F: long-term weight, short-term weight, efficacy; D columns, inputs first

One step, for each neuron (row):
    1. G = W + F
    2. n = ||G|| + 1e-16
    3. h = act(G u / n + b)
    4. F' = gamma * (h outer u) + lambda * (F / n)

`lambda` is the factor that is kept. Step 4 associates with the u of step 3, so with h_prev, unless
the options say with the new h.

Where numbers end, too, a backend does as is done here. A gradient passes a clamp that is met
exactly, as it does `torch.clamp`. What is not finite shows in the results where it does here, and
never in another sequence of the batch. This goes for the other recurrences of the package, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from stpn.ops.scan import State, scan

NORM_EPS = 1e-16

_NONLINEARITIES = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}


@dataclass(frozen=True)
class STPNOptions:
    """What distinguishes one STPN recurrence from another, apart from its tensors."""

    recurrent: bool
    """Synapses see [x ; h_prev]; else x alone."""
    norm: Literal["pre", "post", "f"] | None = "pre"
    """pre: F is divided by the norm of G at every step. post: the updated F is divided by the
    norm of W + F. Both use G / n in the forward pass. f: the updated F is divided by its own norm,
    and G is used as it is. None: nothing is divided."""
    norm_over: Literal["neuron", "layer"] = "neuron"
    """One norm per row of G, or one for the whole matrix."""
    clamp: float | None = None
    """F is limited to [-clamp, clamp] right after the update (before a post division)."""
    rule: Literal["hebb", "oja"] = "hebb"
    """hebb: h outer u. oja: h outer (u - h^T F)."""
    nonlinearity: Literal["tanh", "sigmoid", "relu"] = "tanh"
    """Of the neuron; the gates of `stpn_lstm` have their own and ignore it."""
    associate: Literal["previous", "new"] = "previous"
    """In recurrent synapses step 4 associates with h_prev, as step 3 uses it, or with the new h."""
    frozen: bool = False
    """F stays as it is (a reset still empties it)."""


def stpn(
    x: Tensor,  # (B, T, I)
    h0: Tensor,  # (B, H)
    f0: Tensor,  # (B, H, D)
    weight: Tensor,  # (H, D)
    bias: Tensor | None,  # (H,)
    lambda_: Tensor,  # broadcastable to (H, D)
    gamma: Tensor,  # broadcastable to (H, D)
    *,
    options: STPNOptions,
    norm_scale: Tensor | None = None,  # (H,)
    layer_norm: Tensor | None = None,  # (H,): gain
    reset: Tensor | None = None,  # (B, T) bool: this step starts from a zero state
    lengths: Tensor | None = None,  # (B,) int64, at least 1
    power_weight: Tensor | None = None,  # (D,)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """STPNf and STPNr over a sequence.

    Returns y (B, T, H), the F after the last step (B, H, D), and with `power_weight` the power
    (B, T) = sum_ij power_weight_j u_j^2 |g_ij|. Past a sequence's end y and power are 0 and the
    state stands still.
    """
    act = _NONLINEARITIES[options.nonlinearity]

    def step(x_t: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        h, f = state
        u = torch.cat([x_t, h], dim=-1) if options.recurrent else x_t  # (B, D)
        g, n = efficacies(weight, f, options, norm_scale)  # (B, H, D), (B, H, 1) or (B, 1, 1)
        h = act(_with_bias(_standardised(_apply(g, u), layer_norm, 1), bias))  # (B, H)
        pre = associated(x_t, h, u, options)
        f = plasticity(f, h, pre, n, weight, lambda_, gamma, options)  # (B, H, D)
        return h, (h, f), _power(g, u, power_weight)

    y, (_, f), power = scan(step, x, (h0, f0), reset, lengths)
    return y, _unaliased(f, f0), power


def stpn_lstm(
    x: Tensor,  # (B, T, I)
    h0: Tensor,  # (B, H)
    c0: Tensor,  # (B, H)
    f0: Tensor,  # (B, 4H, D)
    weight: Tensor,  # (4H, D), gates i, f, g, o
    bias: Tensor | None,  # (4H,)
    lambda_: Tensor,  # broadcastable to (4H, D)
    gamma: Tensor,  # broadcastable to (4H, D)
    *,
    options: STPNOptions,
    norm_scale: Tensor | None = None,  # (4H,)
    layer_norm: Tensor | None = None,  # (4H,): gain
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """STPNl: an LSTM whose gates are rows of plastic synapses on [x ; h_prev].

    The post-synaptic factor of a row is the activation of its own gate. Returns y (B, T, H),
    the final c (B, H) and F (B, 4H, D), and the power as `stpn` does, over all 4H rows.
    """

    def step(x_t: Tensor, state: State) -> tuple[Tensor, State, Tensor | None]:
        h, c, f = state
        u = torch.cat([x_t, h], dim=-1)  # (B, D)
        g, n = efficacies(weight, f, options, norm_scale)
        a = _standardised(_apply(g, u), layer_norm, 4)  # (B, 4H)
        a_i, a_f, a_g, a_o = _with_bias(a, bias).chunk(4, dim=-1)  # (B, H) each
        gates = a_i.sigmoid(), a_f.sigmoid(), a_g.tanh(), a_o.sigmoid()
        input_gate, forget_gate, candidate, output_gate = gates
        c = forget_gate * c + input_gate * candidate
        h = output_gate * c.tanh()
        pre = associated(x_t, h, u, options)
        f = plasticity(f, torch.cat(gates, dim=-1), pre, n, weight, lambda_, gamma, options)
        return h, (h, c, f), _power(g, u, power_weight)

    y, (_, c, f), power = scan(step, x, (h0, c0, f0), reset, lengths)
    return y, c, _unaliased(f, f0), power


def stpn_step_(
    x: Tensor,  # (B, I)
    h: Tensor,  # (B, H)
    f: Tensor,  # (B, H, D), updated in place
    weight: Tensor,
    bias: Tensor | None,
    lambda_: Tensor,
    gamma: Tensor,
    *,
    options: STPNOptions,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One step without gradients, for streams: returns the new h (B, H) and the power (B,)."""
    y, f_new, power = stpn(
        x.unsqueeze(1), h, f, weight, bias, lambda_, gamma,
        options=options, power_weight=power_weight,
    )  # fmt: skip
    f.copy_(f_new)
    return y.squeeze(1), None if power is None else power.squeeze(1)


def stpn_lstm_step_(
    x: Tensor,  # (B, I)
    h: Tensor,  # (B, H)
    c: Tensor,  # (B, H), updated in place
    f: Tensor,  # (B, 4H, D), updated in place
    weight: Tensor,
    bias: Tensor | None,
    lambda_: Tensor,
    gamma: Tensor,
    *,
    options: STPNOptions,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """One step of STPNl without gradients: returns the new h (B, H) and the power (B,)."""
    y, c_new, f_new, power = stpn_lstm(
        x.unsqueeze(1), h, c, f, weight, bias, lambda_, gamma,
        options=options, power_weight=power_weight,
    )  # fmt: skip
    c.copy_(c_new)
    f.copy_(f_new)
    return y.squeeze(1), None if power is None else power.squeeze(1)


def efficacies(
    weight: Tensor,  # (R, D)
    f: Tensor,  # (B, R, D)
    options: STPNOptions,
    norm_scale: Tensor | None = None,  # (R,)
) -> tuple[Tensor, Tensor | None]:
    """The efficacies as the neuron uses them (B, R, D), and the divisor n, None without norm."""
    total = weight + f
    if options.norm in (None, "f"):
        return total, None
    n = divisor(total, options)
    g = total / n
    return (g if norm_scale is None else norm_scale.unsqueeze(-1) * g), n


def divisor(total: Tensor, options: STPNOptions) -> Tensor:
    """||G|| + 1e-16 over each row (B, R, 1), or over the layer (B, 1, 1).

    Synapses which are all zero are divided by 1: nothing changes in the forward pass, and a
    gradient is not multiplied by 1e16 at each step that they stay zero, until it overflows.
    """
    dim = -1 if options.norm_over == "neuron" else (-2, -1)
    norm = torch.linalg.vector_norm(total, dim=dim, keepdim=True)
    return torch.where(norm > 0, norm + NORM_EPS, 1.0)


def associated(x: Tensor, h: Tensor, u: Tensor, options: STPNOptions) -> Tensor:
    """What the update associates with (B, D)."""
    new = options.recurrent and options.associate == "new"
    return torch.cat([x, h], dim=-1) if new else u


def plasticity(
    f: Tensor,  # (B, R, D)
    post: Tensor,  # (B, R): the activation of each row
    u: Tensor,  # (B, D): what they are associated with
    n: Tensor | None,
    weight: Tensor,
    lambda_: Tensor,
    gamma: Tensor,
    options: STPNOptions,
) -> Tensor:
    """F after the step."""
    if options.frozen:
        return f
    pre = u.unsqueeze(-2)  # (B, 1, D)
    if options.rule == "oja":
        pre = pre - post.unsqueeze(-2) @ f
    kept = f / n if n is not None and options.norm == "pre" else f
    f = gamma * (post.unsqueeze(-1) * pre) + lambda_ * kept
    if options.clamp is not None:
        f = f.clamp(-options.clamp, options.clamp)
    if options.norm == "post":
        f = f / divisor(weight + f, options)
    elif options.norm == "f":
        f = f / divisor(f, options)
    return f


def _apply(g: Tensor, u: Tensor) -> Tensor:
    return (g @ u.unsqueeze(-1)).squeeze(-1)  # (B, R, D), (B, D) -> (B, R)


def _standardised(a: Tensor, gain: Tensor | None, gates: int) -> Tensor:
    """Layer norm of the sums (B, R), over the units of each gate; None: as they are."""
    if gain is None:
        return a
    of_gates = a.unflatten(-1, (gates, -1))
    return gain * functional.layer_norm(of_gates, of_gates.shape[-1:]).flatten(-2)


def _with_bias(a: Tensor, bias: Tensor | None) -> Tensor:
    return a if bias is None else a + bias


def _power(g: Tensor, u: Tensor, power_weight: Tensor | None) -> Tensor | None:
    if power_weight is None:
        return None
    return (g.abs() @ (power_weight * u.square()).unsqueeze(-1)).sum((-2, -1))  # (B,)


def _unaliased(value: Tensor, source: Tensor) -> Tensor:
    """A frozen F must not be the caller's tensor: the next step may be made in place."""
    return value.clone() if value is source else value
