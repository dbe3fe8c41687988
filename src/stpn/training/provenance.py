"""Where a number comes from: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import stpn


def collect() -> dict[str, Any]:
    """As it stands in summaries."""
    return {"versions": versions(), "machine": machine(), "commit": commit()}


def versions() -> dict[str, str]:
    found = {"stpn": stpn.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "safetensors"):
        found[package] = metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """The commit of the source tree this package runs from, with + if it was changed since."""
    source = Path(stpn.__file__).resolve().parent
    try:
        head = _git(source, "rev-parse", "HEAD")
        changed = _git(source, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(directory: Path, *arguments: str) -> str:
    # an installed package may lie inside some other repository: only our own source tree counts
    if directory.parent.name != "src":
        raise FileNotFoundError(directory)
    command = ["git", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
