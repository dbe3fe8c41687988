"""Kernels compiled ahead of time, without a GPU, and what they take of one.

usage = resources(kernel, arguments, warps, GPUTarget("cuda", 80, 32))
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int64: "*i64",
}  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """Of one thread: registers and bytes spilt; of one program: bytes of shared memory."""

    registers: int
    spilt: int
    shared: int
    threads: int


def resources(kernel: Any, arguments: dict[str, Any], warps: int, target: GPUTarget) -> Resources:
    """Compile a call of `kernel` with these arguments, by name, for `target`.

    `warps` are of 32 threads, as in `launch.start`.
    """
    options = {"num_warps": max(1, warps * 32 // target.warp_size), "num_stages": 1}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or one:  # as a launch does
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, Tensor):
            signature[parameter.name] = _POINTERS[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]  # as torch's allocator gives
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=options)
    shared, threads = compiled.metadata.shared, options["num_warps"] * target.warp_size
    if target.backend == "cuda":
        registers, spilt = _of_cubin(compiled.asm["cubin"])
    else:
        registers, spilt = _of_amdgcn(compiled.asm["amdgcn"])
    return Resources(registers, spilt, shared, threads)


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        text = subprocess.run(
            [tool, "-res-usage", file], check=True, capture_output=True, text=True
        ).stdout
    return _number(r"REG:(\d+)", text), _number(r"(?:STACK|LOCAL):(\d+)", text)


def _of_amdgcn(text: str) -> tuple[int, int]:
    return _number(r"\.vgpr_count:\s+(\d+)", text), 4 * _number(
        r"\.vgpr_spill_count:\s+(\d+)", text
    )


def _number(pattern: str, text: str) -> int:
    """The largest that is found."""
    return max(map(int, re.findall(pattern, text)))
