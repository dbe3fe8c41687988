"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer, and under ThreadSanitizer.

They are built anew with the first two, and run in a process that has their runtime loaded first.
Arrays that a kernel keeps in its own memory are apart from each other there (csrc/lane.h, Arena).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stpn

ROOT = Path(__file__).parents[2]

# Every kind of cell, norm and dtype, with and without power, masks and a clamp, on sizes of which
# some fill whole vectors and most do not.
SCRIPT = """
import importlib.util, itertools, sys

spec = importlib.util.spec_from_file_location("stpn._native", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["stpn._native"] = module
spec.loader.exec_module(module)

import torch
import stpn
from stpn.ops import backends, operands
from stpn.ops.reference import STPNOptions

assert operands._native is module
operands._WORTH_A_TEAM = 0
stpn.use_backend("native")
torch.manual_seed(0)
calls = 0


def finish(outputs, leaves):
    outputs = [v for v in outputs if v is not None]
    assert all(v.isfinite().all() for v in outputs)
    gradients = torch.autograd.grad(sum(v.square().sum() for v in outputs), leaves)
    assert all(g.isfinite().all() for g in gradients)


for number, (shape, dtype, norm, masks) in enumerate(itertools.product(
    [(3, 4, 5, 3), (5, 1, 1, 1), (2, 7, 8, 8), (1, 30, 3, 1), (6, 2, 1, 17), (8, 9, 5, 3)],
    [torch.float32, torch.float64],
    [None, "pre", "post"],
    [False, True],
)):
    B, T, I, H = shape
    torch.set_num_threads(1 + number % 2)

    def of(*size):
        return (0.3 * torch.randn(size, dtype=dtype)).requires_grad_()

    def power(D):
        return torch.rand(D, dtype=dtype) if number % 3 else None

    reset = torch.rand(B, T) < 0.4 if masks else None
    # The last shape's sequences lie side by side, which they can only with equal lengths.
    lengths = torch.randint(1, T + 1, (B,)) if masks and B < 8 else None
    fixed = {"reset": reset, "lengths": lengths}
    for kind in "frl":
        R, D = (4 * H if kind == "l" else H), (I if kind == "f" else I + H)
        rate = [(R, D), (R, 1), (1, 1)][number % 3]
        options = STPNOptions(
            recurrent=kind != "f", norm=norm, clamp=0.2 if number % 2 else None,
            nonlinearity=("tanh", "sigmoid", "relu")[number % 3],
        )
        state = [of(B, H), *([of(B, H)] if kind == "l" else []), of(B, R, D)]
        leaves = [of(B, T, I), *state, of(R, D), of(R), of(*rate), of(*rate)]
        run = backends.stpn_lstm if kind == "l" else backends.stpn
        finish(run(*leaves, options=options, power_weight=power(D), **fixed), leaves)
        with torch.no_grad():
            run(*leaves, options=options, power_weight=power(D), **fixed)
            if kind != "l":
                x, *rest = leaves
                backends.stpn_step_(x[:, 0], *rest, options=options, power_weight=power(D))
        calls += 1
    if norm is None:
        rule = [of(H), of(), None] if number % 2 else [None, None, of()]
        inner = [of(B, T, H), of(B, H), of(B, H, H), of(H, H)]
        given = [*inner, of(H, H), *rule]
        finish(
            backends.modplast(*given, power_weight=power(H), **fixed),
            [v for v in given if v is not None],
        )
        given = [*inner, of(H), of(H)]
        finish(backends.fast_weights(*given, power_weight=power(H), **fixed), given)
        counted = torch.ones(I, dtype=dtype)
        static = of(B, T), of(B, T, I), of(H, I + 2)[:, :I]
        assert backends.plus_static_power(*static, counted, graph=False).isfinite().all()
        calls += 3
print("calls", calls)
"""


# Without the optimiser, which takes minutes over the checks.
FLAGS = (
    "-O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
)


def runtimes(*names: str) -> list[str]:
    """The sanitizers' libraries of the compiler, empty if it has none."""
    compiler = shutil.which("g++")
    if compiler is None:
        return []
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in names
    ]
    return found if all(Path(path).is_absolute() for path in found) else []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_access_out_of_bounds_and_no_undefined_behaviour(tmp_path: Path) -> None:
    # Those of this environment first, which is not on the path unless it was activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake, ninja = (shutil.which(name, path=path) for name in ("cmake", "ninja"))
    libraries = runtimes("libasan.so", "libubsan.so")
    if cmake is None or ninja is None or not libraries:
        pytest.skip("needs cmake, ninja and g++ with its sanitizers")
    pytest.importorskip("nanobind")
    build = [
        [cmake, "-G", "Ninja", "-S", ROOT, "-B", tmp_path, f"-DCMAKE_MAKE_PROGRAM={ninja}",
         f"-DPython_EXECUTABLE={sys.executable}",
         "-DCMAKE_CXX_COMPILER=g++", "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_FLAGS_DEBUG={FLAGS}",
         "-DSTPN_INSTRUCTION_SETS="],
        [cmake, "--build", tmp_path],
    ]  # fmt: skip
    for command in build:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    (module,) = tmp_path.glob("_native*.so")
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(Path(stpn.__file__).parents[1]),
        "OMP_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(module)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    report = (done.stdout + done.stderr)[-6000:]
    assert done.returncode == 0, report
    assert done.stdout.strip() == "calls 288", report


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_race_between_threads_and_callers(tmp_path: Path) -> None:
    """The kernels and their teams without Python, whose threads ThreadSanitizer does not know."""
    if not runtimes("libtsan.so"):
        pytest.skip("needs g++ with ThreadSanitizer")
    sources = [ROOT / "csrc" / "team.cpp", *(ROOT / "csrc" / "kernels").glob("*.cpp")]
    program = tmp_path / "races"
    build = [
        "g++", "-std=c++20", "-O1", "-g1", "-fsanitize=thread", "-pthread", "-Wno-psabi",
        "-DSTPN_ISA=baseline", '-DSTPN_ISA_NAME="baseline"', "-DSTPN_FLOAT_ONLY",
        f"-I{ROOT / 'csrc'}", *sources, Path(__file__).with_name("races.cpp"), "-o", program,
    ]  # fmt: skip
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert done.stdout == "calls 168\n"
