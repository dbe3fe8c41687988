"""DeltaNet (Yang et al. 2024), as layer and as cell.

S = S + beta (v - S k) outer k: what S holds for a key is replaced, by a share beta that the input
decides. Keys and queries are SiLU features of length 1. In full: `stpn.ops.delta_rule.reference`;
the parameters: `stpn.nn.memory`, with one row of `weight` per head for beta.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stpn.nn.base import Parameters
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.memory import Memory, Taps, normalised_length
from stpn.ops import backends


class _DeltaNet(Memory):
    activated = True
    rule = staticmethod(backends.delta_rule)

    def configure(self, *, conv: Taps = 4, **options: Any) -> None:
        super().configure(conv=conv, **options)

    def further_rows(self) -> int:
        return self.heads

    def operands(
        self, q: Tensor, k: Tensor, v: Tensor, further: Tensor, p: Parameters
    ) -> tuple[Tensor | None, ...]:
        beta = self.unless_frozen(torch.sigmoid(further))
        return normalised_length(q), normalised_length(k), v, beta, None


class DeltaNet(_DeltaNet, RecurrentCore):
    """Linear attention with the delta rule, used as `STPNr`; state: `MemoryState(s, window)`.

    core = DeltaNet(37, 16, heads=2, batch_first=True)
    y, state = core(x)                        # (B, T, 37) -> (B, T, 16)
    """


class DeltaNetCell(_DeltaNet, RecurrentCell):
    """One step of `DeltaNet`: `y, state = cell(x, state)`."""
