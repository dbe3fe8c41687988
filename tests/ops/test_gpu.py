"""GPU kernels without a GPU: in Triton's interpreter, and what goes on around their launches."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Shape, make_case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton", minversion="3.4", reason="stpn-torch[gpu] is not installed")

from stpn.ops.fast_weights import triton as fast_weights  # noqa: F401  (its operator)
from stpn.ops.gpu import backend, graphs, plan
from stpn.ops.gpu.launch import in_steps
from stpn.ops.stpn import triton


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_kernels_equal_the_specification_in_the_interpreter() -> None:
    tests = Path(__file__).with_name("gpu_interpreted.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 5000])
def test_memory_grows_with_the_root_of_the_steps(steps: int) -> None:
    every = plan.segment_length(steps)
    checkpoints = -(-steps // every)
    assert every * checkpoints >= steps
    assert every + checkpoints <= 2 * steps**0.5 + 2


def test_the_regime_is_chosen_by_size() -> None:
    def on_chip(rows: int, columns: int, independent: bool = False, gated: bool = False) -> Any:
        return plan.on_chip(rows, columns, independent=independent, gated=gated)

    assert on_chip(11, 48) == plan.Tile(16, 64, 1, 4)  # associative retrieval
    assert on_chip(55, 72).rows == 64  # the maze
    assert on_chip(64, 2656) is None  # Pong
    assert on_chip(512, 612) is None
    assert on_chip(27, 100, independent=True) == plan.Tile(8, 128, 4, 4)  # familiarity
    assert on_chip(64, 2592, independent=True) == plan.Tile(1, 4096, 64, 16)
    assert on_chip(24, 43, gated=True) == plan.Tile(32, 64, 1, 8)
    assert plan.square(128) is not None
    assert plan.square(129) is None


def test_no_step_is_further_away_than_32_bits_can_say() -> None:
    def time_first(steps: int) -> Tensor:
        return torch.empty(steps, 2**12, 2**10, device="meta").transpose(0, 1)

    near, far = time_first(511), time_first(513)
    assert in_steps(near) is near
    assert in_steps(far).stride() == (513 * 2**10, 2**10, 1)


class FakeGraph:
    """Runs what was captured again, on the same memory, as a CUDA graph does."""

    captured: Any = None

    def replay(self) -> None:
        assert self.captured is not None
        self.captured()


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda as far as a capture uses it, on the CPU; the log of what was run."""
    log: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    @contextlib.contextmanager
    def nothing(_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nothing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", nothing)
    monkeypatch.setattr(graphs, "_graphs", type(graphs._graphs)())
    return log


def test_a_graph_reads_new_inputs_and_gives_results_of_its_own(
    monkeypatch: pytest.MonkeyPatch, fake_cuda: list[str]
) -> None:
    runs = 0

    def double(factor: float, x: Tensor, nothing: None) -> tuple[Tensor, None]:
        nonlocal runs
        runs += 1
        result = torch.empty_like(x)

        def launch() -> None:
            torch.mul(x, factor, out=result)

        launch()
        FakeGraph.captured = staticmethod(launch)
        return result, None

    first, second = torch.ones(3), torch.full((3,), 5.0)
    kept, _ = graphs._replayed(double, (first, None), (2.0,))
    other, _ = graphs._replayed(double, (second, None), (2.0,))
    assert runs == 2  # once to compile, once to capture
    assert kept is not None
    assert other is not None
    assert kept.equal(2 * first)  # not overwritten by the second call
    assert other.equal(2 * second)
    graphs._replayed(double, (second, None), (3.0,))
    graphs._replayed(double, (torch.ones(4), None), (3.0,))
    assert runs == 6  # other constants and other shapes have graphs of their own


def test_what_cannot_be_captured_is_launched(
    monkeypatch: pytest.MonkeyPatch, fake_cuda: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    for _ in range(2):
        (result,) = graphs._replayed(lambda x: (x + 1,), (torch.ones(1),), ())
        assert result is not None
        assert result.item() == 2
    graphs._replayed(_one_more, (torch.ones(1),), ())
    caplog.clear()
    graphs._replayed(_one_more, (torch.ones(1),), ())
    assert not caplog.records  # said once


def _one_more(x: Tensor) -> tuple[Tensor]:
    return (x + 1,)


def test_only_short_steps_on_a_gpu_use_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_replayed", lambda *args: pytest.fail("not on the CPU"))
    (result,) = graphs.graphed(_one_more, (torch.ones(1),), (), synapses=10)
    assert result is not None
    assert result.item() == 2


@pytest.mark.parametrize("hidden", [3, 300])  # on chip, in memory
@pytest.mark.parametrize("kind", ["r", "l"])
def test_a_trace_without_a_gpu(kind: str, hidden: int) -> None:
    """Shapes, dtypes and devices of results and gradients, as torch.compile asks for them."""
    case = make_case(kind, Shape(2, 5, 4, hidden))
    constants = (True, "post", 0.3, "tanh")

    def operands(device: str) -> list[Any]:
        shaped = {n: torch.empty(v.shape, device=device) for n, v in case.tensors.items()}
        shaped["x"] = shaped["x"].bfloat16()
        reset = torch.empty(2, 5, dtype=torch.bool, device=device)
        return [shaped.get(name) for name in triton._Inputs._fields[:8]] + [
            reset, None, shaped["power_weight"],
        ]  # fmt: skip

    with FakeTensorMode():
        outputs = torch.ops.stpn.stpn_triton(*operands("cuda"), *constants, True)
    y, c_T, f_T, power, *_ = outputs
    assert {value.device.type for value in outputs} == {"cuda"}
    assert {value.dtype for value in outputs if value.dim() > 1} == {torch.float32}
    assert (y.shape, power.shape) == ((2, 5, hidden), (2, 5))
    assert c_T.shape == ((2, hidden) if kind == "l" else (0,))
    assert 0 <= f_T.shape[2] - case.tensors["f0"].shape[2] < 4
    # A tensor that claims to be on a GPU cannot be indexed without one; the backward pass does.
    given = operands("meta")
    outputs = torch.ops.stpn.stpn_triton(*given, *constants, True)
    needs = [value is not None for value in given[:8]]
    found = torch.ops.stpn.stpn_triton_backward(
        *given, *outputs, outputs[0], None, outputs[2], None, *constants, needs
    )
    for gradient, value in zip(found, given, strict=False):
        if value is not None:
            assert (gradient.shape, gradient.dtype) == (value.shape, value.dtype)


@pytest.mark.parametrize("hidden", [11, 300])  # on chip, in memory
def test_what_is_saved_of_f_grows_with_the_root_of_the_steps(hidden: int) -> None:
    def saved(steps: int) -> int:
        case = make_case("r", Shape(1, 1, 37, hidden))
        shaped = {n: torch.empty(v.shape, device="meta") for n, v in case.tensors.items()}
        shaped["x"] = torch.empty(1, steps, 37, device="meta")
        inputs = [shaped.get(name) for name in triton._Inputs._fields[:8]]
        constants = (True, "pre", torch.inf, "tanh")
        outputs = torch.ops.stpn.stpn_triton(*inputs, None, None, None, *constants, True)
        *_, checkpoints = [output.numel() for output in outputs]
        synapses = shaped["weight"].numel()
        # Of a step, beside them, a few numbers for each neuron.
        assert sum(o.numel() for o in outputs) - checkpoints < 2 * synapses + 9 * steps * hidden
        return checkpoints

    assert saved(10_000) == 10 * saved(100)


def test_an_operator_of_a_wrong_kernel_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that was exported elsewhere."""
    monkeypatch.setattr(backend, "problem", lambda recurrence, device: f"{recurrence} is wrong")
    x, vector, square = torch.zeros(1, 1, 2), torch.zeros(1, 2), torch.zeros(1, 2, 2)
    with pytest.raises(RuntimeError, match=r"fast_weights is wrong: .*STPN_BACKEND=reference"):
        torch.ops.stpn.fast_weights_triton(
            x, vector, square, square[0], vector[0], vector[0], None, None, None, 0.9, 0.5, 1e-5,
            False,
        )  # fmt: skip
