"""Statistics that are gathered while training and kept with the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LARGEST = 10.0
"""Deviations beyond which a number is cut off."""


class RunningStatistics(nn.Module):
    """Mean and variance of everything shown to `update`; `forward` standardises with them.

    With `one_scale` all entries are divided by the largest deviation of any: one that hardly ever
    changes is not blown up, and of those that do none is far beyond 1. Before the first update
    numbers pass as they are.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], *, one_scale: bool = False) -> None:
        super().__init__()
        self.one_scale = one_scale
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, numbers: Tensor) -> None:
        """(N, *shape): take them in, as if all so far had been one batch."""
        variance, mean = torch.var_mean(numbers.float(), 0, correction=0)
        old, new = float(self.count), len(numbers)
        share = new / (old + new)
        if old == 0:
            self.mean.copy_(mean)
            self.variance.copy_(variance)
        else:
            shift = mean - self.mean
            spread = variance + (1 - share) * shift.square()
            self.variance.lerp_(spread, share)
            self.mean.lerp_(mean, share)
        self.count += new

    def forward(self, numbers: Tensor) -> Tensor:  # (N, *shape) -> the same
        return self.standardize_(numbers.clone())

    def standardize_(self, numbers: Tensor) -> Tensor:
        """`forward` in place: for frames, allocating takes ten times as long as the arithmetic."""
        variance = self.variance.max() if self.one_scale else self.variance
        scale = torch.rsqrt(variance + 1e-8)
        return numbers.sub_(self.mean).mul_(scale).clamp_(-LARGEST, LARGEST)
