"""What a figure was measured on: versions, threads, and the limits of the machine itself."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
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


def medians_in_turns(
    runs: Mapping[str, Callable[[], object]], turns: int, at_least: float = 0.2
) -> dict[str, float]:
    """Median wall-clock time of a call of each, over so many turns of so many seconds at least.

    They take turns because a machine's speed drifts, and their ratios should not drift with it.
    """
    warm_up = {name: median_seconds(run, 1, 1, 0) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            quick = warm_up[name] < 1  # then one call more, to find caches as it left them
            times[name].append(median_seconds(run, 1, int(quick), at_least))
    return {name: statistics.median(medians) for name, medians in times.items()}


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
