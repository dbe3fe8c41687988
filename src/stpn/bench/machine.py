"""What a number was measured on: versions, threads, and the limits of the machine itself."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stpn


def median_seconds(
    run: Callable[[], object], repeats: int, warm_up: int = 1, at_least: float = 0.5
) -> float:
    """Median wall-clock time of a call, of so many calls and of so many seconds at least."""
    for _ in range(warm_up):
        run()
    times: list[float] = []
    while len(times) < repeats or sum(times) < at_least:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def describe() -> dict[str, Any]:
    """Versions, threads, processor, and the backends."""
    return {
        "stpn": stpn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "backends": [str(backend) for backend in stpn.backends()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def limits() -> dict[str, float]:
    """What the machine can do: float32 operations a second in a matrix product, which is a loop of
    fused multiply-adds on registers and cache, and bytes a second of a sum of two long vectors."""
    n = 1024
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    flops = 2 * n**3 / median_seconds(lambda: torch.mm(a, b, out=c), 7, 3)
    length = 2**25
    x, y, z = torch.zeros(length), torch.zeros(length), torch.empty(length)
    stream = 3 * 4 * length / median_seconds(lambda: torch.add(x, y, out=z), 7, 2)
    return {"flops": flops, "bytes": stream}
