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
from torch import Tensor

pytest.importorskip("triton", minversion="3.4", reason="stpn-torch[gpu] is not installed")

from stpn.ops.gpu import graphs, plan
from stpn.ops.gpu.launch import in_steps


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
