"""One call of a layer, and the power that is read off it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stpn.nn.operations import Operations


@dataclass(frozen=True)
class Call:
    """One call of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    rng: Tensor | None
    """State of the random generator before the call, if it must be repeated."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


@dataclass(frozen=True)
class Reading:
    """The power of one part of a layer in one call."""

    part: str
    """"l0", "l0_reverse", ... as in the names of its parameters; "" where there is only one."""
    power: Tensor
    """(B, T), 0 past the ends."""
    operations: Operations
    """What each of these steps asks of hardware."""
    lengths: Tensor | None = None
    """(B,) of a packed sequence."""


def counted(like: Tensor, size: int, ignored: Sequence[int]) -> Tensor:
    """(size,): 1 for every input, 0 for those that cost nothing."""
    ones = like.new_ones(size)
    ones[list(ignored)] = 0
    return ones


def wide(value: Tensor) -> Tensor:
    """Sums over many synapses are not for 16 bits."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def padded(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A nested tensor, which PyTorch makes of masked sequences, as (B, T, I) and lengths (B,)."""
    if not x.is_nested:
        return x, None
    lengths = torch.tensor([len(sequence) for sequence in x.unbind()], device=x.device)
    return x.to_padded_tensor(0.0), lengths


def by_step(power: Tensor, batch_first: bool) -> Tensor:
    """(B, T) of a sequence; any other shape is one time step of many samples."""
    if power.dim() == 2:
        return power if batch_first else power.t()
    return power.reshape(-1, 1)
