"""What goes into a kernel: one `Call` with sizes, options and addresses, all checked here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stpn import _native

PLAIN, LSTM, MODPLAST, FAST_WEIGHTS = range(4)

# Below this many synapse steps a second thread costs more than it brings.
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


def in_rows(tensor: Tensor) -> Tensor:
    """The same values with a contiguous last dimension."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def check(like: Tensor, **operands: tuple[Tensor | None, Sequence[int]]) -> None:
    """Shape and dtype of each operand: the kernels would read another one beyond its end."""
    for name, (tensor, shape) in operands.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
        if tensor.dtype != like.dtype:
            raise TypeError(f"{name}: expected dtype {like.dtype}, got {tensor.dtype}")
        if not tensor.is_cpu:
            raise ValueError(f"{name}: expected a tensor on the CPU, got one on {tensor.device}")


def check_sequence(name: str, x: Tensor, reset: Tensor | None, lengths: Tensor | None) -> None:
    """The input (B, T, ...) and the masks that belong to it."""
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"{name}: expected shape (B, T, ...) with T > 0, got {tuple(x.shape)}")
    if reset is not None:
        if reset.dtype != torch.bool:
            raise TypeError(f"reset: expected dtype torch.bool, got {reset.dtype}")
        check(reset, reset=(reset, x.shape[:2]))
    if lengths is not None:
        if lengths.dtype != torch.int64:
            raise TypeError(f"lengths: expected dtype torch.int64, got {lengths.dtype}")
        check(lengths, lengths=(lengths, x.shape[:1]))
        if lengths.numel() and (lengths.min() < 1 or lengths.max() > x.shape[1]):
            raise ValueError(f"lengths: expected 1 to {x.shape[1]}, got {lengths.tolist()}")


def _expanded_zero(tensor: Tensor) -> bool:
    """One zero, expanded to the shape of a state."""
    if any(tensor.stride()) or not tensor.numel():
        return False
    return _native.is_zero(tensor.data_ptr(), tensor.dtype == torch.float64)


class Operands:
    """Fills a Call, and keeps what it points to alive."""

    def __init__(self, cell: int, like: Tensor, work: int) -> None:
        self.call = _native.Call()
        self.call.cell = cell
        self.call.is_double = like.dtype == torch.float64
        threads = torch.get_num_threads()
        self.call.threads = threads if work >= _WORTH_A_TEAM else 1
        self.call.segment_bytes = SEGMENT_BYTES
        self._alive: list[Tensor] = []

    def put(self, **tensors: Tensor | None) -> None:
        """Contiguous arrays; None stays 0."""
        for name, tensor in tensors.items():
            if tensor is not None:
                tensor = tensor.contiguous()
                self._alive.append(tensor)
                setattr(self.call, name, tensor.data_ptr())
                if name == "saved":
                    self.call.saved_size = tensor.shape[-1]

    def put_start(self, **tensors: Tensor | None) -> None:
        """Initial states; a zero that is expanded, as the layers start with, stays 0, too."""
        self.put(**{n: t for n, t in tensors.items() if t is None or not _expanded_zero(t)})

    def put_sequence(self, name: str, tensor: Tensor | None) -> None:
        """An array (B, T, ...) with strides of its own."""
        if tensor is None:
            return
        if tensor.dim() == 3:
            tensor = in_rows(tensor)
        self._alive.append(tensor)
        setattr(self.call, name, tensor.data_ptr())
        setattr(self.call, name + "_sb", tensor.stride(0))
        setattr(self.call, name + "_st", tensor.stride(1))

    def put_rate(self, name: str, tensor: Tensor, rows: int, columns: int) -> None:
        """lambda or gamma: per synapse, per row or for all."""
        tensor = tensor.contiguous()
        # By shape, not by stride: the stride of a dimension of size 1 says nothing.
        per_synapse = tuple(tensor.shape) == (rows, columns)
        row, column = (columns, 1) if per_synapse else (0 if tensor.shape[0] == 1 else 1, 0)
        self._alive.append(tensor)
        setattr(self.call, name, tensor.data_ptr())
        stem = name.rstrip("_")
        setattr(self.call, stem + "_sr", row)
        setattr(self.call, stem + "_sc", column)


def new_records(like: Tensor, batch: int, steps: int, size: int) -> Tensor:
    """Room for what a backward pass needs of each step: `Call.saved` in csrc/call.h."""
    return like.new_empty(1 + batch * steps, size)


def always_power(like: Tensor, gated: bool) -> bool:
    """Kernels that exist only with power (csrc/kernels.cpp, kEveryPlan) also save what it needs."""
    return gated or like.dtype == torch.float64


def run_forward(operands: Operands) -> None:
    _native.forward(operands.call)


def run_backward(operands: Operands) -> None:
    _native.backward(operands.call)


def given(tensor: Tensor) -> Tensor | None:
    """An operator returns an empty tensor where it has nothing to return."""
    return tensor if tensor.numel() else None
