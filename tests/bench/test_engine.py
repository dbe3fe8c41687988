"""`stpn bench` times nothing that differs from the specification."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stpn
from stpn.bench import engine
from stpn.cli import main
from stpn.ops import compiled


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", engine.CASES, ids=engine.names())
def test_the_kernels_equal_the_specification(case: engine.Case) -> None:
    assert 0 < engine.parity(case) < 1e-4


def test_parity_is_checked_on_sequences_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than eight a thread would run other kernels than those that are timed."""
    batches = []

    class Spy(nn.Module):
        def __init__(self, core: nn.Module) -> None:
            super().__init__()
            self.core = core

        def forward(self, x: torch.Tensor) -> Any:
            batches.append(x.shape[0])
            return self.core(x)

        def state_dict(self, *args: Any, **keywords: Any) -> Any:
            return self.core.state_dict(*args, **keywords)

    build = engine._core
    monkeypatch.setattr(engine, "_core", lambda case: Spy(build(case)))
    engine.parity(engine.CASES[0])
    assert batches == [8 * torch.get_num_threads()]


@pytest.mark.usefixtures("fresh_compiler")
def test_what_does_not_compile_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled, "COMPILER", fail)
    monkeypatch.setattr(compiled, "_graphs", {})
    monkeypatch.setattr(compiled, "_warned", set())
    monkeypatch.setattr(compiled, "_unserved", lambda device: None)
    with warnings.catch_warnings(), stpn.use_backend("auto"):
        race = engine.contender(engine.CASES[0], "compiled")
        with pytest.raises(UserWarning, match="no compiler"):
            race()


def test_a_kernel_that_is_off_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    build = engine._core

    def off(case: engine.Case) -> Any:
        core = build(case)
        core.register_forward_hook(lambda _module, _inputs, result: (result[0] * 1.01, result[1]))
        return core

    def timed(*_: Any) -> None:
        raise AssertionError("timed")

    monkeypatch.setattr(engine, "_core", off)
    monkeypatch.setattr(engine, "Contender", timed)
    row = engine.measure(engine.CASES[0], 5, baselines=False, limits={"flops": 1e11})
    assert "differs from the specification" in row["refused"]
    assert "seconds" not in row


@pytest.mark.slow
def test_the_command_says_what_it_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "reset_cost", list)  # a minute of RNN and LSTM by themselves
    assert main(["bench", "--cases", "art", "--no-baselines", "--json", "--threads", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["cases"]
    assert row["case"] == "art"
    assert row["ratios"]["lstm"] == pytest.approx(row["seconds"]["lstm"] / row["seconds"]["native"])
    assert result["machine"]["threads"] == 1
    assert {"torch", "python"} <= set(result["machine"])
