"""Which backend runs: the choice of a thread, of a trace and of an export."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stpn
from stpn.ops import backends
from stpn.ops.backends import use_backend

native = pytest.importorskip("stpn.ops.native", reason="the kernels are not built")

CORES = [stpn.STPNf, stpn.STPNr, stpn.STPNl, stpn.ModPlast, stpn.FastWeights, stpn.HebbFF]


def test_blocks_that_overlap_in_two_threads() -> None:
    entered, left = threading.Barrier(2, timeout=20), threading.Barrier(2, timeout=20)
    seen: dict[str, list[str]] = {}

    def work(name: str, first_out: bool) -> None:
        seen[name] = [backends._choice.name]
        block = use_backend(name)
        with block:
            entered.wait()
            seen[name].append(backends._choice.name)
            if not first_out:
                left.wait()
        if first_out:
            left.wait()
        seen[name].append(backends._choice.name)

    threads = [
        threading.Thread(target=work, args=("reference", True)),
        threading.Thread(target=work, args=("native", False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: ["auto", name, "auto"] for name in ("reference", "native")}
    assert backends._choice.name == backends._latest == "auto"


def test_blocks_inside_each_other_and_a_choice_for_good() -> None:
    with use_backend("reference"):
        with use_backend("native"):
            assert backends._choice.name == "native"
        assert backends._choice.name == "reference"
        use_backend("auto")
        assert backends._choice.name == "auto"
    assert backends._choice.name == "auto"


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
