"""The backend `triton`: when it runs, what it refuses, and that it is checked before it is trusted.

No kernel runs here, and Triton is not needed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stpn.ops import reference
from stpn.ops.gpu import backend
from stpn.ops.reference import STPNOptions

CPU = torch.device("cpu")
HERE = backend.Triton()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were one, and nothing had been checked yet."""
    monkeypatch.setattr(backend, "device_type", lambda: "cpu")
    monkeypatch.setattr(backend, "interpreted", lambda: False)
    monkeypatch.setattr(backend, "_problems", {})
    monkeypatch.delenv("STPN_TRUST", raising=False)


def kernels(monkeypatch: pytest.MonkeyPatch, function: Any) -> list[str]:
    """`function` in place of every kernel; the log of which were asked for."""
    asked: list[str] = []

    def kernel(recurrence: str) -> Any:
        asked.append(recurrence)
        return lambda *inputs, **options: function(recurrence, *inputs, **options)

    monkeypatch.setattr(backend, "kernel", kernel)
    return asked


def right(recurrence: str, *inputs: Any, **options: Any) -> Any:
    return getattr(reference, recurrence)(*inputs, **options)


def wrong(recurrence: str, *inputs: Any, **options: Any) -> Any:
    y, *rest = right(recurrence, *inputs, **options)
    return 1.01 * y, *rest


def arguments(**changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors: dict[str, Any] = {
        "x": torch.ones(2, 3, 4), "h0": torch.zeros(2, 5), "f0": torch.zeros(2, 5, 9),
        "weight": torch.ones(5, 9), "bias": None, "lambda_": torch.ones(1, 1),
        "gamma": torch.ones(1, 1),
    }  # fmt: skip
    options = {"options": STPNOptions(recurrent=True), "power_weight": None, "norm_scale": None}
    for name, value in changes.items():
        (tensors if name in tensors else options)[name] = value
    return tuple(tensors.values()), options


@pytest.mark.usefixtures("on_a_gpu")
def test_a_right_kernel_is_checked_once_and_runs(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    asked = kernels(monkeypatch, right)
    inputs, options = arguments()
    for _ in range(2):
        assert HERE.rejects("stpn", inputs, options) is None
        HERE.recurrences["stpn"](*inputs, **options)
    assert asked == ["stpn"] * 3  # one check, two calls
    assert not recwarn


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("recurrence", ["stpn", "stpn_lstm", "modplast", "fast_weights"])
def test_a_wrong_kernel_is_found_and_the_specification_runs(
    monkeypatch: pytest.MonkeyPatch, recurrence: str
) -> None:
    asked = kernels(monkeypatch, wrong)
    with pytest.warns(UserWarning, match=f"is wrong here .{recurrence}.*plain PyTorch"):
        assert "is wrong here" in str(backend.problem(recurrence, CPU))
    assert "is wrong here" in str(backend.problem(recurrence, CPU))  # and no second warning
    assert asked == [recurrence]
    if recurrence == "stpn":
        inputs, options = arguments()
        assert "is wrong here" in str(HERE.rejects("stpn", inputs, options))
        y, *_ = HERE.recurrences["stpn"](*inputs, **options)  # as under torch.compile
        assert y.equal(reference.stpn(*inputs, **options)[0])


@pytest.mark.usefixtures("on_a_gpu", "fresh_compiler")
def test_a_wrong_kernel_is_found_while_a_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch, wrong)
    inputs, options = arguments()
    compiled = torch.compile(
        lambda *tensors: HERE.recurrences["stpn"](*tensors, **options)[0],
        fullgraph=True, backend="eager",
    )  # fmt: skip
    with pytest.warns(UserWarning, match="is wrong here"):
        y = compiled(*inputs)
    torch.testing.assert_close(y, reference.stpn(*inputs, **options)[0])


@pytest.mark.usefixtures("on_a_gpu")
def test_a_kernel_that_does_not_run_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*inputs: Any, **options: Any) -> Any:
        raise RuntimeError("no such instruction\nand more")

    kernels(monkeypatch, fail)
    with pytest.warns(UserWarning, match="does not run here .RuntimeError: no such instruction.;"):
        assert backend.problem("stpn", CPU) is not None


@pytest.mark.usefixtures("on_a_gpu")
def test_trust_skips_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = kernels(monkeypatch, wrong)
    monkeypatch.setenv("STPN_TRUST", "1")
    assert backend.problem("stpn", CPU) is None
    assert not asked


@pytest.mark.usefixtures("on_a_gpu")
def test_a_step_is_vouched_for_by_its_recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = kernels(monkeypatch, right)
    assert backend.problem("stpn_lstm_step_", CPU) is None
    assert asked == ["stpn_lstm"]


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x": torch.ones(2, 3, 4, dtype=torch.float64)}, "float32, not in torch.float64"),
        ({"x": torch.ones(2, 3, 4, dtype=torch.float16)}, "float32, not in torch.float16"),
        ({"x": torch.ones(2, 3, 4, device="meta")}, "not on meta"),
        ({"x": torch.ones(2, 3, 0)}, "no synapse"),
        ({"power_weight": torch.ones(9, requires_grad=True)}, "gradient of power_weight"),
        ({"norm_scale": torch.ones(5)}, "norm_scale=True"),
        ({"options": STPNOptions(recurrent=True, norm_over="layer")}, "norm_over='layer'"),
        ({"options": STPNOptions(recurrent=True, rule="oja")}, "rule='oja'"),
        ({"options": STPNOptions(recurrent=True, frozen=True)}, "frozen"),
        ({"options": STPNOptions(recurrent=True, associate="new")}, "associate='new'"),
    ],
    ids=str,
)
def test_what_it_refuses(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    monkeypatch.setenv("STPN_TRUST", "1")
    assert HERE.rejects("stpn", *arguments()) is None
    bfloat16, options = arguments(x=torch.ones(2, 3, 4, dtype=torch.bfloat16))
    assert HERE.rejects("stpn", bfloat16, options) is None
    assert reason in str(HERE.rejects("stpn", *arguments(**changes)))


@pytest.mark.usefixtures("on_a_gpu")
def test_what_it_refuses_of_the_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STPN_TRUST", "1")

    def inputs(hidden: int) -> tuple[Tensor, ...]:
        return torch.ones(1, 1, hidden), torch.ones(1, hidden)

    assert HERE.rejects("modplast", inputs(128), {}) is None
    assert "128 units" in str(HERE.rejects("modplast", inputs(129), {}))
    assert HERE.rejects("fast_weights", inputs(5), {"steps": 1}) is None
    assert "one turn" in str(HERE.rejects("fast_weights", inputs(5), {"steps": 2}))


def test_it_says_why_it_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "interpreted", lambda: False)
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    assert "stpn-torch[gpu]" in str(HERE.unusable())
    monkeypatch.setattr(backend, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU" in str(HERE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    assert HERE.unusable() is None
    assert "usable (A GPU" in str(HERE)
