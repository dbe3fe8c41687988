"""HebbFF (Tyulmankov et al. 2022): a feed-forward layer with one uniform plasticity rule.

    h = sigmoid((W + A) x + b),  A' = lambda A + eta (h outer x)

This is an STPNf without normalisation and with scalar lambda and gamma = eta, and runs as one. What
sets it apart are the constraints on the two scalars, keyword-only:

    constraint="anti-hebbian"   lambda = sigmoid(free), eta = -exp(free): every repetition weakens
                                a response. Starts: lambda = 0.99, eta = -5 / H. (ART, Maze)
    constraint="clipped"        lambda clipped to [0, 1], eta free. Starts: lambda = 0.99,
                                eta = -5 / I. (familiarity)
    init="uniform"              W, b ~ U(-1/sqrt(I), 1/sqrt(I))
    init="familiarity"          W ~ N(0, 1/I), b ~ N(0, 1): mean and variance

Parameters of layer k: `weight_lk` (H, I), `bias_lk` (H), and `lambda_lk`, `eta_lk` (), which hold
the free parameters of the constraint; `plasticity()` gives lambda and eta themselves. Cells go
without the suffix, and write `lambda_`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import init as initialise

from stpn.nn import checks
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence
from stpn.nn.state import STPNState
from stpn.nn.time import last_step
from stpn.ops import backends
from stpn.ops.reference import STPNOptions

Constraint: TypeAlias = Literal["anti-hebbian", "clipped"]
Init: TypeAlias = Literal["uniform", "familiarity"]

_OPTIONS = STPNOptions(recurrent=False, norm=None, nonlinearity="sigmoid")
_FROZEN = replace(_OPTIONS, frozen=True)
_LAMBDA = 0.99  # at the start


class _Clipped(torch.autograd.Function):
    """Clip to [0, 1]; gradients that push a clipped value further out are dropped.

    `clamp` would drop those that bring it back too: once an optimiser had stepped over the edge,
    lambda would stay there for good.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.clamp(0.0, 1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        outward = ((value >= 1) & (gradient < 0)) | ((value <= 0) & (gradient > 0))
        return gradient.masked_fill(outward, 0.0)


class _HebbFF(Recurrence):
    state_type = STPNState
    recurrent = False

    def _configure(self, constraint: Constraint, init: Init) -> None:
        self.constraint = checks.choice("constraint", constraint, ("anti-hebbian", "clipped"))
        self.init = checks.choice("init", init, ("uniform", "familiarity"))

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, input_size)

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        self._register("weight", suffix, (self.hidden_size, input_size), factory)
        self._register("bias", suffix, (self.hidden_size,) if self.has_bias else None, factory)
        self._register("lambda", suffix or "_", (), factory)
        self._register("eta", suffix, (), factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k = 1 / math.sqrt(input_size)
        weight, bias = getattr(self, f"weight{suffix}"), getattr(self, f"bias{suffix}")
        if self.init == "familiarity":
            initialise.normal_(weight, 0, k)
            if bias is not None:
                initialise.normal_(bias, 0, 1)
        else:
            initialise.uniform_(weight, -k, k)
            if bias is not None:
                initialise.uniform_(bias, -k, k)
        if self.constraint == "anti-hebbian":
            lambda_, eta = math.log(_LAMBDA / (1 - _LAMBDA)), math.log(5 / self.hidden_size)
        else:
            lambda_, eta = _LAMBDA, -5 / input_size
        initialise.constant_(getattr(self, f"lambda{suffix or '_'}"), lambda_)
        initialise.constant_(getattr(self, f"eta{suffix}"), eta)

    def plasticity(self) -> list[tuple[Tensor, Tensor]]:
        """lambda and eta as they act, of each layer and direction in the order of the state."""
        return [self._plasticity(suffix) for _, suffix in self._layers()]

    def _plasticity(self, suffix: str) -> tuple[Tensor, Tensor]:
        lambda_, eta = self._parameter("lambda", suffix or "_"), self._parameter("eta", suffix)
        if self.constraint == "anti-hebbian":
            return lambda_.sigmoid(), -eta.exp()
        return _Clipped.apply(lambda_), eta

    def _tensors(self, suffix: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        lambda_, eta = self._plasticity(suffix)
        weight, bias = self._parameter("weight", suffix), self._parameter("bias", suffix)
        return weight, bias, lambda_.reshape(1, 1), eta.reshape(1, 1)

    def _run(
        self,
        x: Tensor,
        state: STPNState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, STPNState, Tensor | None]:
        y, f, power = backends.stpn(
            x,
            state.h,
            state.f,
            *self._tensors(suffix),
            options=_FROZEN if self._frozen else _OPTIONS,
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNState(last_step(y, lengths), f), power

    def _step(
        self, x: Tensor, state: STPNState, suffix: str, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, power = backends.stpn_step_(
            x,
            state.h,
            state.f,
            *self._tensors(suffix),
            options=_FROZEN if self._frozen else _OPTIONS,
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power

    def _synapses(self, state: STPNState, suffix: str) -> tuple[Tensor, Tensor]:
        return state.f, self._parameter("weight", suffix) + state.f

    def extra_repr(self) -> str:
        shown = {
            "constraint": (self.constraint, "anti-hebbian"),
            "init": (self.init, "uniform"),
        }
        changed = [f"{name}={value!r}" for name, (value, usual) in shown.items() if value != usual]
        return ", ".join([super().extra_repr(), *changed])


class HebbFF(_HebbFF, RecurrentCore):
    """Feed-forward layer with uniform plasticity, used as `STPNf` is; state: `STPNState(h, f)`.

    core = HebbFF(100, 100, batch_first=True, constraint="clipped", init="familiarity")
    y, state = core(x)                        # (B, T, 100) -> (B, T, 100)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        constraint: Constraint = "anti-hebbian",
        init: Init = "uniform",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(constraint, init)
        self._build(device, dtype)


class HebbFFCell(_HebbFF, RecurrentCell):
    """One step of `HebbFF`: `h, state = cell(x, state)`, used as `STPNfCell`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        constraint: Constraint = "anti-hebbian",
        init: Init = "uniform",
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(constraint, init)
        self._build(device, dtype)
