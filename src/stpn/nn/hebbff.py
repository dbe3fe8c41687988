"""HebbFF (Tyulmankov et al. 2022): a feed-forward layer with one uniform plasticity rule.

    h = sigmoid((W + A) x + b),  A' = lambda A + eta (h outer x)

This is an STPNf without normalisation and with scalar lambda and gamma = eta, and runs as one. What
sets it apart are the constraints on the two scalars, keyword-only:

    constraint="anti-hebbian"   lambda = sigmoid(free), eta = -exp(free): every repetition weakens
                                a response. Starts: lambda = 0.99, eta = -5 / H. (ART, Maze)
    constraint="hebbian"        the same with eta = exp(free): every repetition strengthens it.
                                Starts: lambda = 0.99, eta = 5 / H.
    constraint="clipped"        lambda clipped to [0, 1], eta free. Starts: lambda = 0.99,
                                eta = -5 / I. (familiarity)
    constraint="time-constant"  lambda = 1 - 1 / free, where the free parameter is a time constant
                                in steps; eta free. Starts as "clipped".
    init="uniform"              W, b ~ U(-1/sqrt(I), 1/sqrt(I))
    init="familiarity"          W ~ N(0, 1/I), b ~ N(0, 1): mean and variance

Parameters of layer k: `weight_lk` (H, I), `bias_lk` (H), and `lambda_lk`, `eta_lk` (), which hold
the free parameters of the constraint; `plasticity()` gives lambda and eta themselves. Cells go
without the suffix, and write `lambda_`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import init as initialise

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.normalisation import Normalize, normalised_rows
from stpn.nn.state import STPNState
from stpn.nn.time import last_step
from stpn.ops import backends
from stpn.ops.reference import STPNOptions

Constraint: TypeAlias = Annotated[
    Literal["anti-hebbian", "hebbian", "clipped", "time-constant"],
    "anti-hebbian: lambda in (0, 1), eta < 0; hebbian: eta > 0; clipped: lambda in [0, 1], eta "
    "free; time-constant: lambda = 1 - 1 / tau, eta free",
]
_CONSTRAINTS = ("anti-hebbian", "hebbian", "clipped", "time-constant")
Init: TypeAlias = Annotated[
    Literal["uniform", "familiarity"],
    "of W and b: uniform within 1/sqrt(I), or normal as in the familiarity tasks",
]

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

    def configure(
        self,
        *,
        constraint: Constraint = "anti-hebbian",
        init: Init = "uniform",
        normalize: Normalize = False,
    ) -> None:
        self.normalize = checks.flag("normalize", normalize)
        self.constraint = checks.choice("constraint", constraint, _CONSTRAINTS)
        self.init = checks.choice("init", init, ("uniform", "familiarity"))

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, input_size)

    def parameter_shapes(self, input_size: int) -> Shapes:
        return {
            "weight": (self.hidden_size, input_size),
            "bias": (self.hidden_size,) if self.has_bias else None,
            "lambda": (),
            "eta": (),
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(input_size)
        if self.init == "familiarity":
            initialise.normal_(p["weight"], 0, k)
            if self.has_bias:
                initialise.normal_(p["bias"], 0, 1)
        else:
            initialise.uniform_(p["weight"], -k, k)
            if self.has_bias:
                initialise.uniform_(p["bias"], -k, k)
        if self.constraint in ("anti-hebbian", "hebbian"):
            lambda_, eta = math.log(_LAMBDA / (1 - _LAMBDA)), math.log(5 / self.hidden_size)
        else:
            lambda_, eta = _LAMBDA, -5 / input_size
        if self.constraint == "time-constant":
            lambda_ = 1 / (1 - _LAMBDA)
        initialise.constant_(p["lambda"], lambda_)
        initialise.constant_(p["eta"], eta)

    def plasticity(self) -> list[tuple[Tensor, Tensor]]:
        """lambda and eta as they act, of each layer and direction in the order of the state."""
        return [self._plasticity(self.layer_parameters(suffix)) for _, suffix in self.layers]

    def _plasticity(self, p: Parameters) -> tuple[Tensor, Tensor]:
        if self.constraint in ("anti-hebbian", "hebbian"):
            eta = p["eta"].exp()
            return p["lambda"].sigmoid(), eta if self.constraint == "hebbian" else -eta
        if self.constraint == "time-constant":
            return 1 - 1 / p["lambda"], p["eta"]
        return _Clipped.apply(p["lambda"]), p["eta"]

    def operands(self, p: Parameters) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """weight, bias, lambda, gamma, as an STPN has them."""
        lambda_, eta = self._plasticity(p)
        return self._weight(p), p["bias"], lambda_.reshape(1, 1), eta.reshape(1, 1)

    def _weight(self, p: Parameters) -> Tensor:
        (weight,) = normalised_rows(p["weight"]) if self.normalize else (p["weight"],)
        return weight

    @property
    def stpn_options(self) -> STPNOptions:
        """Those of the STPN that this is."""
        return _FROZEN if self.freezes else _OPTIONS

    def run(
        self,
        x: Tensor,
        state: STPNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, STPNState, Tensor | None]:
        y, f, power = backends.stpn(
            x,
            state.h,
            state.f,
            *self.operands(p),
            options=self.stpn_options,
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNState(last_step(y, lengths), f), power

    def run_in_place(
        self, x: Tensor, state: STPNState, p: Parameters, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        y, power = backends.stpn_step_(
            x,
            state.h,
            state.f,
            *self.operands(p),
            options=self.stpn_options,
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power

    def synapses(self, state: STPNState, p: Parameters) -> tuple[Tensor, Tensor]:
        return state.f, self._weight(p) + state.f


class HebbFF(_HebbFF, RecurrentCore):
    """Feed-forward layer with uniform plasticity, used as `STPNf` is; state: `STPNState(h, f)`.

    core = HebbFF(100, 100, batch_first=True, constraint="clipped", init="familiarity")
    y, state = core(x)                        # (B, T, 100) -> (B, T, 100)
    """


class HebbFFCell(_HebbFF, RecurrentCell):
    """One step of `HebbFF`: `h, state = cell(x, state)`, used as `STPNfCell`."""
