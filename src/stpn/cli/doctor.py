"""`stpn doctor`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

import stpn
from stpn.bench.machine import describe, median_seconds
from stpn.ops import backends as dispatch
from stpn.ops import check
from stpn.ops.registry import Backend

# Batch, steps, inputs, hidden: associative retrieval, and an agent's minibatch in the maze.
SPEED_CASES = {"associative retrieval": (128, 9, 37, 11), "maze": (64, 30, 17, 55)}


@dataclass(frozen=True)
class Doctor:
    """What this machine has, what will run where, and whether it is right.

    Checks every backend against the specification and times a short comparison, in seconds. The
    exit code is 1 if a backend is wrong.
    """

    speed: bool = True
    """Time the backends, too."""
    on_request: bool = False
    """Check and time also what runs here on request alone: `compiled` on the CPU, beside the plain
    loop (minutes, most of them compiling)."""
    json: bool = False
    """Print JSON and nothing else."""


@dataclass(frozen=True)
class Parity:
    """Whether a recurrence of a backend equals the specification; `detail` says by how much."""

    backend: str
    recurrence: str
    right: bool
    detail: str


@dataclass(frozen=True)
class Speed:
    """Seconds of a forward and a backward pass, by backend."""

    case: str
    seconds: dict[str, float]


def run(arguments: list[str]) -> int:
    options = tyro.cli(Doctor, args=arguments, prog="stpn doctor")
    machine = describe_machine()
    usable = [
        backend
        for backend in stpn.backends()
        if backend.usable and (options.on_request or backend.device not in backend.on_request)
    ]
    parity = [found for backend in usable for found in parity_of(backend)]
    wrong = {found.backend for found in parity if not found.right}
    speed = []
    if options.speed:
        right = [b for b in usable if b.name not in wrong and "stpn" in b.recurrences]
        speed = [speed_of(case, right) for case in SPEED_CASES]
    advice = advise(machine, parity, speed)
    if options.json:
        content = {"parity": [asdict(p) for p in parity], "speed": [asdict(s) for s in speed]}
        print(json.dumps({"machine": machine, **content, "advice": advice}, indent=1))
    else:
        _print(machine, parity, speed, advice)
    return 1 if wrong else 0


def describe_machine() -> dict[str, Any]:
    found = describe()
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return found | {"compiler": compiler, "gpus": gpus, "triton": _version("triton")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parity_of(backend: Backend) -> list[Parity]:
    """Every recurrence that it has; the specification is right by definition."""
    if backend.name == "reference":
        return []
    found = []
    for recurrence in check.RECURRENCES:
        if recurrence not in backend.recurrences:
            continue
        try:
            with stpn.use_backend(backend.name):
                finding = check.check(recurrence, getattr(dispatch, recurrence), backend.device)
        except Exception as error:  # whatever a backend does, the others are to be looked at
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            found.append(Parity(backend.name, recurrence, False, text))
        else:
            found.append(Parity(backend.name, recurrence, finding.right, str(finding)))
    return found


def speed_of(case: str, usable: list[Backend]) -> Speed:
    batch, steps, inputs, hidden = SPEED_CASES[case]
    seconds = {}
    for backend in usable:
        layer = stpn.STPNr(inputs, hidden, batch_first=True, device=backend.device)
        x = torch.randn(batch, steps, inputs, device=backend.device)

        def once(layer: Any = layer, x: Any = x) -> None:
            layer.zero_grad()
            layer(x)[0].sum().backward()
            if x.is_cuda:
                torch.cuda.synchronize()

        with stpn.use_backend(backend.name):
            seconds[backend.name] = median_seconds(once, repeats=3, at_least=0.2)
    return Speed(case, seconds)


def advise(machine: dict[str, Any], parity: list[Parity], speed: list[Speed]) -> list[str]:
    """What to do, the gravest first."""
    advice = []
    unusable = {backend.name: backend.unusable() for backend in stpn.backends()}
    for name in dict.fromkeys(found.backend for found in parity if not found.right):
        advice.append(
            f"Set STPN_BACKEND=reference where {name} would run: it is wrong on this machine. "
            "Please report it, with the output of `stpn doctor --json`."
        )
    if unusable["native"] is not None:
        what = "" if machine["compiler"] else "Install a C++ compiler. "
        advice.append(f"{what}Install stpn-torch again: the CPU runs on plain PyTorch, slowly.")
    if machine["gpus"] and machine["triton"] is None:
        advice.append("Install stpn-torch[gpu]: the GPU runs on plain PyTorch, slowly.")
    if not machine["gpus"] and shutil.which("nvidia-smi"):
        advice.append("Install a PyTorch with CUDA: this one sees no GPU, though a driver is here.")
    if torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        advice.append(
            f"Let PyTorch have more than one of {os.cpu_count()} processors (OMP_NUM_THREADS)."
        )
    for timed in speed:
        for name, seconds in timed.seconds.items():
            if seconds > timed.seconds["reference"]:
                advice.append(
                    f"{timed.case}: {name} is slower here than plain PyTorch. If the machine was "
                    "not busy, please report it."
                )
    return advice or ["Nothing: all that can run here does, and it is right."]


def _print(
    machine: dict[str, Any], parity: list[Parity], speed: list[Speed], advice: list[str]
) -> None:
    console = Console(width=None if Console().is_terminal else 110)
    console.print("[bold]This machine[/bold]")
    for key, value in machine.items():
        if key != "backends":
            shown = ", ".join(value) if isinstance(value, list) else value
            console.print(f"  {key:<10} {shown or 'none'}", highlight=False)
    console.print("[bold]Backends[/bold], tried in this order")
    for line in machine["backends"]:
        console.print(f"  {line}", highlight=False, markup=False)
    if parity:
        table = Table("backend", "recurrence", "", "beside the specification")
        for found in parity:
            verdict = "[green]right[/green]" if found.right else "[red]WRONG[/red]"
            table.add_row(found.backend, found.recurrence, verdict, found.detail)
        console.print(table)
    if speed:
        names = list(speed[0].seconds)
        table = Table("forward and backward, ms", *names)
        for timed in speed:
            table.add_row(timed.case, *(f"{1e3 * timed.seconds[name]:.3g}" for name in names))
        console.print(table)
    console.print("[bold]What to do[/bold]")
    for line in advice:
        console.print(f"  {line}", highlight=False, markup=False)
