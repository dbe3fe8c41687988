"""Holding the synapses still, and looking at them step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stpn.nn.base import Parameters, Recurrence
from stpn.nn.core import RecurrentCore


@contextmanager
def frozen_plasticity(model: nn.Module) -> Iterator[None]:
    """A context in which every plastic core inside `model` keeps the synapses that it was given.

        y, state = layer(x)                      # learns about x
        with stpn.frozen_plasticity(model):
            y, state = layer(z, state)           # answers with what it learnt, F unchanged

    The rest of the state goes on, and a reset still empties all of it. Cores without short-term
    weights are not affected. Contexts nest.
    """
    cores = [module for module in model.modules() if isinstance(module, Recurrence)]
    for core in cores:
        core.freezes += 1
    try:
        yield
    finally:
        for core in cores:
            core.freezes -= 1


@dataclass(frozen=True)
class LayerTrace:
    """One layer in one direction, batch first, in the order of time; unbatched goes without B."""

    h: Tensor
    """(B, T, H) activations."""
    f: Tensor
    """(B, T, R, D) short-term weights as used at each step, so f[:, 0] is the initial state's."""
    g: Tensor
    """(B, T, R, D) efficacies as used at each step, normalised where the model normalises."""
    power: Tensor
    """(B, T) sum over synapses of u_j^2 |g_ij|."""

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in vars(self).items())
        return f"LayerTrace({shapes})"


@dataclass(frozen=True)
class Trace:
    """A sequence with the synapses of every step."""

    y: Tensor
    """What the layer returns."""
    state: tuple[Any, ...]
    """The final state, as the layer returns it."""
    layers: tuple[LayerTrace, ...]
    """One per layer and direction, in the order of the state."""

    def __repr__(self) -> str:
        layers = ", ".join(map(repr, self.layers))
        return f"Trace(y {tuple(self.y.shape)}, layers ({layers}))"

    @property
    def h(self) -> Tensor:
        return self._only.h

    @property
    def f(self) -> Tensor:
        return self._only.f

    @property
    def g(self) -> Tensor:
        return self._only.g

    @property
    def power(self) -> Tensor:
        return self._only.power

    @property
    def _only(self) -> LayerTrace:
        if len(self.layers) > 1:
            raise ValueError(
                f"this trace has {len(self.layers)} layers and directions: use trace.layers[k]"
            )
        return self.layers[0]


@torch.no_grad()
def trace(layer: RecurrentCore, x: Tensor, state: tuple[Any, ...] | None = None) -> Trace:
    """Run `layer(x, state)` and keep F and G of every step.

        trace = stpn.trace(layer, x)
        trace.f        # (B, T, H, D), f[:, t] is what step t used; trace.g the efficacies

    `x` is a tensor, batched or not. Memory grows with every step: this is for plots.
    """
    if not isinstance(layer, RecurrentCore):
        raise TypeError(f"layer: expected a recurrent core, got {type(layer).__name__}")
    recorded: list[LayerTrace] = []

    def run(
        x: Tensor,
        state: Any,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, Any, Tensor | None]:
        everything = x.new_ones(x.shape[-1] + layer.hidden_size * layer.recurrent)  # (D,)
        steps = []
        for t in range(x.shape[1]):
            f, g = (value.expand(len(x), *value.shape[-2:]) for value in layer.synapses(state, p))
            h, state, power = layer.run(x[:, t : t + 1], state, p, None, None, everything)
            assert power is not None
            steps.append((h.squeeze(1), f, g, power.squeeze(1)))
        h, f, g, power = (torch.stack(values, 1) for values in zip(*steps, strict=True))
        forwards = (h, f, g, power)
        reverse = layer.layers[len(recorded)].suffix.endswith("_reverse")
        in_time = (v.flip(1) for v in forwards) if reverse else forwards
        recorded.append(LayerTrace(*(v if batched else v.squeeze(0) for v in in_time)))
        return h, state, None  # a look is no run: meters do not count it

    batched = isinstance(x, Tensor) and x.dim() == 3
    y, final = layer.forward_by(run, x, state)
    return Trace(y, final, tuple(recorded))
