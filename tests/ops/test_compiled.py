"""The backend `compiled` equals the specification, compiles little, and gives up with a word.

What is compiled matters here, not how well: all but the slow tests let torch.compile make graphs
that are run as they are, which takes no C++ compiler and little time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from parity import Case, Shape, assert_near, make_baseline_case, make_case
from torch._dynamo.testing import CompileCounterWithBackend

import stpn
from stpn.ops import backends, compiled, reference

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HERE = compiled.Compiled()
SHORT, LONG = Shape(3, 1, 4, 3), Shape(2, 5, 4, 3)  # graphs of one step; of two, and of one


@pytest.fixture(autouse=True)
def counter(monkeypatch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    """Nothing has been compiled yet; how many graphs are."""
    found = CompileCounterWithBackend("eager")
    monkeypatch.setattr(compiled, "_graphs", {})
    monkeypatch.setattr(compiled, "_warned", set())
    monkeypatch.setattr(compiled, "_unserved", lambda device: None)
    monkeypatch.setattr(compiled, "COMPILER", found)
    monkeypatch.setattr(compiled, "STEPS", 2)
    monkeypatch.setattr(compiled, "LONG", 4)
    monkeypatch.delenv("STPN_TRUST", raising=False)
    return found


def run(case: Case, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    with stpn.use_backend("compiled"):
        return case.run(backends, dtype)


def assert_parity(case: Case, dtype: torch.dtype = torch.float64) -> None:
    assert_near(run(case, dtype), case.run(reference, torch.float64), dtype)


@pytest.mark.parametrize(
    ("kind", "shape", "options"),
    [
        ("r", LONG, {"masks": "both", "clamp": 0.3}),
        ("l", LONG, {"masks": "lengths", "norm": "post"}),
        ("f", SHORT, {"masks": "reset", "stp": "neuron", "nonlinearity": "relu"}),
        ("r", SHORT, {"norm_scale": True, "associate": "new", "bias": False}),
        ("l", SHORT, {"norm_over": "layer", "rule": "oja"}),
        ("r", SHORT, {"frozen": True, "masks": "both"}),
    ],
    ids=str,
)
def test_parity(kind: str, shape: Shape, options: dict[str, Any]) -> None:
    assert_parity(make_case(kind, shape, **options))


@pytest.mark.parametrize(
    ("kind", "options"), [("modulated", {}), ("unmodulated", {}), ("fast weights", {"steps": 2})]
)
def test_baselines(kind: str, options: dict[str, Any]) -> None:
    assert_parity(make_baseline_case(kind, Shape(3, 5, 0, 4), masks="both", **options))


@pytest.mark.slow
@pytest.mark.skipif(not HERE.usable, reason=str(HERE))
def test_what_a_user_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own compiler at work."""
    monkeypatch.setattr(compiled, "COMPILER", "inductor")
    case = make_case("l", replace(SHORT, steps=2), masks="both")
    with torch._inductor.config.patch(compile_threads=1):  # not worth a process
        assert_parity(case, torch.float32)
    assert [graph.problem for graph in compiled._graphs.values()] == [None]


def test_a_core_of_gradient_plasticity() -> None:
    core = stpn.build("gradplast", 3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)
    found = []
    for name in ("reference", "compiled"):
        core.zero_grad()
        with stpn.use_backend(name):
            y = core(x)[0]
        y.square().sum().backward()
        found.append(
            [y.detach(), *(p.grad.clone() for p in core.parameters() if p.grad is not None)]
        )
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("kind", ["r", "l"])
def test_steps_in_place(kind: str) -> None:
    core = {"r": stpn.STPNrCell, "l": stpn.STPNlCell}[kind](3, 4)
    x, found = torch.randn(2, 3), []
    for name in ("reference", "compiled"):
        state = core.initial_state(2)
        with stpn.use_backend(name), torch.no_grad():
            for _ in range(2):
                y, state = core(x, state, inplace=True)
        found.append([y, *state])
    torch.testing.assert_close(found[1], found[0])


def test_neither_batch_nor_steps_compile_anew(counter: CompileCounterWithBackend) -> None:
    graphs = []
    for batch, steps in ((3, 1), (5, 1), (2, 3), (4, 5), (9, 9), (1, 1), (1, 3)):
        assert_parity(make_case("r", Shape(batch, steps, 4, 3), masks="both"))
        graphs.append(counter.frame_count)
    assert graphs == [1, 1, 1, 2, 2, 3, 3]  # one step; two; one step of a single sequence


def test_what_is_the_same_network_shares_a_graph(counter: CompileCounterWithBackend) -> None:
    core, x = stpn.STPNr(4, 3), torch.randn(2, 3, 4)
    with stpn.use_backend("compiled"):
        for _ in range(2):
            core(x)[0].sum().backward()
        assert counter.frame_count == 1
        with torch.no_grad():
            _, state = core(x)
            core(x, state)
        assert counter.frame_count == 2  # without gradients it is another graph
        stpn.STPNr(4, 3)(x)
        assert counter.frame_count == 2
    assert not hasattr(x, "_dynamo_weak_dynamic_indices")  # no trace on what is not ours


@torch._dynamo.config.patch(recompile_limit=1)
@torch.no_grad()
def test_networks_do_not_share_one_limit(counter: CompileCounterWithBackend) -> None:
    """torch.compile gives up after some variants of a function."""
    with stpn.use_backend("compiled"):
        for hidden in (2, 3, 4):
            stpn.STPNf(3, hidden)(torch.zeros(2, 1, 3))
    assert counter.frame_count == 3


