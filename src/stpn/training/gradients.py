"""From a loss to changed parameters: backward, clip, optimizer step at a decaying rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stpn.errors import NonFinite
from stpn.training.finite import diagnose
from stpn.training.optim import forget_gradients


class Gradients:
    """`step(loss, when)` is one gradient step; `decay(share)` scales the learning rate."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float | None
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._max_norm = math.inf if max_norm is None else max_norm
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._rates = [group["lr"] for group in optimizer.param_groups]

    def decay(self, share: float) -> None:
        """Let each group learn at `share` of the rate it was built with."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share

    def step(self, loss: Tensor, when: str) -> float:
        """The norm of the gradient before it was clipped; NonFinite if it is not a number."""
        forget_gradients(self.optimizer)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._max_norm).item()
        if not math.isfinite(norm):
            raise NonFinite(f"the gradient's norm became {norm} at {when}: {diagnose(self.model)}")
        self.optimizer.step()
        return norm
