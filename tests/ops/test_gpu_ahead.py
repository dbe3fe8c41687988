"""Every GPU kernel compiles for real targets, and takes no more of a GPU than it has."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import torch
from parity import Shape, make_case
from torch import Tensor

pytest.importorskip("triton", minversion="3.4", reason="stpn-torch[gpu] is not installed")

import triton
from triton.backends.compiler import GPUTarget

from stpn import ops
from stpn.ops.fast_weights import triton as fast_weights
from stpn.ops.gpu import ahead, launch
from stpn.ops.modplast import triton as modplast
from stpn.ops.stpn import triton as stpn

pytestmark = [
    pytest.mark.skipif(triton.knobs.runtime.interpret, reason="Triton interprets"),
    pytest.mark.filterwarnings("ignore::UserWarning:triton"),
]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
}
SHARED = 48 * 1024  # bytes that every GPU gives a program without being asked
REGISTERS = 64 * 1024  # of an SM
A_FEW, MANY = 64, 1024  # bytes a thread; many: of tiles that fill all registers


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, tuple[Any, Any, int]]:
    """What would have been launched: the kernel, its arguments and warps, by its name."""
    found: dict[str, tuple[Any, Any, int]] = {}

    def record(kernel: Any, grid: Any, arguments: dict[str, Any], warps: int) -> None:
        found.setdefault(kernel.__name__, (kernel, arguments, warps))

    monkeypatch.setattr(launch, "start", record)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return found


def assert_fits(
    launches: dict[str, tuple[Any, Any, int]], names: set[str], target: str, spilt: int
) -> None:
    assert launches.keys() == names
    for name, (kernel, arguments, warps) in launches.items():
        used = ahead.resources(kernel, arguments, warps, TARGETS[target])
        assert used.threads <= 1024, name
        assert used.registers * used.threads <= REGISTERS * (2 if target == "gfx90a" else 1), name
        assert used.shared <= SHARED, (name, used)
        assert used.spilt <= spilt, (name, used)


ON_CHIP, IN_MEMORY = {"forward", "backward"}, {"step", "replay", "sweep"}


STPN = [
    ("f", Shape(2, 5, 100, 27), ON_CHIP, "sm_80", 0),
    ("r", Shape(2, 5, 37, 11), ON_CHIP, "sm_80", 0),
    ("r", Shape(2, 5, 37, 11), ON_CHIP, "sm_90", 0),
    ("r", Shape(2, 5, 37, 11), ON_CHIP, "gfx90a", 0),
    ("l", Shape(2, 5, 37, 6), ON_CHIP, "sm_80", 0),
    ("r", Shape(2, 5, 17, 55), ON_CHIP, "sm_80", MANY),
    ("r", Shape(2, 5, 2592, 64), IN_MEMORY, "sm_80", 0),
    ("r", Shape(2, 5, 2592, 64), IN_MEMORY, "sm_90", 0),
    ("r", Shape(2, 5, 2592, 64), IN_MEMORY, "gfx90a", 0),
    ("l", Shape(2, 5, 600, 64), IN_MEMORY, "sm_80", 0),
]
BASELINES = [(name, target) for name in ("modplast", "fast weights") for target in TARGETS]


def run_stpn(kind: str, shape: Shape) -> None:
    make_case(kind, shape, norm="post", clamp=0.5, masks="both").run(stpn, torch.float32)


def run_baseline(name: str, hidden: int) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    p, h0, state = draw(2, 5, hidden), draw(2, hidden), draw(2, hidden, hidden)
    square, vector, fixed = draw(hidden, hidden), draw(hidden), {"power_weight": torch.rand(hidden)}
    if name == "modplast":
        y, _, power = modplast.modplast(p, h0, state, square, square, vector, draw(), None, **fixed)
    else:
        y, _, power = fast_weights.fast_weights(p, h0, state, square, vector, vector, **fixed)
    (y.sum() + power.sum()).backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "names", "target", "spilt"),
    STPN,
    # In one order in every process: the workers of a test run must agree on names.
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_stpn(
    launches: Any, kind: str, shape: Shape, names: set[str], target: str, spilt: int
) -> None:
    run_stpn(kind, shape)
    assert_fits(launches, names, target, spilt)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), BASELINES)
def test_baselines(launches: Any, name: str, target: str) -> None:
    run_baseline(name, 55)
    assert_fits(launches, ON_CHIP, target, A_FEW)


def test_no_kernel_is_missing(launches: Any) -> None:
    """What has a place in a grid is launched; the others are parts of those."""
    there = set()
    for module in pkgutil.walk_packages(ops.__path__, "stpn.ops."):
        if "triton" in module.name or ".gpu." in module.name:
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, triton.JITFunction) and "tl.program_id" in value.src:
                    there.add((value.fn.__module__, value.__name__))
    assert len(there) == 9
    compiled: dict[str, set[tuple[str, str]]] = {target: set() for target in TARGETS}

    def note(target: str) -> None:
        compiled[target] |= {(k.fn.__module__, k.__name__) for k, _, _ in launches.values()}
        launches.clear()

    for kind, shape, _, target, _ in STPN:
        run_stpn(kind, shape)
        note(target)
    for name, target in BASELINES:
        run_baseline(name, 5)
        note(target)
    assert compiled == dict.fromkeys(TARGETS, there)
