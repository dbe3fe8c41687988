"""The way through time that all specifications share: resets, and sequences of unequal length."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

State: TypeAlias = tuple[Tensor, ...]

# (x_t (B, ...), state) -> (y_t (B, H), state', power (B,) | None)
Step: TypeAlias = Callable[[Tensor, State], tuple[Tensor, State, Tensor | None]]


def scan(
    step: Step,
    x: Tensor,  # (B, T, ...)
    state: State,
    reset: Tensor | None,  # (B, T) bool: this step starts from a zero state
    lengths: Tensor | None,  # (B,) int64, at least 1
) -> tuple[Tensor, State, Tensor | None]:
    """`step` over time: y (B, T, H), the state at each sequence's end, the power (B, T).

    Past a sequence's end y and power are 0 and the state stands still.
    """
    ys: list[Tensor] = []
    powers: list[Tensor] = []
    for t in range(x.shape[1]):
        x_t, reset_t, active = x[:, t], None if reset is None else reset[:, t], None
        if lengths is not None:
            # Padding may hold anything: a NaN in x would reach the gradient of W, a reset would
            # empty the final state.
            active = lengths > t
            x_t = _masked(active, x_t)
            reset_t = None if reset_t is None else reset_t & active
        state = tuple(_reset(reset_t, value) for value in state)
        y, new, power = step(x_t, state)
        if power is not None:
            powers.append(_masked(active, power))
        ys.append(_masked(active, y))
        state = tuple(_advance(active, *both) for both in zip(new, state, strict=True))
    return torch.stack(ys, 1), state, torch.stack(powers, 1) if powers else None


# `where`, not a product: what is masked may be NaN, in the state and in its gradient.


def _like(mask: Tensor, value: Tensor) -> Tensor:
    return mask.reshape(-1, *(1,) * (value.dim() - 1))


def _reset(reset: Tensor | None, state: Tensor) -> Tensor:
    return state if reset is None else torch.where(_like(reset, state), 0.0, state)


def _masked(active: Tensor | None, value: Tensor) -> Tensor:
    return value if active is None else torch.where(_like(active, value), value, 0.0)


def _advance(active: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if active is None else torch.where(_like(active, new), new, old)
