"""What hosts of the kernels share: arguments by name, padded rows, partial sums."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from stpn.ops.gpu import plan


def padded(size: int) -> int:
    """Columns in whole vectors of four."""
    return size + -size % 4


def in_rows(tensor: Tensor) -> Tensor:
    """The same values contiguous, rows padded to whole vectors of four."""
    return functional.pad(tensor, (0, -tensor.shape[-1] % 4)).contiguous()


def in_steps(x: Tensor) -> Tensor:
    """x (B, T, ...) as kernels go through it: columns side by side, and the distance of any step
    from the first one in 32 bits, as which they compute it. That from one sequence to the next has
    64."""
    near = abs(x.stride(1)) * x.shape[1] < 2**31
    return x if x.stride(-1) == 1 and near else x.contiguous()


def contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def launch(
    kernel: Any, grid: tuple[int, ...], tile: plan.Tile, *arguments: dict[str, Any], **own: Any
) -> None:
    """Run `kernel` with those of the arguments that it has; the later ones count."""
    named = dict(own)
    for group in reversed(arguments):
        named = group | named
    if math.prod(grid) and not any(map(without_memory, named.values())):
        start(kernel, grid, {name: named[name] for name in kernel.arg_names}, tile.warps)


def start(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], warps: int) -> None:
    """`warps` are of 32 threads."""
    lanes = 64 if torch.version.hip else 32
    kernel[grid](**arguments, num_warps=max(1, warps * 32 // lanes), num_stages=1)


def without_memory(value: Any) -> bool:
    """Whether it is a tensor that has a shape alone, as whoever traces a call gives it."""
    return isinstance(value, FakeTensor) or (isinstance(value, Tensor) and value.is_meta)


def check(like: Tensor, **operands: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Shape, dtype and device of each operand: a kernel would read another one beyond its end."""
    for name, (tensor, shape) in operands.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
        dtype = _DTYPES.get(name, torch.float32)
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: expected dtype {dtype}, got {tensor.dtype}")
        if tensor.device != like.device:
            raise ValueError(f"{name}: expected a tensor on {like.device}, got {tensor.device}")


def check_sequence(name: str, x: Tensor) -> None:
    if x.dim() != 3 or 0 in x.shape[1:]:
        raise ValueError(f"{name}: expected shape (B, T, ...) with T > 0, got {tuple(x.shape)}")
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"{name}: expected float32 or bfloat16, got {x.dtype}")


_DTYPES = {"reset": torch.bool, "lengths": torch.int64}


def inside(lengths: Tensor | None, steps: int) -> Tensor | None:
    """No kernel goes beyond the end, whatever the lengths are."""
    return None if lengths is None else lengths.clamp(1, steps)


class Sequence:
    """A call of a recurrence whose synapses are (H, H): its sizes, and arguments of its kernels."""

    def __init__(
        self, p: Tensor, h0: Tensor, f0: Tensor, reset: Tensor | None, lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> None:  # fmt: skip
        check_sequence("p", p)
        tile = plan.square(p.shape[2])
        if tile is None:
            raise ValueError(f"p: expected at most 128 units, got {p.shape[2]}")
        self.tile = tile
        self.batch, self.steps, self.hidden = p.shape
        check(
            p, h0=(h0, (self.batch, self.hidden)),
            state=(f0, (self.batch, self.hidden, self.hidden)),
            reset=(reset, (self.batch, self.steps)), lengths=(lengths, (self.batch,)),
            power_weight=(power_weight, (self.hidden,)),
        )  # fmt: skip
        self.padded = padded(self.hidden)
        self.every = plan.segment_length(self.steps)
        self.lengths, self.device = lengths, p.device
        p = in_steps(p)
        self.arguments: dict[str, Any] = {
            "p": p, "p_sb": p.stride(0), "p_st": p.stride(1),
            "h0": h0, "h_sb": h0.stride(0), "h_sk": h0.stride(1),
            "f0": f0, "f_sb": f0.stride(0), "f_sr": f0.stride(1), "f_sd": f0.stride(2),
            "reset": mask(reset), "lengths": inside(lengths, self.steps),
            "power_weight": contiguous(power_weight),
            "B": self.batch, "T": self.steps, "every": self.every,
            "H": self.hidden, "HP": self.padded, "HB": tile.columns,
        }  # fmt: skip

    def new(self, *shape: int, zero: bool = False) -> Tensor:
        make = torch.zeros if zero else torch.empty
        return make(shape, dtype=torch.float32, device=self.device)

    def new_checkpoints(self) -> Tensor:
        return self.new(self.batch, math.ceil(self.steps / self.every), self.hidden, self.padded)

    def given(self, dy: Tensor | None, df_T: Tensor | None, dpower: Tensor | None) -> Any:
        """Gradients of the results, as the kernels take them."""
        final = None if df_T is None else in_rows(df_T)
        return {"dy": contiguous(dy), "df_T": final, "dpower": contiguous(dpower)}

    def summed(self, partial: Tensor) -> Tensor:
        """Partial sums (P, H, HP) to (H, H)."""
        return partial.sum(0)[:, : self.hidden]


def mask(reset: Tensor | None) -> Tensor | None:
    return None if reset is None else reset.contiguous().view(torch.uint8)
