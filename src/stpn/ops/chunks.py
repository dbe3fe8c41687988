"""Sequences cut into chunks, for recurrences that are linear in their state.

Such a recurrence needs no loop over its steps. Inside a chunk every step sees every earlier one
through a matrix, as in attention; from chunk to chunk goes the state. What resets forbid, no matrix
connects: two steps see each other only if they belong to the same *segment* of a sequence.

Notation: B batch, T time steps, N heads, M chunks of C steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Chunks:
    """How the steps of a batch lie in chunks."""

    steps: int
    size: int
    active: Tensor | None
    """(B, T) bool: steps before the end of their sequence; None: all."""
    segment: Tensor | None
    """(B, 1, M, C): resets so far inside the chunk; None: there are no resets."""

    @classmethod
    def of(
        cls, x: Tensor, reset: Tensor | None, lengths: Tensor | None, size: int
    ) -> Chunks:  # x (B, T, ...)
        steps = x.shape[1]
        size = min(size, steps)
        active = None
        if lengths is not None:
            active = torch.arange(steps, device=x.device) < lengths.unsqueeze(1)
        segment = None
        if reset is not None:
            reset = reset if active is None else reset & active
            padded = functional.pad(reset, (0, -steps % size))
            segment = padded.unflatten(1, (-1, size)).cumsum(-1).unsqueeze(1)
        return cls(steps, size, active, segment)

    def cut(self, x: Tensor) -> Tensor:
        """(B, T, N, D) to (B, N, M, C, D), with zeros where no step is."""
        x = self.masked(x)
        x = functional.pad(x, (0, 0, 0, 0, 0, -self.steps % self.size))
        return x.unflatten(1, (-1, self.size)).permute(0, 3, 1, 2, 4)

    def joined(self, parts: list[Tensor]) -> Tensor:
        """M of (B, N, C, D) to (B, T, N, D), with zeros past the ends."""
        return self.masked(torch.cat(parts, 2).transpose(1, 2)[:, : self.steps])

    def joined_power(self, parts: list[Tensor]) -> Tensor:
        """M of (B, C) to (B, T)."""
        return self.masked(torch.cat(parts, 1)[:, : self.steps])

    def masked(self, x: Tensor) -> Tensor:
        """x (B, T, ...) with zeros past the ends."""
        if self.active is None:
            return x
        # `where`, not a product: padding may hold anything
        return torch.where(self.active.reshape(*self.active.shape, *(1,) * (x.dim() - 2)), x, 0.0)

    def connected(self, like: Tensor) -> Tensor:
        """(B or 1, 1, M or 1, C, C) bool: step t (rows) may see step s, this one included."""
        seen = torch.ones(self.size, self.size, dtype=torch.bool, device=like.device).tril()
        if self.segment is None:
            return seen.expand(1, 1, 1, self.size, self.size)
        return seen & (self.segment.unsqueeze(-1) == self.segment.unsqueeze(-2))

    def decay(self, g: Tensor) -> Tensor:
        """What is left of step s at step t, exp(g_{s+1} + ... + g_t): g (B, N, M, C, ...) to
        (B, N, M, C, C, ...), 0 where the two are not connected.

        Summed for each s on its own: a difference of two sums from the start of the chunk would be
        rounded as its terms are, and a step that forgets all makes them too large, or infinite.
        """
        further = g.dim() - 4  # dimensions behind the steps
        later = torch.ones(self.size, self.size, dtype=torch.bool, device=g.device).tril(-1)
        terms = torch.where(later.view(self.size, self.size, *(1,) * further), g.unsqueeze(4), 0.0)
        connected = self.connected(g)
        apart = ~connected.view(*connected.shape, *(1,) * further)
        return terms.cumsum(3).masked_fill(apart, -torch.inf).exp()

    def continues(self, m: int) -> Tensor | None:
        """(B, 1, C, 1) bool: step of chunk m that sees the state before it; None: all do."""
        return None if self.segment is None else (self.segment[:, :, m] == 0).unsqueeze(-1)


def kept(continues: Tensor | None, x: Tensor) -> Tensor:
    """What comes from the state before a chunk, where it may."""
    return x if continues is None else torch.where(continues, x, 0.0)


def kept_state(continues: Tensor | None, s: Tensor) -> Tensor:
    """The state s (B, N, V, K) after a chunk, of a sequence without a reset in it."""
    return s if continues is None else torch.where(continues[:, :, -1:], s, 0.0)
