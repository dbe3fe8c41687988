"""Long-term weights with rows of norm 1: the control for an STPN's normalised efficacies."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from torch import Tensor

Normalize: TypeAlias = Annotated[
    bool, "divide each neuron's weights by their norm, before anything short-term is added to them"
]


def normalised_rows(*weights: Tensor) -> tuple[Tensor, ...]:
    """Matrices (R, ...) that lie side by side, each row of all of them divided by its norm.

    A row that is all zero is divided by 1, as in an STPN.
    """
    norm = torch.linalg.vector_norm(torch.cat(weights, dim=1), dim=1, keepdim=True)  # (R, 1)
    divisor = torch.where(norm > 0, norm, 1.0)
    return tuple(weight / divisor for weight in weights)
