"""Short-Term Plasticity Neurons: feed-forward, recurrent and gated, each as layer and as cell.

What they compute is in `stpn.ops.stpn.reference`, their options and parameters in `STPNr`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.operations import Operations
from stpn.nn.state import STPNlState, STPNState
from stpn.nn.time import last_step
from stpn.ops import backends, reference
from stpn.ops.reference import STPNOptions

Granularity: TypeAlias = Annotated[
    Literal["synapse", "neuron", "uniform"],
    "granularity of lambda and gamma; uniform: one number for the layer",
]
Plastic: TypeAlias = Annotated[
    Literal["all", "input", "hidden"], "which synapses change: all, those from x, those from h_prev"
]
Norm: TypeAlias = Annotated[
    Literal["pre", "post", "f"] | None,
    "pre: G, and F as it decays, are divided by the norm of G; post: G, and F after its update; "
    "f: F alone by its own norm, after its update",
]
NormOver: TypeAlias = Annotated[
    Literal["neuron", "layer"], "the norm is taken over each neuron, or over the whole layer"
]
NormScale: TypeAlias = Annotated[
    bool, "learn a factor of the normalised efficacies, one per neuron"
]
Clamp: TypeAlias = Annotated[float | None, "limit F to [-clamp, clamp] after each update"]
Rule: TypeAlias = Annotated[Literal["hebb", "oja"], "Hebb's rule or Oja's"]
Associate: TypeAlias = Annotated[
    Literal["previous", "new"],
    "recurrent synapses associate with h_prev, which they have seen, or with the new h",
]
Decay: TypeAlias = Annotated[
    Literal["before", "after"], "lambda acts on F before an association is added to it, or after"
]
PlasticBias: TypeAlias = Annotated[
    bool, "the bias is a plastic synapse too, from an input that is always 1 and costs no power"
]
LayerNorm: TypeAlias = Annotated[
    bool, "standardise the neurons' sums over the layer (each gate), with a learnt gain"
]
Train: TypeAlias = Annotated[bool, "whether it is trained; else it stays as it starts"]
LambdaMin: TypeAlias = Annotated[float, "lambda starts uniformly between this ..."]
LambdaMax: TypeAlias = Annotated[float, "... and this"]
GammaMin: TypeAlias = Annotated[
    float | None, "gamma starts uniformly between this (None: -0.001 / sqrt(H), f: sqrt(I)) ..."
]
GammaMax: TypeAlias = Annotated[float | None, "... and this (None: 0.001 / sqrt(H), f: sqrt(I))"]
Nonlinearity: TypeAlias = Annotated[Literal["tanh", "sigmoid", "relu"], "of the neurons"]


class Plasticity(Recurrence):
    """Parameters and options of plastic synapses; the recurrences below say what they do."""

    gates: ClassVar[int] = 1
    """Rows of synapses per hidden unit."""
    nonlinearity: Literal["tanh", "sigmoid", "relu"] = "tanh"
    stpn_options: STPNOptions
    """What the recurrence needs to know of the options."""

    def configure(
        self,
        *,
        stp: Granularity = "synapse",
        plastic: Plastic = "all",
        norm: Norm = "pre",
        norm_over: NormOver = "neuron",
        norm_scale: NormScale = False,
        clamp: Clamp = None,
        rule: Rule = "hebb",
        associate: Associate = "previous",
        decay: Decay = "before",
        plastic_bias: PlasticBias = False,
        layer_norm: LayerNorm = False,
        train_lambda: Train = True,
        train_gamma: Train = True,
        lambda_min: LambdaMin = 0.0,
        lambda_max: LambdaMax = 1.0,
        gamma_min: GammaMin = None,
        gamma_max: GammaMax = None,
    ) -> None:
        self.stp = checks.choice("stp", stp, ("synapse", "neuron", "uniform"))
        self.plastic = checks.choice("plastic", plastic, ("all", "input", "hidden"))
        if plastic == "hidden" and not self.recurrent:
            raise ValueError(
                f"plastic: expected 'all' or 'input', got 'hidden': {type(self).__name__} has no "
                "synapses from hidden units"
            )
        if associate == "new" and not self.recurrent:
            raise ValueError(
                f"associate: expected 'previous', got 'new': {type(self).__name__} has no synapses "
                "from hidden units"
            )
        self.norm_scale_learnt = checks.flag("norm_scale", norm_scale)
        if norm_scale and norm in (None, "f"):
            raise ValueError(f"norm_scale: expected False with norm={norm!r}, got True")
        self.decay = checks.choice("decay", decay, ("before", "after"))
        self.plastic_bias = checks.flag("plastic_bias", plastic_bias)
        if plastic_bias and not self.has_bias:
            raise ValueError("plastic_bias: expected False with bias=False, got True")
        self.layer_norm = checks.flag("layer_norm", layer_norm)
        trained = {
            "lambda": checks.flag("train_lambda", train_lambda),
            "gamma": checks.flag("train_gamma", train_gamma),
        }
        self.untrained = tuple(name for name, wanted in trained.items() if not wanted)
        self.lambda_start = checks.interval("lambda_min", lambda_min, "lambda_max", lambda_max)
        if (gamma_min is None) != (gamma_max is None):
            raise ValueError("gamma_min: expected gamma_max beside it, or neither")
        self.gamma_start = (
            None
            if gamma_min is None or gamma_max is None
            else checks.interval("gamma_min", gamma_min, "gamma_max", gamma_max)
        )
        self.stpn_options = STPNOptions(
            recurrent=self.recurrent,
            norm=checks.choice("norm", norm, ("pre", "post", "f", None)),
            norm_over=checks.choice("norm_over", norm_over, ("neuron", "layer")),
            clamp=checks.positive_or_none("clamp", clamp),
            rule=checks.choice("rule", rule, ("hebb", "oja")),
            associate=checks.choice("associate", associate, ("previous", "new")),
            nonlinearity=self.nonlinearity,
        )
        self._frozen_options = replace(self.stpn_options, frozen=True)

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        rows = self.gates * self.hidden_size
        return (self.hidden_size,), (rows, self._columns(input_size))

    def parameter_shapes(self, input_size: int) -> Shapes:
        rows, columns = self.gates * self.hidden_size, self._columns(input_size)
        from_x = columns - self.hidden_size * self.recurrent
        plastic = {"all": columns, "input": from_x, "hidden": self.hidden_size}
        rates = {"synapse": (rows, plastic[self.plastic]), "neuron": (rows, 1), "uniform": (1, 1)}
        return {
            "weight": (rows, columns),
            "bias": (rows,) if self.has_bias and not self.plastic_bias else None,
            "lambda": rates[self.stp],
            "gamma": rates[self.stp],
            "norm_scale": (rows,) if self.norm_scale_learnt else None,
            "ln_weight": (rows,) if self.layer_norm else None,
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size if self.recurrent else input_size)
        init.uniform_(p["weight"], -k, k)
        if p["bias"] is not None:
            init.uniform_(p["bias"], -k, k)
        init.uniform_(p["lambda"], *self.lambda_start)
        init.uniform_(p["gamma"], *(self.gamma_start or (-0.001 * k, 0.001 * k)))
        for gain in (p["norm_scale"], p["ln_weight"]):
            if gain is not None:
                init.ones_(gain)

    def operands(self, p: Parameters) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """weight, bias, lambda, gamma, the last two broadcastable to (R, D)."""
        weight, lambda_, gamma = p["weight"], p["lambda"], p["gamma"]
        if self.plastic != "all" and self.recurrent:
            lambda_, gamma = (self._on_all_columns(value, weight) for value in (lambda_, gamma))
        if self.decay == "after":  # lambda (F + gamma h u) = lambda F + (lambda gamma) h u
            gamma = lambda_ * gamma
        return weight, p["bias"], lambda_, gamma

    def operations(self, input_size: int) -> Operations:
        rows, columns = self.gates * self.hidden_size, self._columns(input_size)
        from_x = columns - self.hidden_size * self.recurrent
        plastic = {"all": columns, "input": from_x, "hidden": self.hidden_size}[self.plastic]
        normalised = 0 if self.stpn_options.norm is None else rows * columns
        return replace(
            super().operations(input_size),
            writes=rows * plastic,
            normalised=normalised + (rows if self.layer_norm else 0),
        )

    def _columns(self, input_size: int) -> int:
        from_x = input_size + self.plastic_bias
        return from_x + self.hidden_size if self.recurrent else from_x

    def _with_bias_input(
        self,
        x: Tensor,  # (..., I)
        power_weight: Tensor | None,  # (D,)
    ) -> tuple[Tensor, Tensor | None]:
        """With the input of a plastic bias, which lies between x and h and costs nothing."""
        if not self.plastic_bias:
            return x, power_weight
        if power_weight is not None:
            inputs = x.shape[-1]
            before, after = power_weight[:inputs], power_weight[inputs:]
            power_weight = torch.cat([before, before.new_zeros(1), after])
        return functional.pad(x, (0, 1), value=1.0), power_weight

    def _gains(self, p: Parameters) -> dict[str, Tensor]:
        """What no kernel has, by its name in the recurrence."""
        gains = {"norm_scale": p["norm_scale"], "layer_norm": p["ln_weight"]}
        return {name: gain for name, gain in gains.items() if gain is not None}

    def _on_all_columns(self, value: Tensor, weight: Tensor) -> Tensor:
        """(R, P), (R, 1) or (1, 1) to (R, D) or (1, D), zero where synapses are not plastic."""
        columns, hidden = weight.shape[1], self.hidden_size
        plastic, before, after = (
            (columns - hidden, 0, hidden)
            if self.plastic == "input"
            else (hidden, columns - hidden, 0)
        )
        return functional.pad(value.expand(value.shape[0], plastic), (before, after))

    def options_in_use(self) -> STPNOptions:
        return self._frozen_options if self.freezes else self.stpn_options

    def synapses(self, state: Any, p: Parameters) -> tuple[Tensor, Tensor]:
        f = state.f
        g, _ = reference.efficacies(p["weight"], f, self.stpn_options, p["norm_scale"])
        if self.plastic_bias:  # which is not of u
            bias = f.shape[-1] - self.hidden_size * self.recurrent - 1
            f, g = (torch.cat([v[..., :bias], v[..., bias + 1 :]], dim=-1) for v in (f, g))
        return f, g


class _Neurons(Plasticity):
    """Plain neurons: STPNf and STPNr."""

    state_type = STPNState

    def configure(self, *, nonlinearity: Nonlinearity = "tanh", **options: Any) -> None:
        choices = ("tanh", "sigmoid", "relu")
        self.nonlinearity = checks.choice("nonlinearity", nonlinearity, choices)
        super().configure(**options)

    def run(
        self,
        x: Tensor,
        state: STPNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, STPNState, Tensor | None]:
        x, power_weight = self._with_bias_input(x, power_weight)
        y, f, power = backends.stpn(
            x,
            state.h,
            state.f,
            *self.operands(p),
            options=self.options_in_use(),
            **self._gains(p),
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNState(last_step(y, lengths), f), power

    def run_in_place(
        self, x: Tensor, state: STPNState, p: Parameters, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self._gains(p):
            return super().run_in_place(x, state, p, power_weight)
        x, power_weight = self._with_bias_input(x, power_weight)
        y, power = backends.stpn_step_(
            x,
            state.h,
            state.f,
            *self.operands(p),
            options=self.options_in_use(),
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power

    def bind(self, x: Tensor, state: STPNState) -> Callable[[], Tensor] | None:
        ((_, suffix),) = self.layers
        names = [f"{name}{suffix}" for name in ("weight", "bias", "lambda", "gamma")]
        parameters = [self._parameters.get(name) for name in names]
        if self.plastic_bias or self.norm_scale_learnt or self.layer_norm:
            return None
        operands = self.operands(self.layer_parameters(suffix))
        # What is computed from the parameters (another dtype, padding) would not change with them.
        computed = (a is not b for a, b in zip(operands, parameters, strict=True))
        copied = (p is not None and not p.is_contiguous() for p in parameters)
        if any(computed) or any(copied):
            return None
        return backends.bound_stpn_step(
            x,
            state.h,
            state.f,
            lambda: [self._parameters.get(name) for name in names],
            options=self.options_in_use(),
        )


class _FeedForward(_Neurons):
    recurrent = False


class _Gated(Plasticity):
    """LSTM gates on plastic synapses: STPNl."""

    state_type = STPNlState
    gates = 4

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        h, f = super().state_shapes(input_size)
        return h, h, f

    def run(
        self,
        x: Tensor,
        state: STPNlState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, STPNlState, Tensor | None]:
        x, power_weight = self._with_bias_input(x, power_weight)
        y, c, f, power = backends.stpn_lstm(
            x,
            state.h,
            state.c,
            state.f,
            *self.operands(p),
            options=self.options_in_use(),
            **self._gains(p),
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNlState(last_step(y, lengths), c, f), power

    def run_in_place(
        self, x: Tensor, state: STPNlState, p: Parameters, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self._gains(p):
            return super().run_in_place(x, state, p, power_weight)
        x, power_weight = self._with_bias_input(x, power_weight)
        y, power = backends.stpn_lstm_step_(
            x,
            state.h,
            state.c,
            state.f,
            *self.operands(p),
            options=self.options_in_use(),
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power


class STPNr(_Neurons, RecurrentCore):
    """Recurrent STPN layer: synapses on [x ; h_prev], used as `nn.RNN` is.

        layer = STPNr(37, 64, batch_first=True)
        y, state = layer(x)                       # (B, T, 37) -> (B, T, 64)
        y, state = layer(x, state, reset=done)    # goes on; done (B, T): a new sequence starts

    The state is a tuple of `STPNState(h, f)`, one per layer and direction: values, to be kept,
    detached (`tuple(s.detach() for s in state)`) or thrown away. Options of all STPNs:

        stp             granularity of lambda and gamma: "synapse", "neuron", or "uniform" (one
                        number for the layer)
        plastic         which synapses change: "all", "input" (those from x), "hidden" (from h_prev)
        norm            "pre": G, and F as it decays, are divided by the norm of G; "post": G, and F
                        after its update; "f": F alone by its own norm; None: nothing is
        norm_over       the norm is taken over each "neuron", or over the whole "layer"
        norm_scale      learn a factor of the normalised efficacies, one per neuron
        clamp           limit F to [-clamp, clamp] after each update
        rule            "hebb", or "oja"
        associate       recurrent synapses associate with the "previous" h, which they have seen, or
                        with the "new" one, as the public code of the paper does in one task
        decay           lambda acts on F "before" an association is added to it, or "after"
        plastic_bias    the bias is a synapse too, from an input of 1: a column of `weight` between
                        x and h, plastic and within the norm; it costs no power, as a bias does not
        layer_norm      standardise the sums of the neurons, of each gate by itself; a learnt gain
        train_lambda, train_gamma                           False: it stays as it starts
        lambda_min, lambda_max, gamma_min, gamma_max        where they start, uniformly
        nonlinearity    "tanh", "sigmoid" or "relu" (not with gates)

    Parameters of layer k, with R = H rows (4H with gates, in the order i, f, g, o) and D columns
    (inputs first, then hidden units), P of them plastic: `weight_lk` (R, D), `bias_lk` (R),
    `lambda_lk` and `gamma_lk` (R, P), (R, 1) or (1, 1) by granularity, `norm_scale_lk` and
    `ln_weight_lk` (R). Cells have no suffix; there it is `lambda_`, since `lambda` is a keyword.
    """


class STPNf(_FeedForward, RecurrentCore):
    """Feed-forward STPN layer: synapses on x alone. Used as `STPNr`, with its options."""


class STPNl(_Gated, RecurrentCore):
    """STPN with the gates of an LSTM, each gate with plastic, normalised synapses on [x ; h_prev].

    Used as `STPNr`; the state is a tuple of `STPNlState(h, c, f)`.
    """


class STPNrCell(_Neurons, RecurrentCell):
    """One step of `STPNr`: `h, state = cell(x, state)`, x (B, I) or (I,), state `STPNState(h, f)`.

    In an endless stream, `cell(x, state, inplace=True)` under `torch.no_grad()` overwrites the
    state that it is given, and needs no memory for another.
    """


class STPNfCell(_FeedForward, RecurrentCell):
    """One step of `STPNf`, used as `STPNrCell`."""


class STPNlCell(_Gated, RecurrentCell):
    """One step of `STPNl`, used as `STPNrCell`, state `STPNlState(h, c, f)`."""
