"""Which backend runs: the choice of a thread, of a trace and of an export."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stpn
from stpn.ops import backends, reference, registry
from stpn.ops.backends import use_backend

pytest.importorskip("stpn._native", reason="the kernels are not built")

CORES = [stpn.STPNf, stpn.STPNr, stpn.STPNl, stpn.ModPlast, stpn.FastWeights, stpn.HebbFF]


def test_blocks_that_overlap_in_two_threads() -> None:
    entered, left = threading.Barrier(2, timeout=20), threading.Barrier(2, timeout=20)
    seen: dict[str, list[str]] = {}

    def work(name: str, first_out: bool) -> None:
        seen[name] = [registry.chosen()]
        block = use_backend(name)
        with block:
            entered.wait()
            seen[name].append(registry.chosen())
            if not first_out:
                left.wait()
        if first_out:
            left.wait()
        seen[name].append(registry.chosen())

    threads = [
        threading.Thread(target=work, args=("reference", True)),
        threading.Thread(target=work, args=("native", False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: ["auto", name, "auto"] for name in ("reference", "native")}
    assert registry.chosen() == registry._latest == "auto"


def test_blocks_inside_each_other_and_a_choice_for_good() -> None:
    with use_backend("reference"):
        with use_backend("native"):
            assert registry.chosen() == "native"
        assert registry.chosen() == "reference"
        use_backend("auto")
        assert registry.chosen() == "auto"
    assert registry.chosen() == "auto"


def test_one_thread_cannot_disturb_another() -> None:
    """Each asks for what the other one does not want, again and again."""
    core, x = stpn.STPNr(2, 3), torch.zeros(1, 1, 2)
    wrong: list[str] = []
    calls = {"reference": 0, "native": 0}

    def work(name: str) -> None:
        for _ in range(200):
            with use_backend(name):
                y = core(x)[0]
                on_kernels = "Eager" in type(y.grad_fn.next_functions[0][0]).__name__
                calls[name] += 1
                if on_kernels != (name == "native"):
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == {"reference": 200, "native": 200}
    assert not wrong


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_code_follows_the_choice() -> None:
    core = stpn.STPNr(2, 3, dtype=torch.float64)
    x = torch.randn(4, 1, 2, dtype=torch.float64)
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    for name in ("native", "reference", "native"):
        with use_backend(name):
            torch.testing.assert_close(compiled(x)[0], core(x)[0])


traces = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace:DeprecationWarning"
)


@traces
@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", CORES)
def test_a_trace_records_the_computation(kind: type, grad: bool) -> None:
    core = kind(3, 4, batch_first=True)
    x, other = torch.randn(2, 5, 3), torch.randn(2, 5, 3)

    class Output(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = core

        def forward(self, x: Tensor) -> Tensor:
            return self.core(x)[0]

    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(Output(), x, check_trace=False)
        torch.testing.assert_close(traced(other), core(other)[0])


@traces
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", CORES)
def test_the_onnx_export_by_tracing(kind: type, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    core = kind(3, 4, batch_first=True).eval()
    x, path = torch.randn(2, 5, 3), tmp_path / "core.onnx"
    with torch.no_grad():
        torch.onnx.export(core, (x,), path, dynamo=False, input_names=["x"])
        (y, *_) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), core(x)[0])


@pytest.mark.usefixtures("fresh_compiler")
def test_an_export_to_onnx_sees_operations_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `torch.onnx.export(dynamo=True)` does first: `torch.export`, and it says so."""
    core, x = stpn.STPNr(3, 4, batch_first=True), torch.randn(2, 5, 3)

    def operators() -> set[str]:
        graph = torch.export.export(core, (x,)).graph
        return {str(node.target) for node in graph.nodes if node.op == "call_function"}

    assert any(name.startswith("stpn.") for name in operators())
    monkeypatch.setattr("torch.onnx._internal.exporter._flags._is_onnx_exporting", True)
    torch.compiler.reset()
    assert not any(name.startswith("stpn.") for name in operators())


# --- The registry -------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    """What a test registers is gone after it."""
    before, order, said = dict(registry._backends), registry._order, set(registry._said)
    yield
    registry._backends.clear()
    registry._backends.update(before)
    registry._order, registry._said = order, said


