"""What the kernels of the STPN recurrences, on CPU and GPU, do not have."""

from __future__ import annotations

from torch import Tensor

from stpn.ops.stpn.reference import STPNOptions


def rejects(
    *,
    options: STPNOptions,
    norm_scale: Tensor | None = None,
    layer_norm: Tensor | None = None,
    **_: object,
) -> str | None:
    """Why there is no kernel for these options, or None."""
    if options.norm == "f":
        return "norm='f' has no kernel"
    if layer_norm is not None:
        return "layer_norm=True has no kernel"
    if options.norm_over != "neuron" and options.norm is not None:
        return "norm_over='layer' has no kernel"
    if norm_scale is not None:
        return "norm_scale=True has no kernel"
    if options.rule != "hebb":
        return f"rule={options.rule!r} has no kernel"
    if options.frozen:
        return "frozen plasticity has no kernel"
    return None
