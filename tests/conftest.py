"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

# Test workers share the cores: one thread each, also in the processes that they start. It must be
# said before torch is loaded; tests of threads ask for more themselves.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What Inductor kept of an earlier build of the operators must not answer for this one.
os.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}

import pytest
import torch

# In the background of a shell Ctrl-C is ignored, which programs that tests start would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` and friends return NaN: whatever is read before it is written shows."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward passes of the kernels take even a short sequence in several segments."""
    monkeypatch.setattr("stpn.ops.operands.SEGMENT_BYTES", 0)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """All cores share their `forward`, and torch.compile gives up after eight variants of it."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def only_new_garbage() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """What training does with the garbage collector, which it does not do here: looking through
    all that a test process has loaded takes longer than most of the trainings."""
    from stpn.training import loop

    with pytest.MonkeyPatch.context() as patch:
        original = loop._only_new_garbage
        patch.setattr(loop, "_only_new_garbage", nullcontext)
        yield original
