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
from typing import get_args, get_type_hints

import torch
from torch import Tensor

from stpn import _native

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

    def put(self, call: _native.Call, tensor: Tensor, shape: Shape, kept: list[Tensor]) -> None:
        tensor = _resolved(tensor).contiguous()
        kept.append(tensor)
        setattr(call, self.field, tensor.data_ptr())


class Sequence(Operand):
    """An array (B, T, ...), which may have strides of its own."""

    def put(self, call: _native.Call, tensor: Tensor, shape: Shape, kept: list[Tensor]) -> None:
        tensor = _resolved(tensor)
        if len(shape) == 3:
            tensor = in_rows(tensor)
        kept.append(tensor)
        strides = tensor.stride()
        setattr(call, self.field, tensor.data_ptr())
        setattr(call, self.field + "_sb", strides[0])
        setattr(call, self.field + "_st", strides[1])


class Start(Operand):
    """An initial state. One zero that is expanded, as layers start with, is as good as none."""

    def put(self, call: _native.Call, tensor: Tensor, shape: Shape, kept: list[Tensor]) -> None:
        if any(tensor.stride()) or not tensor.numel() or not _is_zero(tensor):
            super().put(call, tensor, shape, kept)


class Rate(Operand):
    """lambda or gamma: per synapse (R, D), per row (R, 1) or one for all (1, 1)."""

    def fits(self, actual: Shape, expected: Shape) -> bool:
        return actual == expected or actual in ((expected[0], 1), (1, 1))

    def put(self, call: _native.Call, tensor: Tensor, shape: Shape, kept: list[Tensor]) -> None:
        super().put(call, tensor, shape, kept)
        # By shape, not by stride: the stride of a dimension of size 1 says nothing.
        actual = tensor.shape
        row, column = (shape[1], 1) if actual == shape else (0 if actual[0] == 1 else 1, 0)
        stem = self.field.rstrip("_")
        setattr(call, stem + "_sr", row)
        setattr(call, stem + "_sc", column)


def operands(described: type) -> tuple[Operand, ...]:
    """The tensors of a described named tuple, in order."""
    found = []
    for name, hint in get_type_hints(described, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            optional = type(None) in get_args(hint.__origin__)
            field = note.field or name
            found.append(replace(note, name=name, field=field, optional=optional))
    return tuple(found)


def schema(described: type) -> dict[str, str]:
    """The type of every field, as torch writes it in the schema of an operator."""
    types = {operand.name: f"Tensor{'?' * operand.optional}" for operand in operands(described)}
    for name, hint in get_type_hints(described).items():
        types.setdefault(name, getattr(hint, "__name__", ""))
    return types


def shapes(described: Iterable[Operand], sizes: dict[str, int]) -> tuple[Shape, ...]:
    return tuple(tuple(sizes[letter] for letter in operand.sizes.split()) for operand in described)


def new_call(cell: int, norm: int, dtype: torch.dtype, work: int) -> _native.Call:
    """`work`: synapses times steps."""
    call = _native.Call()
    call.cell, call.norm, call.is_double = cell, norm, dtype == torch.float64
    call.threads = torch.get_num_threads() if work >= _WORTH_A_TEAM else 1
    call.segment_bytes = SEGMENT_BYTES
    return call


def fill(
    call: _native.Call,
    described: Iterable[Operand],
    tensors: Iterable[Tensor | None],
    shapes: Iterable[Shape],
    dtype: torch.dtype,
) -> list[Tensor]:
    """Check the tensors and give the call their addresses; returns what must outlive the call."""
    kept: list[Tensor] = []
    for operand, tensor, shape in zip(described, tensors, shapes, strict=False):
        if tensor is not None:
            operand.check(tensor, shape, dtype)
            operand.put(call, tensor, shape, kept)
        elif not operand.optional:
            present(operand.name, tensor)
    return kept


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


def _is_zero(tensor: Tensor) -> bool:
    return _native.is_zero(tensor.data_ptr(), tensor.dtype == torch.float64)


def _resolved(tensor: Tensor) -> Tensor:
    """Memory that holds the values themselves, not what is still to be negated."""
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def _allocated(tensor: Tensor) -> bool:
    """Whether the storage reaches as far as the tensor does."""
    size = tensor.itemsize
    reach = tensor.nbytes
    if not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        reach = size * (1 + sum((n - 1) * stride for n, stride in steps)) if reach else 0
    return bool(tensor.storage_offset() * size + reach <= tensor.untyped_storage().nbytes())