@torch._dynamo.config.patch(recompile_limit=1)
@torch.no_grad()
def test_a_limit_of_torch_ends_in_a_word() -> None:
    core, x = stpn.STPNr(4, 3), torch.randn(2, 3, 4)
    expected = core(x)[0]
    with stpn.use_backend("compiled"):
        core(x)
        threads = torch.get_num_threads()
        torch.set_num_threads(threads + 1)  # which torch.compile looks at
        try:
            with pytest.warns(
                UserWarning, match="does not compile here .*RecompileLimit.*plain PyTorch"
            ):
                torch.testing.assert_close(core(x)[0], expected)
            core(x)  # and no second warning
        finally:
            torch.set_num_threads(threads)


def test_a_limit_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_GRAPHS", 1)
    assert_parity(make_case("r", SHORT))
    with pytest.warns(UserWarning, match="has made 1 graphs"):
        assert_parity(make_case("r", replace(SHORT, hidden=5)))
    assert len(compiled._graphs) == 1


def test_what_does_not_compile_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr(compiled, "COMPILER", fail)
    message = "stpn does not compile here .*no compiler on this machine.*plain PyTorch"
    with pytest.warns(UserWarning, match=message):
        assert_parity(make_case("r", SHORT))
    assert_parity(make_case("r", SHORT))
    assert_parity(make_case("r", replace(SHORT, hidden=5)))  # and no second warning


def off(module: Any, example: Any) -> Any:
    """A compiler whose results are wrong by a hair."""

    def wrong(*inputs: Any) -> Any:
        first, *rest = module(*inputs)
        return 1.01 * first, *rest

    return wrong


def test_a_wrong_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILER", off)
    with pytest.warns(UserWarning, match="other numbers than plain PyTorch here"):
        assert_parity(make_case("r", SHORT))
    assert_parity(make_case("r", SHORT))
    monkeypatch.setattr(compiled, "_graphs", {})
    monkeypatch.setenv("STPN_TRUST", "1")
    case = make_case("r", SHORT)
    wrong, right = run(case)["y"], case.run(reference, torch.float64)["y"]
    assert (wrong - right).abs().max() > 1e-3


def test_a_call_that_is_not_finite_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILER", off)
    case = make_case("r", SHORT)
    spoilt = case.tensors | {"x": torch.full_like(case.tensors["x"], torch.nan)}
    assert run(replace(case, tensors=spoilt))["y"].isnan().all()
    with pytest.warns(UserWarning, match="other numbers"):
        assert_parity(case)


def test_a_wrong_call_is_an_error_of_the_specification() -> None:
    case = make_case("r", SHORT)
    wrong = replace(case, tensors=case.tensors | {"weight": case.tensors["weight"][:, 1:]})
    with pytest.raises(RuntimeError, match="size of tensor"):
        run(wrong)
    assert_parity(case)


def test_second_derivatives_and_a_second_backward_pass() -> None:
    case, found = make_case("r", SHORT), []
    for module, name in ((reference, "reference"), (backends, "compiled")):
        leaves = {n: v.clone().requires_grad_() for n, v in case.tensors.items()}
        with stpn.use_backend(name):
            y = case.outputs(module, leaves, power=False)["y"]
        (slope,) = torch.autograd.grad(y.sum(), leaves["x"], create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), leaves["weight"], retain_graph=True)
        once = torch.autograd.grad(y.sum(), leaves["weight"], retain_graph=True)
        again = torch.autograd.grad(y.sum(), leaves["weight"])
        torch.testing.assert_close(once, again)
        found.append([slope, bend, *again])
    assert found[0][1].abs().max() > 1e-4
    torch.testing.assert_close(found[1], found[0])


def test_a_model_around_it_is_one_graph() -> None:
    core, x = stpn.STPNr(4, 3, batch_first=True), torch.randn(2, 3, 4)
    whole = torch.compile(core, fullgraph=True, backend="eager")
    with stpn.use_backend("compiled"):
        torch.testing.assert_close(whole(x)[0], core(x)[0])


# --- In the registry ----------------------------------------------------------------------------


def test_on_the_cpu_it_runs_on_request_alone(counter: CompileCounterWithBackend) -> None:
    core, x = stpn.STPNr(4, 3, norm_scale=True), torch.randn(2, 3, 4)  # which has no kernel
    core(x)
    assert counter.frame_count == 0
    assert [backend.name for backend in stpn.backends()][-2:] == ["compiled", "reference"]
    with stpn.use_backend("compiled"):
        core(x)
    assert counter.frame_count == 1


def test_elsewhere_it_runs_before_plain_pytorch(
    monkeypatch: pytest.MonkeyPatch, counter: CompileCounterWithBackend
) -> None:
    """As if the CPU were a device that no kernel serves."""
    monkeypatch.setattr(compiled.Compiled, "on_request", frozenset())
    stpn.STPNr(4, 3, norm_scale=True)(torch.randn(2, 3, 4))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.zeros(1, 1, 1, dtype=torch.bfloat16), "not in torch.bfloat16"),
        (torch.zeros(0, 1, 1), "nothing to compute"),
        (torch.zeros(1, 1, 1, device="meta"), "does not serve the device meta"),
    ],
    ids=str,
)
def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, reason: str) -> None:
    monkeypatch.undo()
    assert reason in str(HERE.rejects("stpn", (x, torch.zeros(1, 1)), {}))


def test_it_says_why_it_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    unserved = compiled._unserved.__wrapped__
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    assert "C++ compiler" in unserved("cpu")
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert "Triton on cuda" in unserved("cuda")
    assert unserved("mps") is None
    monkeypatch.setattr(compiled, "_unserved", unserved)
    monkeypatch.setattr(compiled, "_accelerator", lambda: "mps")
    assert HERE.device == "mps"
    assert HERE.usable
    monkeypatch.setattr(compiled, "_accelerator", lambda: "cuda")
    assert "C++ compiler" in str(HERE)