class Counting(stpn.Backend):
    """The specification, counted; takes no second call of a recurrence if told so."""

    name = "counting"

    def __init__(self, why_not: str | None = None, problem: str | None = None) -> None:
        self.calls, self.why_not, self.problem = 0, why_not, problem
        self.recurrences = {"stpn": self.stpn}

    def stpn(self, *inputs: Any, **options: Any) -> Any:
        self.calls += 1
        return reference.stpn(*inputs, **options)

    def unusable(self) -> str | None:
        return self.problem

    def rejects(self, recurrence: str, inputs: Any, options: Any) -> str | None:
        assert recurrence == "stpn"
        assert inputs[0].dim() == 3
        assert "options" in options
        return self.why_not


def a_call() -> None:
    stpn.STPNr(2, 3)(torch.zeros(1, 1, 2))


@pytest.mark.usefixtures("registered")
def test_backends_are_tried_in_order() -> None:
    first, last = Counting(), Counting()
    last.name = "last"
    stpn.register_backend(last)
    a_call()
    assert last.calls == 0  # the kernels took it
    stpn.register_backend(first, before="native")
    names = [backend.name for backend in stpn.backends()]
    assert names == ["counting", "native", "triton", "chunked", "compiled", "last", "reference"]
    a_call()
    assert (first.calls, last.calls) == (1, 0)
    with use_backend("last"):
        a_call()
    assert (first.calls, last.calls) == (1, 1)


@pytest.mark.usefixtures("registered")
def test_each_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stpn.register_backend(Counting("it is Monday"), before="native")
    for _ in range(3):
        a_call()
    assert [r.getMessage() for r in caplog.records] == [
        "this does not run on the backend 'counting': it is Monday"
    ]
    with use_backend("counting"), pytest.raises(ValueError, match="it is Monday"):
        a_call()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        ("modul", {}, "has no kernel"),
        ("gru", {"layer_norm": True}, "have no layer norm"),
        ("lstm", {}, None),
    ],
)
def test_a_core_that_runs_step_by_step_says_why_once(
    model: str, options: dict[str, bool], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    registry._said.clear()
    core, x = stpn.build(model, 3, 2, **options), torch.randn(4, 1, 3)
    with use_backend("reference"):
        core(x)
    assert not caplog.records  # it was asked for
    for _ in range(3):
        core(x)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (reason is not None)
    assert all("step by step" in line and str(reason) in line for line in said)


@pytest.mark.usefixtures("registered")
def test_nothing_is_said_of_a_backend_for_another_device(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counting("it runs elsewhere")
    backend.device = "cuda"
    stpn.register_backend(backend, before="native")
    a_call()
    assert not caplog.records


@pytest.mark.usefixtures("registered")
def test_a_backend_that_cannot_run_here_is_passed_over_and_cannot_be_chosen() -> None:
    backend = Counting(problem="no such device")
    stpn.register_backend(backend, before="native")
    a_call()
    assert backend.calls == 0
    assert str(stpn.backends()[0]) == "counting: not usable (no such device)"
    with pytest.raises(ValueError, match="'counting' is not usable: no such device"):
        use_backend("counting")


@pytest.mark.usefixtures("registered")
def test_a_backend_may_be_replaced_and_its_name_must_mean_something() -> None:
    stpn.register_backend(Counting())
    stpn.register_backend(other := Counting())
    assert [b for b in stpn.backends() if b.name == "counting"] == [other]
    with pytest.raises(ValueError, match="before: expected one of"):
        stpn.register_backend(Counting(), before="nothing")
    nameless = Counting()
    nameless.name = "auto"
    with pytest.raises(ValueError, match="'auto' is the choice"):
        stpn.register_backend(nameless)
    with pytest.raises(ValueError, match=r"expected one of auto, native, .*reference, got 'cuda'"):
        use_backend("cuda")


def test_a_gradient_that_the_kernels_do_not_give_comes_from_the_specification() -> None:
    weight = torch.rand(3, requires_grad=True)
    arguments = [torch.zeros(1, 2, 3), torch.zeros(1, 3), torch.zeros(1, 3, 3)]
    arguments += [torch.zeros(3, 3), torch.ones(3), torch.zeros(3)]
    _, _, power = backends.fast_weights(*arguments, power_weight=weight)
    assert power.requires_grad  # which the kernels would not give
    with use_backend("native"), pytest.raises(ValueError, match="gradient of power_weight"):
        backends.fast_weights(*arguments, power_weight=weight)
