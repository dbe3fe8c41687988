"""`power.plus_static_power` on a C++ kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from stpn import _native
from stpn.ops.operands import Operand, float_dtype, in_rows, sequence_sizes


def plus_static_power(power: Tensor, u: Tensor, weight: Tensor, power_weight: Tensor) -> Tensor:
    """`power` (B, T) + `static_power(u, weight, power_weight)`, without gradients.

    `power` may be overwritten. In torch's operations this would be an eighth of the time of metered
    Fast Weights on ART.
    """
    dtype = float_dtype("u", u)
    batch, steps, inputs = sequence_sizes("u", u)
    rows = len(weight)
    for name, tensor, shape in (
        ("u", u, (batch, steps, inputs)),
        ("power", power, (batch, steps)),
        ("weight", weight, (rows, inputs)),
        ("power_weight", power_weight, (inputs,)),
    ):
        Operand("", name=name).check(tensor, shape, dtype)
    power = power.detach().resolve_neg().contiguous()
    power_weight = power_weight.resolve_neg().contiguous()
    u, weight = in_rows(u.resolve_neg()), in_rows(weight.resolve_neg())
    _native.add_static_power(
        power.data_ptr(), u.data_ptr(), u.stride(0), u.stride(1), weight.data_ptr(),
        weight.stride(0), power_weight.data_ptr(), batch, steps, inputs, rows,
        dtype == torch.float64,
    )  # fmt: skip
    return power
