"""The backend `native`: every recurrence on the fused C++ kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stpn.ops.registry import Backend
from stpn.ops.tracing import needs_plain_pytorch

_functions: dict[str, Callable[..., Any]] = {}
_rejections: dict[str, Callable[..., str | None]] = {}  # by options
_problem: str | None = None
_detail = ""

try:
    from stpn import _native
    from stpn.ops import native_power
    from stpn.ops.fast_weights import native as fast_weights
    from stpn.ops.modplast import native as modplast
    from stpn.ops.stpn import native as stpn
    from stpn.ops.stpn.kernels import rejects as without_a_kernel
except ImportError as error:
    _problem = f"the compiled module is missing ({error}); a C++ compiler was needed at install"
else:
    _functions = {
        "stpn": stpn.stpn,
        "stpn_lstm": stpn.stpn_lstm,
        "stpn_step_": stpn.stpn_step_,
        "stpn_lstm_step_": stpn.stpn_lstm_step_,
        "bound_stpn_step": stpn.BoundStep,
        "modplast": modplast.modplast,
        "fast_weights": fast_weights.fast_weights,
        "plus_static_power": native_power.plus_static_power,
    }
    _rejections = {name: without_a_kernel for name in _functions if "stpn" in name}
    _rejections["fast_weights"] = fast_weights.rejects
    _detail = (
        f"instruction set {_native.instruction_set()} of {', '.join(_native.instruction_sets())}; "
        "CPU, float32 and float64"
    )


class Native(Backend):
    name = "native"
    detail = _detail
    recurrences = _functions

    def unusable(self) -> str | None:
        return _problem

    def rejects(
        self, recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> str | None:
        reason = needs_plain_pytorch()
        if reason is not None:
            return reason
        x = inputs[0]
        if x.device.type != "cpu":
            return f"the kernels run on the CPU, not on {x.device.type}"
        if x.dtype not in (torch.float32, torch.float64):
            return f"the kernels compute in float32 and float64, not in {x.dtype}"
        power_weight = options.get("power_weight")
        if power_weight is not None and power_weight.requires_grad:
            return "the gradient of power_weight has no kernel"
        by_options = _rejections.get(recurrence)
        return by_options(**options) if by_options is not None else None
