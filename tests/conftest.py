"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome")))
    path = next(found, None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    alone = ("background-networking", "component-update", "sync")
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
    arguments += [f"--disable-{feature}" for feature in alone]
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def open_address(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; what it complains about or asks of the network fails the test."""
    opened = []
    complaints: list[str] = []

    def asked(url: str) -> None:
        if not url.startswith(("file:", "data:")):
            complaints.append(url)

    def opener(address: str, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        opened.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: asked(request.url))
        page.goto(address)
        return page

    yield opener
    for context in opened:
        context.close()
    assert complaints == []
