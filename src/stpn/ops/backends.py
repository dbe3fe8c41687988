"""The recurrences on the backend in use, and the backends that come with the package."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from stpn.ops import reference
from stpn.ops.chunked import Chunked
from stpn.ops.compiled import Compiled
from stpn.ops.gpu.backend import Triton
from stpn.ops.native import Native
from stpn.ops.reference import Reference, STPNOptions
from stpn.ops.registry import (
    Backend,
    backends,
    choose_by_environment,
    chosen,
    dispatched,
    implementation,
    register_backend,
    use_backend,
)
from stpn.ops.tracing import traced

__all__ = [
    "Backend", "backends", "bound_stpn_step", "delta_rule", "fast_weights",
    "gated_linear_attention", "gradient_plasticity", "modplast", "plus_static_power",
    "register_backend", "stpn", "stpn_lstm", "stpn_lstm_step_", "stpn_step_", "use_backend",
]  # fmt: skip

register_backend(Reference(), before=None)
register_backend(Native())
register_backend(Triton())
register_backend(Chunked())
register_backend(Compiled())
choose_by_environment()
if not Native().usable and chosen() == "auto":
    warnings.warn(f"stpn runs on plain PyTorch, which is slow: {Native().unusable()}", stacklevel=2)

stpn = dispatched(reference.stpn)
stpn_lstm = dispatched(reference.stpn_lstm)
stpn_step_ = dispatched(reference.stpn_step_)
stpn_lstm_step_ = dispatched(reference.stpn_lstm_step_)
modplast = dispatched(reference.modplast)
fast_weights = dispatched(reference.fast_weights)
delta_rule = dispatched(reference.delta_rule)
gated_linear_attention = dispatched(reference.gated_linear_attention)
gradient_plasticity = dispatched(reference.gradient_plasticity)
_plus_static_power = dispatched(reference.plus_static_power)


def bound_stpn_step(
    x: Tensor,
    h: Tensor,
    f: Tensor,
    parameters: Callable[[], Iterable[Any]],
    *,
    options: STPNOptions,
) -> Callable[[], Tensor] | None:
    """`stpn_step_`, ready to run on these tensors, if the backend in use has that."""
    bind = implementation("bound_stpn_step", (x, h, f, parameters), {"options": options})
    return None if bind is None else bind(x, h, f, parameters, options=options)


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
    run = reference.plus_static_power if graph or traced(u) else _plus_static_power
    return run(power, u, weight, power_weight)
