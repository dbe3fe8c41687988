"""Faults of W: what becomes of a matrix that is programmed into cells.

Each weight is a pair of conductances, one for each sign, of which one is 0. The largest weight of a
neuron is the largest conductance: a scale for each column of the array, undone after the read.
Formulas are those of aihwkit's phenomenological models; g is relative to g_max.

    bits              g rounded to levels
    programming       g + polynomial(g) z, at least 0
    drift             g ((t + t0) / t0)^-nu, nu = |mean(g) + spread(g) z|
    1/f noise         g (1 + q sqrt(ln((t + t0 + t_r) / 2 t_r)) z), q = min(flicker / g^0.65, 0.2)
                      with g as it was before drift
    compensation      one factor for the matrix brings the sum of |w| back to that before drift
    stuck cells       0 or 1, whatever was programmed
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stpn.energy import DeviceProfile

_TINY = 1e-7
_DRAWS = ("programming", "drift", "flicker", "stuck")


class Cells(nn.Module):
    """The cells of one matrix (R, D), or of several that share their rows."""

    draws: Tensor  # (4, 2, R, D): noise of a kind, of a cell of the pair

    def __init__(
        self,
        profile: DeviceProfile,
        shape: tuple[int, int],
        generator: torch.Generator,
        time: float,
    ) -> None:
        super().__init__()
        self.profile, self.time = profile, time
        draws = torch.randn(len(_DRAWS), 2, *shape, generator=generator)
        draws[-1].uniform_(generator=generator)
        # not saved: a checkpoint holds the network, and a seed says which devices it is on
        self.register_buffer("draws", draws, persistent=False)

    @property
    def perfect(self) -> bool:
        p = self.profile
        faults = (p.w_bits, p.programming, p.stuck_off, p.stuck_on)
        return not any(faults) and not (p.drift or p.flicker)

    def forward(self, weight: Tensor) -> Tensor:
        """What the cells hold (R, D); gradients pass straight through."""
        if self.perfect:
            return weight
        draws = self.draws.to(weight.dtype)
        if self.training:
            draws = torch.randn_like(draws)
            draws[-1].uniform_()
        held = programmed(weight.detach(), self.profile, draws, 0.0 if self.training else self.time)
        return straight_through(weight, held)


def straight_through(value: Tensor, changed: Tensor) -> Tensor:
    """`changed`, with the gradient of `value`."""
    return value + (changed - value).detach() if value.requires_grad else changed


def row_scale(weight: Tensor) -> Tensor:
    """The largest |weight| of each row (R, 1), which is the largest conductance."""
    return weight.detach().abs().amax(1, keepdim=True).clamp_min(_TINY)


def rounded(value: Tensor, bits: int | None) -> Tensor:
    """value in [-1, 1] to levels, the sign among the bits; the end points are levels."""
    if bits is None:
        return value
    levels = 2 ** (bits - 1) - 1
    return (value * levels).round() / levels


def programmed(weight: Tensor, p: DeviceProfile, draws: Tensor, time: float) -> Tensor:
    """`weight` (R, D) as cells hold it `time` seconds after they were programmed."""
    scale = row_scale(weight)
    g = rounded(weight / scale, p.w_bits)
    pair = torch.stack([g, -g]).clamp_min(0.0)  # (2, R, D)
    z_programming, z_drift, z_flicker, stuck = draws
    target = pair
    if p.programming:
        deviation = torch.zeros_like(pair)
        for coefficient in reversed(p.programming):
            deviation = deviation * target + coefficient
        pair = (pair + deviation * z_programming).clamp_min(0.0)
    fresh, before = pair, pair[0] - pair[1]
    if p.drift and time > 0:
        log_g = target.clamp_min(_TINY).log()
        nu = _line(log_g, p.drift)
        if p.drift_spread:
            nu = (nu + _line(log_g, p.drift_spread) * z_drift).abs()
        pair = pair * ((time + p.drift_start) / p.drift_start) ** -nu
    if p.flicker:
        q = (p.flicker / fresh.pow(0.65).clamp_min(1e-3)).clamp_max(0.2)
        length = time + p.drift_start + p.flicker_read
        growth = math.sqrt(math.log(length / (2 * p.flicker_read)))
        pair = (pair * (1 + q * growth * z_flicker)).clamp_min(0.0)
    if p.drift and time > 0:
        after = (pair[0] - pair[1]).abs().sum().clamp_min(_TINY)
        pair = pair * (before.abs().sum() / after)
    if p.stuck_off or p.stuck_on:
        pair = pair.masked_fill(stuck < p.stuck_off, 0.0)
        pair = pair.masked_fill(stuck > 1 - p.stuck_on, 1.0)
    return scale * (pair[0] - pair[1])


def _line(log_g: Tensor, numbers: tuple[float, ...]) -> Tensor:
    slope, offset, least, most = numbers
    return (slope * log_g + offset).clamp(least, most)
