"""`stpn doctor`: what it says of a machine, and of a backend that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stpn
from stpn.cli import doctor, main
from stpn.ops import check, compiled, reference, registry


@pytest.fixture
def own_backends() -> Iterator[None]:
    """Backends that a test registers are gone after it."""
    before = dict(registry._backends)
    yield
    registry._backends.clear()
    registry._backends.update(before)
    registry._order = tuple(backend for backend in before.values() if backend.usable)


class Off(stpn.Backend):
    """The specification, wrong by a hair in what the layer learns from."""

    name = "off"
    detail = "for tests"

    def __init__(self, factor: float) -> None:
        def stpn_(x: Any, *others: Any, **options: Any) -> Any:
            y, *rest = reference.stpn(x, *others, **options)
            return y + (factor - 1) * (y - y.detach()), *rest

        self.recurrences = {"stpn": stpn_}


def test_it_says_what_runs_where_and_that_it_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json", "--no-speed"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["machine"]["torch"] == torch.__version__
    assert len(found["machine"]["backends"]) == len(stpn.backends())
    usable = {b.name for b in stpn.backends() if b.usable and b.device not in b.on_request}
    assert {row["backend"] for row in found["parity"]} == usable - {"reference"}
    assert all(row["right"] for row in found["parity"])
    assert found["advice"]


def test_it_prints_the_same_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "SPEED_CASES", {"tiny": (2, 2, 2, 2)})
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("This machine", "Backends", "reference: usable", "tiny", "What to do"):
        assert part in text


@pytest.mark.usefixtures("fresh_compiler")
def test_what_runs_on_request_is_checked_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled, "COMPILER", "eager")
    monkeypatch.setattr(compiled, "_unserved", lambda device: None)
    name = "fast_weights"
    monkeypatch.setattr(check, "RECURRENCES", {name: check.RECURRENCES[name]})
    for flags, checked in (([], False), (["--on-request"], True)):
        assert main(["doctor", "--json", "--no-speed", *flags]) == 0
        rows = json.loads(capsys.readouterr().out)["parity"]
        assert all(row["right"] for row in rows)
        assert ("compiled" in {row["backend"] for row in rows}) == checked


@pytest.mark.usefixtures("own_backends")
def test_a_backend_with_a_wrong_gradient_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    stpn.register_backend(Off(1.0))
    assert all(found.right for found in doctor.parity_of(Off(1.0)))
    stpn.register_backend(Off(1.01))
    assert main(["doctor", "--json", "--no-speed"]) == 1
    found = json.loads(capsys.readouterr().out)
    rows = [row for row in found["parity"] if row["backend"] == "off"]
    assert [row["right"] for row in rows] == [False]
    assert "gradient of" in rows[0]["detail"]
    assert any("STPN_BACKEND=reference" in line for line in found["advice"])


@pytest.mark.usefixtures("own_backends")
def test_a_backend_that_fails_is_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*inputs: Any, **options: Any) -> Any:
        raise RuntimeError("out of order")

    backend = Off(1.0)
    backend.recurrences = {"stpn": fail}
    stpn.register_backend(backend)
    assert main(["doctor", "--json", "--no-speed"]) == 1
    rows = json.loads(capsys.readouterr().out)["parity"]
    assert "out of order" in next(row["detail"] for row in rows if row["backend"] == "off")


def test_a_nan_is_not_right() -> None:
    assert not check.Finding("stpn", float("nan"), "y").right


def test_each_recurrence_is_compared_in_results_and_all_gradients() -> None:
    for name, cases in check.RECURRENCES.items():
        for label, tensors, options in cases():
            function = getattr(reference, name)
            found = check._run(function, tensors, options, torch.float64, "cpu")
            wanted = {f"the gradient of {n}" for n, v in tensors.items() if v is not None}
            assert wanted <= found.keys(), (name, label)
            still = {"the gradient of h0"} if "feed-forward" in label else set()
            assert all(found[k].abs().max() > 0 for k in found.keys() - still), (name, label)


def test_advice_for_a_machine_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(stpn.Backend):
        name = "native"

        def unusable(self) -> str | None:
            return "the compiled module is missing"

    monkeypatch.setattr(stpn, "backends", lambda: (Missing(),))
    machine = {"compiler": None, "gpus": ["GPU"], "triton": None}
    advice = doctor.advise(machine, [], [])
    assert any("C++ compiler" in line for line in advice)
    assert any("stpn-torch[gpu]" in line for line in advice)
