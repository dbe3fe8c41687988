"""Threads: of the kernels, of Python, and in a child of fork."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import stpn
from stpn.nn import STPNf, STPNl, STPNr
from stpn.nn.fast_weights import FastWeights
from stpn.nn.modulated import ModPlast
from stpn.ops.backends import use_backend

pytest.importorskip("stpn._native", reason="the kernels are not built")

# Enough synapse steps for a team of threads; the first batch in groups of lanes that do not divide
# evenly, the second with sequences side by side in vectors.
BATCH, STEPS, INPUTS, HIDDEN = 23, 20, 13, 11
EVEN = 24
KINDS = [STPNr, STPNl, ModPlast, FastWeights]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make(kind: Any, batch: int = BATCH) -> tuple[Any, Tensor]:
    layer = kind(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64)
    return layer, torch.randn(batch, STEPS, INPUTS, dtype=torch.float64)


def results(layer: Any, x: Tensor) -> list[Tensor]:
    """y, the final state, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    y, (state,) = layer(x)
    total = y.square().sum() + sum(value.sin().sum() for value in state)
    gradients = torch.autograd.grad(total, [x, *layer.parameters()])
    return [value.detach() for value in (y, *state, *gradients)]


def assert_identical(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected)
    assert all(map(torch.equal, actual, expected))


@kinds
@pytest.mark.parametrize("batch", [BATCH, EVEN])
def test_any_number_of_threads_gives_the_same_numbers(kind, batch) -> None:
    layer, x = make(kind, batch)
    expected = None
    with use_backend("native"):
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            first = results(layer, x)
            for _ in range(3):
                assert_identical(results(layer, x), first)
            expected = expected or first
            torch.testing.assert_close(first, expected, rtol=1e-10, atol=1e-10)


@kinds
@pytest.mark.parametrize(("forward", "backward"), [(1, 24), (24, 1)])
def test_a_backward_pass_with_another_number_of_threads(kind, forward, backward) -> None:
    """How sequences lie in vectors depends on the threads, but only of the forward pass."""
    layer, x = make(kind, EVEN)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    with use_backend("native"):
        torch.set_num_threads(forward)
        total = layer(x)[0].square().sum()
        torch.set_num_threads(backward)
        actual = torch.autograd.grad(total, list(layer.parameters()))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_more_threads_than_sequences() -> None:
    layer = STPNr(200, 100, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 5, 200, dtype=torch.float64)
    expected = results(layer, x)
    torch.set_num_threads(5)
    torch.testing.assert_close(results(layer, x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize(("batch", "threads"), [(1, 2), (1, 5), (2, 5)])
def test_a_feed_forward_sequence_is_shared_out_by_rows(norm, batch, threads) -> None:
    torch.manual_seed(0)
    layer = STPNf(100, 45, batch_first=True, norm=norm, clamp=0.01, dtype=torch.float64)
    x = torch.randn(batch, 30, 100, dtype=torch.float64)
    reset = torch.rand(batch, 30) < 0.1
    start = layer.initial_state(batch)
    start = tuple(state._replace(f=torch.randn_like(state.f) / 100) for state in start)

    def everything() -> list[Tensor]:
        layer.zero_grad()
        with stpn.EnergyMeter(layer, differentiable=True) as meter:
            y, (state,) = layer(x, start, reset)
        (y.square().sum() + state.f.sin().sum() + meter.power).backward()
        return [y.detach(), state.f.detach(), meter.power.detach()] + [
            parameter.grad for parameter in layer.parameters() if parameter.grad is not None
        ]

    with use_backend("native"):
        torch.set_num_threads(1)
        expected = everything()
        torch.set_num_threads(threads)
        torch.testing.assert_close(everything(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads_at_once(threads: int) -> None:
    torch.set_num_threads(threads)
    jobs = [make(kind) for kind in KINDS * 4]
    expected = [results(*job) for job in jobs]

    def run(job: tuple[Any, Tensor]) -> list[Tensor]:
        # A thread that Python starts has torch's default number of threads, not the caller's.
        torch.set_num_threads(threads)
        return results(*job)

    with ThreadPoolExecutor(4) as pool:
        for actual, wanted in zip(pool.map(run, jobs), expected, strict=True):
            assert_identical(actual, wanted)


def _child(layer: Any, x: Tensor, threads: int, pipe: Any) -> None:
    try:
        torch.set_num_threads(1)  # torch's own operations hang in a child; the kernels need not
        results(layer, x)
        counts = [threads]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: counts[0])
            pipe.send([value.numpy() for value in results(layer, x)])
    except BaseException as error:
        pipe.send(repr(error))
        raise


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of a process with threads
@kinds
def test_in_a_child_of_fork(kind) -> None:
    """The parent's pool of threads, awake at the fork, does not exist in the child."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this platform has no fork")
    context = multiprocessing.get_context("fork")
    layer, x = make(kind)
    torch.set_num_threads(2)
    expected = results(layer, x)
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(layer, x, 3, theirs), daemon=True)
    child.start()
    try:
        assert ours.poll(40), "the child hangs"
        answer = ours.recv()
        assert not isinstance(answer, str), answer
        actual = [torch.from_numpy(value) for value in answer]
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
        child.join(10)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
    assert_identical(results(layer, x), expected)  # and the parent works as before


def test_other_python_threads_run_meanwhile() -> None:
    """The kernels release the GIL."""
    layer = STPNr(64, 64, batch_first=True)
    x = torch.randn(1, 12000, 64)
    stop, started = threading.Event(), threading.Event()
    ticks: list[float] = []

    def count() -> None:
        started.set()
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    counter = threading.Thread(target=count)
    counter.start()
    started.wait()
    try:
        with torch.no_grad(), use_backend("native"):
            begin = time.perf_counter()
            layer(x)
            end = time.perf_counter()
    finally:
        stop.set()
        counter.join()
    during = [t for t in ticks if begin + 0.1 * (end - begin) < t < end - 0.1 * (end - begin)]
    assert len(during) >= 3, f"{len(during)} ticks in {end - begin:.3f} s"
