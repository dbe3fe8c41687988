"""Modulated plasticity and fast weights on the C++ kernels.

Same signatures and same results as `reference_rivals`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from stpn import _native
from stpn._native import Cell, Norm
from stpn.ops import reference_rivals
from stpn.ops.operands import (
    Operand,
    Sequence,
    Start,
    float_dtype,
    in_rows,
    last_size,
    sequence_sizes,
)
from stpn.ops.operators import Operator, Sizes


def _sizes(p: Tensor, h0: Tensor) -> Sizes:
    batch, steps, _ = sequence_sizes("p", p)
    hidden = last_size("h0", h0)
    return Sizes(batch, steps, hidden, hidden, hidden, hidden)


class Results(NamedTuple):
    y: Annotated[Tensor, Sequence("B T H")]
    f_T: Annotated[Tensor, Operand("B H H")]
    power: Annotated[Tensor | None, Operand("B T")]


# --- Modulated plasticity -----------------------------------------------------------------------


class ModPlastInputs(NamedTuple):
    p: Annotated[Tensor, Sequence("B T H", field="x")]
    h0: Annotated[Tensor, Start("B H")]
    f0: Annotated[Tensor, Start("B H H")]
    weight: Annotated[Tensor, Operand("H H")]
    alpha: Annotated[Tensor, Operand("H H")]
    v: Annotated[Tensor | None, Operand("H", field="mod_v")]
    d: Annotated[Tensor | None, Operand("", field="mod_d")]
    eta: Annotated[Tensor | None, Operand("")]
    reset: Annotated[Tensor | None, Sequence("B T", dtype=torch.bool, differentiable=False)]
    lengths: Annotated[Tensor | None, Operand("B", dtype=torch.int64, differentiable=False)]
    power_weight: Annotated[Tensor | None, Operand("H", differentiable=False)]


class _ModPlast(Operator[ModPlastInputs, Results]):
    name = "modplast"
    inputs, results = ModPlastInputs, Results

    def sizes(self, inputs: ModPlastInputs) -> Sizes:
        return _sizes(inputs.p, inputs.h0)

    def kind(self, inputs: ModPlastInputs) -> tuple[int, int]:
        return Cell.modplast, Norm.none

    def set_options(self, call: _native.Call, inputs: ModPlastInputs) -> None:
        reference_rivals.check_modulation(inputs.v, inputs.d, inputs.eta)
        call.recurrent, call.clamp = 1, 1.0

    def gives(self, inputs: ModPlastInputs) -> tuple[bool, ...]:
        return True, True, inputs.power_weight is not None

    def specification(self, inputs: ModPlastInputs) -> Results:
        tensors: Any
        *tensors, reset, lengths, power_weight = inputs
        return Results(
            *reference_rivals.modplast(
                *tensors, reset=reset, lengths=lengths, power_weight=power_weight
            )
        )


_modplast = _ModPlast()


def modplast(
    p: Tensor, h0: Tensor, hebb0: Tensor, w: Tensor, alpha: Tensor, v: Tensor | None,
    d: Tensor | None, eta: Tensor | None, *, reset: Tensor | None = None,
    lengths: Tensor | None = None, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference_rivals.modplast`."""
    return _modplast.apply(
        ModPlastInputs(p, h0, hebb0, w, alpha, v, d, eta, reset, lengths, power_weight)
    )


# --- Fast weights -------------------------------------------------------------------------------


class FastWeightsInputs(NamedTuple):
    p: Annotated[Tensor, Sequence("B T H", field="x")]
    h0: Annotated[Tensor, Start("B H")]
    f0: Annotated[Tensor, Start("B H H")]
    weight: Annotated[Tensor, Operand("H H")]
    ln_weight: Annotated[Tensor, Operand("H")]
    ln_bias: Annotated[Tensor, Operand("H")]
    reset: Annotated[Tensor | None, Sequence("B T", dtype=torch.bool, differentiable=False)]
    lengths: Annotated[Tensor | None, Operand("B", dtype=torch.int64, differentiable=False)]
    power_weight: Annotated[Tensor | None, Operand("H", differentiable=False)]
    decay: float
    rate: float
    eps: float


class _FastWeights(Operator[FastWeightsInputs, Results]):
    name = "fast_weights"
    inputs, results = FastWeightsInputs, Results

    def sizes(self, inputs: FastWeightsInputs) -> Sizes:
        return _sizes(inputs.p, inputs.h0)

    def kind(self, inputs: FastWeightsInputs) -> tuple[int, int]:
        return Cell.fast_weights, Norm.none

    def set_options(self, call: _native.Call, inputs: FastWeightsInputs) -> None:
        if not 0 < inputs.decay < math.inf:
            raise ValueError(f"decay: expected a positive number, got {inputs.decay}")
        for name in ("rate", "eps"):
            if not math.isfinite(getattr(inputs, name)):
                raise ValueError(f"{name}: expected a finite number, got {getattr(inputs, name)}")
        call.recurrent = 1
        call.decay, call.rate, call.ln_eps = inputs.decay, inputs.rate, inputs.eps

    def gives(self, inputs: FastWeightsInputs) -> tuple[bool, ...]:
        return True, True, inputs.power_weight is not None

    def specification(self, inputs: FastWeightsInputs) -> Results:
        p, h0, f0, weight, ln_weight, ln_bias, reset, lengths, power_weight, *_ = inputs
        return Results(
            *reference_rivals.fast_weights(
                p, h0, f0, weight, ln_weight, ln_bias, decay=inputs.decay, rate=inputs.rate,
                eps=inputs.eps, reset=reset, lengths=lengths, power_weight=power_weight,
            )
        )  # fmt: skip


_fast_weights = _FastWeights()


def fast_weights(
    p: Tensor, h0: Tensor, a0: Tensor, w_h: Tensor, ln_weight: Tensor, ln_bias: Tensor, *,
    decay: float = 0.9, rate: float = 0.5, steps: int = 1, eps: float = 1e-5,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference_rivals.fast_weights`, for one turn of the inner loop and a positive decay."""
    return _fast_weights.apply(
        FastWeightsInputs(
            p, h0, a0, w_h, ln_weight, ln_bias, reset, lengths, power_weight, decay, rate, eps
        )
    )


# --- Their input, which is not plastic --------------------------------------------------------


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
