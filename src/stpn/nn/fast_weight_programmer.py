"""A linear fast-weight programmer (Schlag et al. 2021), as layer and as cell.

S = S + beta (v - S k) outer k, with features of keys and queries that are positive and sum to 1:
DPFP, products r_i r_(i+n) of r = relu([k; -k]) with itself shifted by n = 1 to `nu`. Nothing is
normalised after reading, as in the paper, whose layer has no convolution either. In full:
`stpn.ops.delta_rule.reference`; the parameters: `stpn.nn.memory`, with one row of `weight` per head
for beta.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor

from stpn.nn import checks
from stpn.nn.base import Parameters
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.memory import EPS, Memory
from stpn.ops import backends


class _FastWeightProgrammer(Memory):
    normalised = False
    rule = staticmethod(backends.delta_rule)

    def configure(
        self,
        *,
        nu: Annotated[int, "shifts of DPFP: a key has 2 nu head_size features"] = 1,
        **options: Any,
    ) -> None:
        super().configure(**options)
        self.nu = checks.positive_int("nu", nu)

    @property
    def key_size(self) -> int:
        return 2 * self.nu * self.head_size

    def further_rows(self) -> int:
        return self.heads

    def operands(
        self, q: Tensor, k: Tensor, v: Tensor, further: Tensor, p: Parameters
    ) -> tuple[Tensor | None, ...]:
        beta = self.unless_frozen(torch.sigmoid(further))
        return dpfp(q, self.nu), dpfp(k, self.nu), v, beta, None


def dpfp(x: Tensor, nu: int) -> Tensor:
    """Features (..., 2 nu K) of x (..., K) that sum to 1."""
    r = torch.relu(torch.cat([x, -x], -1))
    features = torch.cat([r * r.roll(shift, -1) for shift in range(1, nu + 1)], -1)
    return features / (features.sum(-1, keepdim=True) + EPS)


class FastWeightProgrammer(_FastWeightProgrammer, RecurrentCore):
    """Linear attention with DPFP features and the delta rule, used as `STPNr`."""


class FastWeightProgrammerCell(_FastWeightProgrammer, RecurrentCell):
    """One step of `FastWeightProgrammer`: `y, state = cell(x, state)`."""
