"""Fast weights on the C++ kernels. Same signature and same results as `reference`."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from stpn import _native
from stpn._native import Cell, Norm
from stpn.ops.fast_weights import reference
from stpn.ops.operands import Operand, Sequence, Start, last_size, sequence_sizes
from stpn.ops.operators import Operator, Sizes


class Inputs(NamedTuple):
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


class Results(NamedTuple):
    y: Annotated[Tensor, Sequence("B T H")]
    f_T: Annotated[Tensor, Operand("B H H")]
    power: Annotated[Tensor | None, Operand("B T")]


class _FastWeights(Operator[Inputs, Results]):
    name = "fast_weights"
    inputs, results = Inputs, Results

    def sizes(self, inputs: Inputs) -> Sizes:
        batch, steps, _ = sequence_sizes("p", inputs.p)
        hidden = last_size("h0", inputs.h0)
        return Sizes(batch, steps, hidden, hidden, hidden, hidden)

    def kind(self, inputs: Inputs) -> tuple[int, int]:
        return Cell.fast_weights, Norm.none

    def set_options(self, call: _native.Call, inputs: Inputs) -> None:
        decay, rate, eps = inputs.decay, inputs.rate, inputs.eps
        if not 0 < decay < math.inf:
            raise ValueError(f"decay: expected a positive number, got {decay}")
        if not (math.isfinite(rate) and math.isfinite(eps)):
            raise ValueError(f"rate, eps: expected finite numbers, got {rate}, {eps}")
        call.recurrent = 1
        call.decay, call.rate, call.ln_eps = decay, rate, eps

    def gives(self, inputs: Inputs) -> tuple[bool, ...]:
        return True, True, inputs.power_weight is not None

    def specification(self, inputs: Inputs) -> Results:
        p, h0, f0, weight, ln_weight, ln_bias, reset, lengths, power_weight, *_ = inputs
        return Results(
            *reference.fast_weights(
                p, h0, f0, weight, ln_weight, ln_bias, decay=inputs.decay, rate=inputs.rate,
                eps=inputs.eps, reset=reset, lengths=lengths, power_weight=power_weight,
            )
        )  # fmt: skip


operator = _FastWeights()


def fast_weights(
    p: Tensor, h0: Tensor, a0: Tensor, w_h: Tensor, ln_weight: Tensor, ln_bias: Tensor, *,
    decay: float = 0.9, rate: float = 0.5, steps: int = 1, eps: float = 1e-5,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.fast_weights`, for one turn of the inner loop and a positive decay."""
    return operator.apply(
        Inputs(p, h0, a0, w_h, ln_weight, ln_bias, reset, lengths, power_weight, decay, rate, eps)
    )


def rejects(*, steps: int = 1, decay: float = 0.9, **_: object) -> str | None:
    """Why there is no kernel for these options, or None."""
    if steps != 1:
        return "Fast Weights with an inner loop of more than one turn has no kernel"
    if decay <= 0:
        return "Fast Weights without a positive decay has no kernel"
    return None
