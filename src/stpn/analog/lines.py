"""Faults of reading: converters, and the noise of cells and sums.

    u     rounded to the levels of a DAC, whose largest is the largest |u| of the vector
    a     the sums, with noise of each cell (of deviation read_noise, in largest weights) and of
          each sum (output_noise, in largest weights times largest inputs)
    ADC   a limited to adc_range largest weights times largest inputs, rounded to levels

Noise that is drawn for each cell at each read adds up, in a sum over inputs u, to a normal variable
of deviation read_noise ||u||; that is what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stpn.analog.cells import rounded, straight_through
from stpn.energy import DeviceProfile

_READING = ("dac_bits", "adc_bits", "read_noise", "output_noise")
_UPDATING = ("f_bits", "f_range", "update_noise", "update_asymmetry")
_RATES = ("lambda_spread", "gamma_spread")


def in_step(profile: DeviceProfile, *, rates: bool = False) -> list[str]:
    """The values of a profile that act inside a time step, where no kernel goes.

    `rates`: of a core whose rates are not operands of its kernel.
    """
    names = (*_READING, *_UPDATING, *(_RATES if rates else ()))
    return [name for name in names if getattr(profile, name)]


def reads(profile: DeviceProfile) -> bool:
    """Whether reading is not exact."""
    return any(getattr(profile, name) for name in _READING)


def converted(u: Tensor, largest: Tensor, profile: DeviceProfile) -> Tensor:
    """u after a DAC."""
    if profile.dac_bits is None:
        return u
    return straight_through(u, rounded(u.detach() / largest, profile.dac_bits) * largest)


def sums(
    a: Tensor, scale: Tensor, largest: Tensor, length: Callable[[], Tensor], p: DeviceProfile
) -> Tensor:
    """The sums as an ADC gives them; `length()` is ||u||. All broadcast to the shape of a."""
    noise = None
    if p.read_noise:
        noise = p.read_noise * length() * torch.randn_like(a)
    if p.output_noise:
        of_sums = p.output_noise * largest * torch.randn_like(a)
        noise = of_sums if noise is None else noise + of_sums
    if noise is not None:
        a = a + (scale * noise).detach()
    if p.adc_bits is None:
        return a
    bound = (p.adc_range * scale * largest).clamp_min(torch.finfo(a.dtype).tiny)
    digital = rounded((a.detach() / bound).clamp(-1.0, 1.0), p.adc_bits) * bound
    return straight_through(a, digital)


def read(g: Tensor, u: Tensor, scale: Tensor, p: DeviceProfile) -> Tensor:
    """g (R, D) or (B, R, D) times u (B, D): (B, R); scale (R,), the largest weight of each row."""
    if not reads(p):
        return _product(g, u)
    largest = u.detach().abs().amax(-1, keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
    u = converted(u, largest, p)
    return sums(_product(g, u), scale, largest, lambda: u.detach().norm(dim=-1, keepdim=True), p)


def _product(g: Tensor, u: Tensor) -> Tensor:
    return u @ g.t() if g.dim() == 2 else (g @ u.unsqueeze(-1)).squeeze(-1)
