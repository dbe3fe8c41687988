"""Modulated plasticity on the C++ kernels. Same signature and same results as `reference`."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from stpn import _native
from stpn._native import Cell, Norm
from stpn.ops.modplast import reference
from stpn.ops.operands import Operand, Sequence, Start, last_size, sequence_sizes
from stpn.ops.operators import Operator, Sizes


class Inputs(NamedTuple):
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


class Results(NamedTuple):
    y: Annotated[Tensor, Sequence("B T H")]
    f_T: Annotated[Tensor, Operand("B H H")]
    power: Annotated[Tensor | None, Operand("B T")]


class _ModPlast(Operator[Inputs, Results]):
    name = "modplast"
    inputs, results = Inputs, Results

    def sizes(self, inputs: Inputs) -> Sizes:
        batch, steps, _ = sequence_sizes("p", inputs.p)
        hidden = last_size("h0", inputs.h0)
        return Sizes(batch, steps, hidden, hidden, hidden, hidden)

    def kind(self, inputs: Inputs) -> tuple[int, int]:
        return Cell.modplast, Norm.none

    def set_options(self, call: _native.Call, inputs: Inputs) -> None:
        reference.check_modulation(inputs.v, inputs.d, inputs.eta)
        call.recurrent, call.clamp = 1, 1.0

    def gives(self, inputs: Inputs) -> tuple[bool, ...]:
        return True, True, inputs.power_weight is not None

    def specification(self, inputs: Inputs) -> Results:
        tensors: Any
        *tensors, reset, lengths, power_weight = inputs
        return Results(
            *reference.modplast(*tensors, reset=reset, lengths=lengths, power_weight=power_weight)
        )


operator = _ModPlast()


def modplast(
    p: Tensor, h0: Tensor, hebb0: Tensor, w: Tensor, alpha: Tensor, v: Tensor | None,
    d: Tensor | None, eta: Tensor | None, *, reset: Tensor | None = None,
    lengths: Tensor | None = None, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.modplast`."""
    return operator.apply(Inputs(p, h0, hebb0, w, alpha, v, d, eta, reset, lengths, power_weight))
