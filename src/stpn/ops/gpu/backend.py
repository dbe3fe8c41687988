"""The backend `triton`: the recurrences on a GPU.

These kernels were proved without a GPU, so they are checked on the user's own before they are
trusted: the first call of a recurrence in a process compares small ones with the specification.
STPN_TRUST=1 skips it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from stpn.ops import reference
from stpn.ops.gpu import plan
from stpn.ops.registry import Backend
from stpn.ops.stpn import kernels
from stpn.ops.tracing import needs_plain_pytorch, traced

_RECURRENCES = ("stpn", "stpn_lstm", "stpn_step_", "stpn_lstm_step_", "modplast", "fast_weights")
# What vouches for a step: the whole recurrence, which has the same kernels.
_VOUCHED = {"stpn_step_": "stpn", "stpn_lstm_step_": "stpn_lstm"}


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_type() -> str:
    return "cpu" if interpreted() else "cuda"


def kernel(recurrence: str) -> Callable[..., Any]:
    """Triton is imported by the first call, not by `import stpn`."""
    if recurrence == "modplast":
        from stpn.ops.modplast.triton import modplast

        return modplast
    if recurrence == "fast_weights":
        from stpn.ops.fast_weights.triton import fast_weights

        return fast_weights
    from stpn.ops.stpn import triton

    return getattr(triton, recurrence)


_problems: dict[tuple[str, Any], str | None] = {}


def problem(recurrence: str, device: torch.device) -> str | None:
    """Why the recurrence cannot be trusted on this device, or None. Looked at once."""
    if interpreted() or os.environ.get("STPN_TRUST") == "1":
        return None
    key = _VOUCHED.get(recurrence, recurrence), device
    if key not in _problems:
        _problems[key] = None  # whoever asks while it is being looked at
        _problems[key] = found = _checked(*key)
        if found is not None:
            warnings.warn(f"{found}; stpn runs it on plain PyTorch", stacklevel=2)
    return _problems[key]


def _checked(recurrence: str, device: torch.device) -> str | None:
    from stpn.ops.check import check

    try:
        finding = check(recurrence, kernel(recurrence), device)
    except Exception as error:  # of whatever compiles and launches a kernel
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"the GPU kernel of {recurrence} does not run here ({reason})"
    return None if finding.right else f"the GPU kernel is wrong here ({finding})"


@torch.compiler.assume_constant_result
def _problem_of(recurrence: str, device: str) -> str | None:
    """Asked while torch.compile traces a call, not by what it makes of it."""
    return problem(recurrence, torch.device(device))


def _trusted(recurrence: str) -> Callable[..., Any]:
    def run(*inputs: Any, **options: Any) -> Any:
        device = inputs[0].device
        if torch.compiler.is_compiling():  # and has not passed `rejects`, which does not look then
            reason = _problem_of(recurrence, str(device))
        else:
            reason = None if traced(inputs[0]) else problem(recurrence, device)
        function = kernel(recurrence) if reason is None else getattr(reference, recurrence)
        return function(*inputs, **options)

    return run


class Triton(Backend):
    name = "triton"
    device = "cpu" if interpreted() else "cuda"
    recurrences: Mapping[str, Callable[..., Any]] = {
        **{name: _trusted(name) for name in _RECURRENCES},
        "plus_static_power": reference.plus_static_power,  # two operations of torch, anywhere
    }

    @property
    def detail(self) -> str:  # type: ignore[override]
        if interpreted():
            return "Triton's interpreter, for tests"
        return f"{torch.cuda.get_device_name()}; float32, inputs also bfloat16"

    def unusable(self) -> str | None:
        if find_spec("triton") is None:
            return "Triton is not installed: install stpn-torch[gpu]"
        if not interpreted() and not torch.cuda.is_available():
            return "PyTorch sees no GPU of NVIDIA or AMD"
        return None

    def rejects(
        self, recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> str | None:
        x = inputs[0]
        if x.device.type != device_type():
            return f"its kernels run on a GPU, not on {x.device.type}"
        if recurrence not in _RECURRENCES:
            return None
        reason = needs_plain_pytorch()
        if reason is not None:
            return reason
        if x.dtype not in (torch.float32, torch.bfloat16) or inputs[1].dtype != torch.float32:
            return f"its kernels compute in float32, not in {x.dtype}"
        power_weight = options.get("power_weight")
        if power_weight is not None and power_weight.requires_grad:
            return "the gradient of power_weight has no kernel"
        return _rejected(recurrence, x, inputs[1], options) or (
            None if traced(x) else problem(recurrence, x.device)
        )


def _rejected(
    recurrence: str, x: torch.Tensor, h: torch.Tensor, options: Mapping[str, Any]
) -> str | None:
    """By what the call asks for."""
    if not x.shape[-1] or not h.shape[-1]:
        return "there is no synapse"
    if recurrence in ("modplast", "fast_weights"):
        if plan.square(h.shape[-1]) is None:
            return "more than 128 units have no GPU kernel in this recurrence"
        if options.get("steps", 1) != 1:
            return "Fast Weights with an inner loop of more than one turn has no kernel"
        return None
    if options["options"].associate != "previous":
        return "associate='new' has no GPU kernel"
    return kernels.rejects(**options)
