"""Gated DeltaNet (Yang et al. 2025), as layer and as cell.

S = a S, then S = S + beta (v - S k) outer k: DeltaNet whose heads also forget, by a factor a that
the input decides, a = exp(-exp(a_log) softplus(w x + a_bias)). What is read is gated. In full:
`stpn.ops.delta_rule.reference`; the parameters: `stpn.nn.memory`, with one row of `weight` per head
for beta and one for a, and `a_log_lk`, `a_bias_lk` (N).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn.base import Parameters
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.memory import Memory, Taps, normalised_length
from stpn.ops import backends


class _GatedDeltaNet(Memory):
    activated = True
    gated = True
    rule = staticmethod(backends.delta_rule)

    def configure(self, *, conv: Taps = 4, **options: Any) -> None:
        super().configure(conv=conv, **options)

    def further_rows(self) -> int:
        return 2 * self.heads

    def further_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a_log": (self.heads,), "a_bias": (self.heads,)}

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        super().init_parameters(p, input_size)
        init.uniform_(p["a_log"], 1, 16).log_()
        # softplus(a_bias) is spread evenly, on a scale of logarithms, between 0.001 and 0.1
        start = init.uniform_(p["a_bias"], math.log(1e-3), math.log(0.1)).exp_()
        p["a_bias"].copy_(start + torch.log(-torch.expm1(-start)))

    def operands(
        self, q: Tensor, k: Tensor, v: Tensor, further: Tensor, p: Parameters
    ) -> tuple[Tensor | None, ...]:
        share, forgetting = further.chunk(2, -1)  # (B, T, N)
        beta = torch.sigmoid(share)
        # softplus by logsigmoid, which every reader of ONNX has in double precision, too
        g = p["a_log"].exp() * functional.logsigmoid(-(forgetting + p["a_bias"]))
        beta, g = self.unless_frozen(beta), self.unless_frozen(g)
        return normalised_length(q), normalised_length(k), v, beta, g


class GatedDeltaNet(_GatedDeltaNet, RecurrentCore):
    """DeltaNet with forgetting and an output gate, used as `STPNr`; state: `MemoryState`."""


class GatedDeltaNetCell(_GatedDeltaNet, RecurrentCell):
    """One step of `GatedDeltaNet`: `y, state = cell(x, state)`."""
