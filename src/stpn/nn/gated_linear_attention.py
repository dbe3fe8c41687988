"""Gated linear attention (GLA; Yang et al. 2024), as layer and as cell.

S = S diag(a) + v outer k, where the input decides for every key how much of it is kept: a =
sigmoid(w_gate (w x) + gate_bias)^(1/16), through a bottleneck of `rank` units. What is read is
normalised and gated. In full: `stpn.ops.gla.reference`; the parameters: `stpn.nn.memory`, with
`rank` rows of `weight` for the bottleneck, `weight_gate_lk` (N K, rank) and `gate_bias_lk` (N K).
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.memory import Memory
from stpn.ops import backends
from stpn.ops.power import static_power

TEMPERATURE = 16.0  # as published: gates start near 1


class _GatedLinearAttention(Memory):
    gated = True
    rule = staticmethod(backends.gated_linear_attention)

    def configure(
        self,
        *,
        rank: Annotated[int, "units of the bottleneck before the gates"] = 16,
        **options: Any,
    ) -> None:
        super().configure(**options)
        self.rank = checks.positive_int("rank", rank)

    def further_rows(self) -> int:
        return self.rank

    def further_shapes(self) -> dict[str, tuple[int, ...]]:
        keys = self.heads * self.head_size
        return {"weight_gate": (keys, self.rank), "gate_bias": (keys,)}

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        super().init_parameters(p, input_size)
        k = 1 / math.sqrt(self.rank)
        init.uniform_(p["weight_gate"], -k, k)
        init.uniform_(p["gate_bias"], -k, k)

    def operands(
        self, q: Tensor, k: Tensor, v: Tensor, further: Tensor, p: Parameters
    ) -> tuple[Tensor | None, ...]:
        gate = functional.linear(further, p["weight_gate"], p["gate_bias"])  # (B, T, N K)
        g = functional.logsigmoid(gate).unflatten(-1, (self.heads, -1)) / TEMPERATURE
        q = q / math.sqrt(self.head_size)
        return q, k, self.unless_frozen(v), self.unless_frozen(g)

    def further_power(self, further: Tensor, p: Parameters) -> Tensor:
        return static_power(further, p["weight_gate"])


class GatedLinearAttention(_GatedLinearAttention, RecurrentCore):
    """Linear attention with a gate per key, used as `STPNr`; state: `MemoryState(s, window)`."""


class GatedLinearAttentionCell(_GatedLinearAttention, RecurrentCell):
    """One step of `GatedLinearAttention`: `y, state = cell(x, state)`."""
