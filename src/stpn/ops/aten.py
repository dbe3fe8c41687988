"""RNN, LSTM and GRU on PyTorch's own fused kernels, with resets inside a sequence.

PyTorch's kernels know nothing of resets, and cutting a batch at its resets leaves them with short
pieces. Gates can do it themselves: a *flush* step, inserted before each reset, has an extra input
that shuts the gates, after which the state is exactly zero and no gradient passes. A *hold* input
keeps an LSTM's cell as it is past a sequence's end. A batch with resets so remains one dense call,
longer by the largest number of resets in any of its sequences. The neurons of a plain RNN have no
gates; their resets run in a loop over time, which is what PyTorch does too.

The fused kernels are closed to whoever records or transforms a call (`torch.compile`, `torch.func`,
modes that count operations). They get the same in plain PyTorch, step by step.

Shapes: x (B, T, I), h0 and c0 (B, H), reset (B, T) bool, lengths (B,) int64. `weights` are those of
`nn.LSTM`: w_ih (R, I), w_hh (R, H) and, with biases, b_ih and b_hh (R,), with R = H rows per gate.
All return y (B, T, H), which is 0 past the ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stpn.ops.tracing import needs_plain_pytorch

# Far beyond where a sigmoid is 0 or 1 to the last bit, far below where a float overflows.
_SHUT, _OPEN = -1e6, 1e6


def rnn(
    x: Tensor,
    h0: Tensor,
    weights: tuple[Tensor, ...],
    *,
    nonlinearity: str = "tanh",
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    if _watched():
        y, _ = _plain_loop(x, (h0,), weights, partial(_rnn_cell, nonlinearity), reset, lengths)
        return y
    reset, h0 = _at_the_start(reset, lengths, h0)
    if reset is not None:
        y = _rnn_loop(x, h0, weights, torch.tanh if nonlinearity == "tanh" else torch.relu, reset)
    else:
        run = torch._VF.rnn_tanh if nonlinearity == "tanh" else torch._VF.rnn_relu
        y, _ = run(x, h0.unsqueeze(0), weights, *_one_layer(weights, batch_first=True))
    return zero_past_the_ends(y, lengths)


def lstm(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    weights: tuple[Tensor, ...],
    *,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y and the final c (B, H)."""
    if _watched():
        y, (_, c) = _plain_loop(x, (h0, c0), weights, _lstm_cell, reset, lengths)
        return y, c
    reset, h0, c0 = _at_the_start(reset, lengths, h0, c0)
    state = (h0.unsqueeze(0), c0.unsqueeze(0))
    if reset is None and lengths is None:
        y, _, c = torch._VF.lstm(x, state, weights, *_one_layer(weights, batch_first=True))
        return y, c.squeeze(0)
    marks = weights[0].new_zeros(4, h0.shape[-1], 2)  # gates i, f, g, o; columns flush, hold
    marks[[0, 1, 3], :, 0] = _SHUT
    marks[0, :, 1] = _SHUT
    marks[1, :, 1] = _OPEN
    plan = _Stretched.plan(x, reset, lengths)
    weights = (torch.cat([weights[0], marks.flatten(0, 1)], 1), *weights[1:])
    stretched, _, c = torch._VF.lstm(plan.spread(x), state, weights, *_one_layer(weights))
    return zero_past_the_ends(plan.collect(stretched), lengths), c.squeeze(0)


