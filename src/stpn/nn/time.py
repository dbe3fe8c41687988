"""Sequences in the order of time, and against it."""

from __future__ import annotations

import torch
from torch import Tensor


def last_step(y: Tensor, lengths: Tensor | None) -> Tensor:
    """y (B, T, H) at each sequence's end, as a tensor of its own (B, H)."""
    if lengths is None:
        return y.select(1, -1).clone()
    return y[torch.arange(y.shape[0], device=y.device), lengths - 1]


def reversed_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, T, ...) backwards in time, each sequence within its own length."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    end = lengths.unsqueeze(1)  # (B, 1)
    index = torch.where(t < end, end - 1 - t, t)  # (B, T)
    return x[torch.arange(x.shape[0], device=x.device).unsqueeze(1), index]


def reversed_reset(reset: Tensor, lengths: Tensor | None) -> Tensor:
    """The mask (B, T) for the reverse direction, in its order of time.

    A sequence that begins at step t ends, seen backwards, before step t - 1: a reset there.
    """
    backwards = reversed_time(reset, lengths)
    return torch.cat([torch.zeros_like(backwards[:, :1]), backwards[:, :-1]], dim=1)
