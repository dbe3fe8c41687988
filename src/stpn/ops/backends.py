"""Which implementation of a recurrence runs, and why.

Two backends: `native` (fused C++ kernels) and `reference` (plain PyTorch, the specification). By
default each call runs on the native kernels if they can do what it asks, else on the specification,
which is logged once per reason. `use_backend` and the environment variable STPN_BACKEND choose.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stpn.ops import reference, reference_rivals
from stpn.ops.power import static_power
from stpn.ops.reference import STPNOptions
from stpn.ops.tracing import needs_plain_pytorch, traced

_logger = logging.getLogger("stpn")

try:
    from stpn import _native
    from stpn.ops import native, native_rivals

    _native_problem = ""
except ImportError as error:
    native = native_rivals = None  # type: ignore[assignment]
    _native_problem = (
        f"the compiled module is missing ({error}); a C++ compiler was needed at install"
    )

NAMES = ("auto", "native", "reference")
_said: set[str] = set()


class _Choice(threading.local):
    """What this thread has chosen; other threads have no part in it."""

    name = "auto"


_choice = _Choice()
# All threads' choices but for "auto", the latest last: torch.compile, which cannot look at those of
# a thread, takes this one, and compiles anew when it has changed.
_choices: dict[int, str] = {}
_latest = "auto"


def _choose(name: str) -> None:
    global _latest
    _choice.name = name
    _choices.pop(threading.get_ident(), None)
    if name != _Choice.name:
        _choices[threading.get_ident()] = name
    _latest = next(reversed(list(_choices.values())), _Choice.name)


@dataclass(frozen=True)
class Backend:
    """One implementation: its name, whether it runs here, and why not, or what it runs on."""

    name: str
    usable: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {'usable' if self.usable else 'not usable'} ({self.detail})"


def backends() -> tuple[Backend, ...]:
    """All backends, the preferred one first."""
    if native is None:
        compiled = Backend("native", False, _native_problem)
    else:
        sets = ", ".join(_native.instruction_sets())
        detail = f"instruction set {_native.instruction_set()} of {sets}; CPU, float32 and float64"
        compiled = Backend("native", True, detail)
    return compiled, Backend("reference", True, "plain PyTorch, any device and option")


class use_backend:
    """Choose the backend for all later calls of this thread, or for a `with` block.

        stpn.use_backend("reference")
        with stpn.use_backend("native"): ...

    "auto" is the default. With "native" a call that the kernels cannot run is an error. As with
    `torch.no_grad`, other threads are not affected; the environment variable STPN_BACKEND chooses
    for all of them.
    """

    def __init__(self, name: str) -> None:
        if name not in NAMES:
            raise ValueError(f"backend: expected one of {', '.join(NAMES)}, got {name!r}")
        if name == "native" and native is None:
            raise ValueError(f"backend: 'native' is not usable: {_native_problem}")
        self._before = _choice.name
        _choose(name)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _choose(self._before)


def _start() -> None:
    global _latest
    wanted = os.environ.get("STPN_BACKEND", "auto")
    if wanted not in NAMES:
        raise ValueError(f"STPN_BACKEND: expected one of {', '.join(NAMES)}, got {wanted!r}")
    if native is None:
        if wanted == "native":
            raise ValueError(f"STPN_BACKEND: 'native' is not usable: {_native_problem}")
        if wanted == "auto":
            warnings.warn(
                f"stpn runs on plain PyTorch, which is slow: {_native_problem}", stacklevel=2
            )
    _Choice.name = _latest = wanted


_start()


def _runs_native(reason: str, *tensors: Tensor | None) -> bool:
    """Whether this call runs on the kernels; `reason` says why its options cannot."""
    compiling = torch.compiler.is_compiling()
    chosen = _latest if compiling else _choice.name
    if chosen == "reference" or native is None:
        return False
    reason = reason or needs_plain_pytorch() or ""
    for tensor in tensors:
        if tensor is not None and not reason:
            if tensor.device.type != "cpu":
                reason = f"the kernels run on the CPU, not on {tensor.device.type}"
            elif tensor.dtype not in (torch.float32, torch.float64):
                reason = f"the kernels compute in float32 and float64, not in {tensor.dtype}"
    if not reason:
        return True
    if chosen == "native":
        raise ValueError(f"backend 'native' cannot run this: {reason}")
    if not compiling and reason not in _said:
        _said.add(reason)
        _logger.warning("this runs on plain PyTorch, not on the native kernels: %s", reason)
    return False


def _unsupported(options: STPNOptions, norm_scale: Tensor | None = None) -> str:
    if options.norm_over != "neuron" and options.norm is not None:
        return "norm_over='layer' has no kernel"
    if norm_scale is not None:
        return "norm_scale=True has no kernel"
    if options.rule != "hebb":
        return f"rule={options.rule!r} has no kernel"
    if options.frozen:
        return "frozen plasticity has no kernel"
    return ""


def plus_static_power(
    power: Tensor,  # (B, T)
    u: Tensor,  # (B, T, D)
    weight: Tensor,  # (R, D)
    power_weight: Tensor,  # (D,)
    *,
    graph: bool,
) -> Tensor:
    """`power` and that of static synapses.

    Without a `graph` it has no gradients, and `power` may be overwritten.
    """
    if not graph and _runs_native("", u) and not traced(u):
        return native_rivals.plus_static_power(power, u, weight, power_weight)
    return power + static_power(u, weight, power_weight)


def stpn(x: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference.stpn` on the backend in use."""
    reason = _unsupported(options["options"], options.get("norm_scale"))
    if _runs_native(reason, x):
        return native.stpn(x, *tensors, **options)
    return reference.stpn(x, *tensors, **options)


def stpn_lstm(
    x: Tensor, *tensors: Any, **options: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """`reference.stpn_lstm` on the backend in use."""
    reason = _unsupported(options["options"], options.get("norm_scale"))
    if _runs_native(reason, x):
        return native.stpn_lstm(x, *tensors, **options)
    return reference.stpn_lstm(x, *tensors, **options)


def stpn_step_(x: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`reference.stpn_step_` on the backend in use."""
    if _runs_native(_unsupported(options["options"]), x):
        return native.stpn_step_(x, *tensors, **options)
    return reference.stpn_step_(x, *tensors, **options)


def bound_stpn_step(x: Tensor, *tensors: Any, **options: Any) -> Callable[[], Tensor] | None:
    """The kernel of `stpn_step_`, ready to run on these tensors; None if it cannot."""
    if _runs_native(_unsupported(options["options"]), x):
        return native.BoundStep(x, *tensors, **options)
    return None


def stpn_lstm_step_(x: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`reference.stpn_lstm_step_` on the backend in use."""
    if _runs_native(_unsupported(options["options"]), x):
        return native.stpn_lstm_step_(x, *tensors, **options)
    return reference.stpn_lstm_step_(x, *tensors, **options)


def modplast(p: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference_rivals.modplast` on the backend in use."""
    if _runs_native("", p):
        return native_rivals.modplast(p, *tensors, **options)
    return reference_rivals.modplast(p, *tensors, **options)


def fast_weights(p: Tensor, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference_rivals.fast_weights` on the backend in use."""
    reason = ""
    if options.get("steps", 1) != 1:
        reason = "Fast Weights with an inner loop of more than one turn has no kernel"
    elif options.get("decay", 0.9) <= 0:
        reason = "Fast Weights without a positive decay has no kernel"
    if _runs_native(reason, p):
        return native_rivals.fast_weights(p, *tensors, **options)
    return reference_rivals.fast_weights(p, *tensors, **options)
