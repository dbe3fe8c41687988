"""Operands of a recurrence: described once, checked, and put into a kernel's `Call`.

A recurrence describes what it takes, and what it gives, as a named tuple:

    class Inputs(NamedTuple):
        x: Annotated[Tensor, Sequence("B T I")]
        bias: Annotated[Tensor | None, Operand("R")]
        lengths: Annotated[Tensor | None, Operand("B", dtype=torch.int64, differentiable=False)]
        clamp: float

The letters are sizes, as in the specification. What may be None is optional. Fields that are not
tensors are options, and come last.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import torch
from torch import Tensor

from stpn import _native
from stpn._native import Layout

FLOATS = (torch.float32, torch.float64)

Shape = tuple[int, ...]

# With less work than this, in synapse steps, a second thread does not pay.
_WORTH_A_TEAM = 30_000

# The backward pass works in segments that should stay in the second-level cache.
SEGMENT_BYTES = 384 * 1024


def share_threads() -> None:
    """Let the kernels run on the threads of torch's OpenMP runtime, if it is found.

    A pool of their own would compete with torch's, whose threads stay awake for a while after
    each operation. Without it each call starts plain threads.
    """
    loaded = ctypes.RTLD_GLOBAL | getattr(os, "RTLD_NOLOAD", 0)
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            runtime = ctypes.CDLL(str(path), mode=loaded)
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
            functions = (ctypes.cast(getattr(runtime, n), ctypes.c_void_p) for n in names)
            addresses = [function.value or 0 for function in functions]
        except (OSError, AttributeError):
            continue
        _native.use_openmp(*addresses)
        return


share_threads()


@dataclass(frozen=True)
class Operand:
    """A tensor that a kernel reads or writes as one block of memory."""

    sizes: str
    """Of its dimensions, by name: "B H"; "" for a single number."""
    differentiable: bool = True
    dtype: torch.dtype | None = None
    """None: float32 or float64, the same for all."""
    field: str = ""
    """Of the call; "": the operand's name."""
    name: str = ""
    optional: bool = False
    layout: ClassVar[int] = Layout.block

    def check(self, tensor: Tensor, shape: Shape, dtype: torch.dtype) -> None:
        """A kernel takes an address: whatever else it assumes of a tensor is asked here."""
        if not self.fits(tensor.shape, shape):
            raise ValueError(
                f"{self.name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}"
            )
        if tensor.dtype is not (self.dtype or dtype):
            expected = self.dtype or dtype
            raise TypeError(f"{self.name}: expected dtype {expected}, got {tensor.dtype}")
        if not tensor.is_cpu:
            raise ValueError(
                f"{self.name}: expected a tensor on the CPU, got one on {tensor.device}"
            )
        if tensor.layout is not torch.strided:
            raise TypeError(f"{self.name}: expected a dense tensor, got layout {tensor.layout}")
        if not _allocated(tensor):
            raise ValueError(
                f"{self.name}: expected a tensor with all its memory, got one whose storage was "
                "freed or shrunk"
            )

    def fits(self, actual: Shape, expected: Shape) -> bool:
        return actual == expected


class Sequence(Operand):
    """An array (B, T, ...), which may have strides of its own."""

    layout = Layout.sequence


class Start(Operand):
    """An initial state. One zero that is expanded, as layers start with, is as good as none."""

    layout = Layout.start


class Rate(Operand):
    """lambda or gamma: per synapse (R, D), per row (R, 1) or one for all (1, 1)."""

    layout = Layout.rate

    def fits(self, actual: Shape, expected: Shape) -> bool:
        return actual == expected or actual in ((expected[0], 1), (1, 1))


class Operands(tuple[Operand, ...]):
    """The tensors of a call, in order, and their places in it."""

    def __init__(self, operands: Iterable[Operand]) -> None:
        self._table = _native.Table(torch.strided)
        for operand in self:
            self._table.add(operand.field, operand.layout, operand.optional, operand.dtype)

    @classmethod
    def of(cls, described: type) -> Operands:
        """Those of a named tuple."""
        found = []
        for name, hint in get_type_hints(described, include_extras=True).items():
            for note in getattr(hint, "__metadata__", ()):
                optional = type(None) in get_args(hint.__origin__)
                found.append(replace(note, name=name, field=note.field or name, optional=optional))
        return cls(found)

    def shapes(self, sizes: dict[str, int]) -> tuple[Shape, ...]:
        return tuple(tuple(sizes[letter] for letter in operand.sizes.split()) for operand in self)

    def fill(
        self,
        call: _native.Call,
        tensors: tuple[Any, ...],
        shapes: tuple[Shape, ...],
        dtype: torch.dtype,
    ) -> list[Tensor] | None:
        """Check the tensors and tell the call where they are.

        Returns copies that must outlive the call, of tensors that lie otherwise in memory than a
        kernel wants them.
        """
        copies = self._table.fill(call, tensors, shapes, dtype)
        if isinstance(copies, int):
            operand, tensor = self[copies], tensors[copies]
            operand.check(present(operand.name, tensor), shapes[copies], dtype)
            raise RuntimeError(f"{operand.name}: the kernels do not take this tensor")
        return copies


def schema(described: type) -> dict[str, str]:
    """The type of every field, as torch writes it in the schema of an operator."""
    types = {o.name: f"Tensor{'?' * o.optional}" for o in Operands.of(described)}
    for name, hint in get_type_hints(described).items():
        types.setdefault(name, getattr(hint, "__name__", ""))
    return types


def new_call(cell: int, norm: int, dtype: torch.dtype, work: int) -> _native.Call:
    """`work`: synapses times steps."""
    call = _native.Call()
    call.cell, call.norm, call.is_double = cell, norm, dtype == torch.float64
    call.threads = torch.get_num_threads() if work >= _WORTH_A_TEAM else 1
    call.segment_bytes = SEGMENT_BYTES
    return call


def present(name: str, tensor: Tensor | None) -> Tensor:
    """torch takes None for any tensor of an operator."""
    if tensor is None:
        raise TypeError(f"{name}: expected a Tensor, got None")
    return tensor


def float_dtype(name: str, tensor: Tensor) -> torch.dtype:
    """The dtype of a call is that of its first operand."""
    if present(name, tensor).dtype not in FLOATS:
        raise TypeError(
            f"{name}: expected dtype torch.float32 or torch.float64, got {tensor.dtype}"
        )
    return tensor.dtype


def sequence_sizes(name: str, tensor: Tensor) -> tuple[int, int, int]:
    """Of an input (B, T, features)."""
    if tensor.dim() != 3 or tensor.shape[1] == 0:
        raise ValueError(
            f"{name}: expected shape (B, T, ...) with T > 0, got {tuple(tensor.shape)}"
        )
    batch, steps, features = tensor.shape
    return batch, steps, features


def last_size(name: str, tensor: Tensor) -> int:
    """Of a state (B, H)."""
    if present(name, tensor).dim() != 2:
        raise ValueError(f"{name}: expected shape (B, H), got {tuple(tensor.shape)}")
    return tensor.shape[1]


def in_rows(tensor: Tensor) -> Tensor:
    """The same values with a contiguous last dimension."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _allocated(tensor: Tensor) -> bool:
    """Whether the storage reaches as far as the tensor does."""
    size = tensor.itemsize
    reach = tensor.nbytes
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        reach = size * (1 + sum((n - 1) * stride for n, stride in steps)) if reach else 0
    return bool(tensor.storage_offset() * size + reach <= tensor.untyped_storage().nbytes())
