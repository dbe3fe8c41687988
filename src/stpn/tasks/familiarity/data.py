"""Continual familiarity: at each step, has this vector been seen R steps ago?

A stream of random vectors of -1 and +1. At each step a coin falls: with probability p, and if the
vector R steps ago was itself new, that vector comes again (label 1), else a new one (label 0).

>>> x, labels = sequence(5000, 100, distance=3, probability=0.5, seed=0)
>>> x.shape, labels.shape
(torch.Size([5000, 100]), torch.Size([5000]))
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# bits of a byte as -1 and +1, (256, 8): eight entries of a vector cost one random byte
_SIGNS = 2.0 * ((torch.arange(256)[:, None] >> torch.arange(8)) & 1) - 1.0


class Sequence(NamedTuple):
    """One stream of T vectors of d entries."""

    x: Tensor  # (T, d) float32, -1 or +1
    labels: Tensor  # (T,) float32, 1 where the vector is a repetition


def sequence(
    length: int = 5000,
    size: int = 100,
    distance: int = 3,
    probability: float = 0.5,
    *,
    seed: int | torch.Generator = 0,
) -> Sequence:
    """A stream of `length` vectors of `size` entries with repetitions after `distance` steps."""
    if length < 1 or size < 1 or distance < 1:
        raise ValueError(
            f"length, size and distance must be at least 1, not {length}, {size}, {distance}"
        )
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be between 0 and 1, not {probability}")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    coins = torch.rand(length, generator=generator) < probability  # (T,)
    fresh = _vectors(length, size, generator)  # (T, d)
    repeated = repetitions(coins, distance)
    source = torch.arange(length) - distance * repeated.long()
    return Sequence(fresh[source], repeated.float())


def repetitions(coins: Tensor, distance: int) -> Tensor:
    """Which steps repeat, (T,) bool, given each step's coin (T,) bool; no loop over time.

    Steps a multiple of R apart form chains that do not touch each other. Along a chain a coin that
    says "repeat" is obeyed unless the step before was itself a repetition: in a run of such
    coins every other one is obeyed, beginning with the first. A chain's first step has nothing
    to repeat.
    """
    length = len(coins)
    chains = torch.nn.functional.pad(coins, (0, -length % distance)).view(-1, distance)  # (K, R)
    chains = chains.clone()
    chains[0] = False
    place = torch.arange(len(chains))[:, None]
    last_refusal = torch.where(chains, 0, place).cummax(dim=0).values  # (K, R)
    odd = (place - last_refusal) % 2 == 1
    return (chains & odd).view(-1)[:length]


def _vectors(count: int, size: int, generator: torch.Generator) -> Tensor:
    width = -(-size // 8)
    bytes_ = torch.randint(256, (count * width,), generator=generator)
    return _SIGNS.index_select(0, bytes_).view(count, width * 8)[:, :size]