def gru(
    x: Tensor,
    h0: Tensor,
    weights: tuple[Tensor, ...],
    *,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    if _watched():
        y, _ = _plain_loop(x, (h0,), weights, _gru_cell, reset, lengths)
        return y
    reset, h0 = _at_the_start(reset, lengths, h0)
    if reset is None:
        y, _ = torch._VF.gru(x, h0.unsqueeze(0), weights, *_one_layer(weights, batch_first=True))
        return zero_past_the_ends(y, lengths)
    hidden = h0.shape[-1]
    marks = weights[0].new_zeros(3 * hidden, 2)  # gates r, z, n
    marks[: 2 * hidden, 0] = _SHUT
    if len(weights) > 2:  # with r and z shut, h' = tanh(b_in + flush): the flush takes b_in away
        marks[2 * hidden :, 0] = -weights[2][2 * hidden :]
    plan = _Stretched.plan(x, reset, lengths)
    weights = (torch.cat([weights[0], marks], 1), *weights[1:])
    y, _ = torch._VF.gru(plan.spread(x), h0.unsqueeze(0), weights, *_one_layer(weights))
    return zero_past_the_ends(plan.collect(y), lengths)


def _watched() -> bool:
    """Whether something other than plain eager execution looks at this call."""
    return (
        torch.compiler.is_compiling()
        or needs_plain_pytorch() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


_State = tuple[Tensor, ...]


def _plain_loop(
    x: Tensor,
    state: _State,
    weights: tuple[Tensor, ...],
    cell: Callable[..., _State],
    reset: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, _State]:
    """y and the final state; `cell` takes w_ih x + b_ih (B, R), w_hh h + b_hh (B, R), the state."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:] if len(weights) > 2 else (None, None)
    ys = []
    for t, p in enumerate(functional.linear(x, w_ih, b_ih).unbind(1)):
        if reset is not None:
            begins = reset[:, t].unsqueeze(1)
            state = tuple(value.masked_fill(begins, 0.0) for value in state)
        new = cell(p, functional.linear(state[0], w_hh, b_hh), *state)
        if lengths is not None:
            goes_on = (t < lengths).unsqueeze(1)
            new = tuple(torch.where(goes_on, a, b) for a, b in zip(new, state, strict=True))
        state = new
        ys.append(state[0])
    return zero_past_the_ends(torch.stack(ys, 1), lengths), state


def _rnn_cell(nonlinearity: str, p: Tensor, q: Tensor, h: Tensor) -> _State:
    return (torch.tanh(p + q) if nonlinearity == "tanh" else torch.relu(p + q),)


def _lstm_cell(p: Tensor, q: Tensor, h: Tensor, c: Tensor) -> _State:
    i, f, g, o = (p + q).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(p: Tensor, q: Tensor, h: Tensor) -> _State:
    (p_r, p_z, p_n), (q_r, q_z, q_n) = p.chunk(3, 1), q.chunk(3, 1)
    r, z = (p_r + q_r).sigmoid(), (p_z + q_z).sigmoid()
    n = (p_n + r * q_n).tanh()
    return (n + z * (h - n),)


def _one_layer(
    weights: tuple[Tensor, ...], batch_first: bool = False
) -> tuple[bool, int, float, bool, bool, bool]:
    """has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    return len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, batch_first


def _at_the_start(reset: Tensor | None, lengths: Tensor | None, *state: Tensor) -> tuple[Any, ...]:
    """Resets of the first step done to the state; the others, or None if there are none."""
    if reset is None:
        return None, *state
    state = tuple(value.masked_fill(reset[:, :1], 0.0) for value in state)
    inner = reset.clone()
    inner[:, 0] = False
    if lengths is not None:
        inner &= torch.arange(reset.shape[1], device=reset.device) < lengths.unsqueeze(1)
    return (inner if inner.any() else None), *state


def zero_past_the_ends(y: Tensor, lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return y
    ended = torch.arange(y.shape[1], device=y.device) >= lengths.unsqueeze(1)
    return y.masked_fill(ended.unsqueeze(-1), 0.0)


def _rnn_loop(
    x: Tensor, h: Tensor, weights: tuple[Tensor, ...], activate: Any, reset: Tensor
) -> Tensor:
    bias = weights[2] + weights[3] if len(weights) > 2 else None
    p = functional.linear(x, weights[0], bias)  # (B, T, H)
    w_hh = weights[1].t()
    ys = []
    some = reset.any(0).tolist()  # (T,): steps at which some sequence starts anew
    for t, p_t in enumerate(p.unbind(1)):
        if some[t]:
            h = h.masked_fill(reset[:, t, None], 0.0)
        h = activate(torch.addmm(p_t, h, w_hh))
        ys.append(h)
    return torch.stack(ys, 1)


@dataclass(frozen=True)
class _Stretched:
    """A batch of sequences with flush steps inserted before the resets, time first."""

    index: Tensor
    """(T * B,): the row among T' * B that each step of the batch has in the stretched one."""
    marks: Tensor
    """(T' * B, 2) bool: flush, hold."""
    shape: tuple[int, int, int]
    """T, T', B"""

    @classmethod
    def plan(cls, x: Tensor, reset: Tensor | None, lengths: Tensor | None) -> _Stretched:
        batch, steps, _ = x.shape
        t = torch.arange(steps, device=x.device).unsqueeze(1)  # (T, 1)
        b = torch.arange(batch, device=x.device)  # (B,)
        place, longer = t.expand(steps, batch), steps  # (T, B): where each step comes to lie
        if reset is not None:
            inserted = reset.t().cumsum(0)  # (T, B)
            place, longer = t + inserted, steps + int(inserted[-1].max())
        last = place[-1] if lengths is None else place[lengths - 1, b]  # (B,)
        marks = torch.zeros(longer, batch, 2, dtype=torch.bool, device=x.device)
        if reset is not None:
            at, whose = reset.t().nonzero(as_tuple=True)
            marks[place[at, whose] - 1, whose, 0] = True
        marks[..., 1] = torch.arange(longer, device=x.device).unsqueeze(1) > last
        return cls((place * batch + b).flatten(), marks.flatten(0, 1), (steps, longer, batch))

    def spread(self, x: Tensor) -> Tensor:
        """(B, T, I) to (T', B, I + 2)."""
        _, longer, batch = self.shape
        rows = _Spread.apply(x.transpose(0, 1).flatten(0, 1), self.index, self.marks)
        return rows.view(longer, batch, -1)

    def collect(self, y: Tensor) -> Tensor:
        """(T', B, H) to (B, T, H)."""
        steps, _, batch = self.shape
        return _Collect.apply(y.flatten(0, 1), self.index).view(steps, batch, -1).transpose(0, 1)


# Rows move one to one. PyTorch's own backward of `index_select` does not know that: it adds.


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, marks: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        features = rows.shape[1]
        spread = rows.new_zeros(marks.shape[0], features + marks.shape[1])
        spread[:, :features].index_copy_(0, index, rows)
        spread[:, features:] = marks
        return spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient[:, :-2].index_select(0, index), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        spread = gradient.new_zeros(ctx.size, gradient.shape[1])
        return spread.index_copy(0, index, gradient), None
