"""Short-Term Plasticity Neurons: feed-forward, recurrent and gated, each as layer and as cell.

What they compute is in `stpn.ops.reference`, their options and parameters in `STPNr`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence
from stpn.nn.state import STPNlState, STPNState
from stpn.nn.time import last_step
from stpn.ops import backends, reference
from stpn.ops.reference import STPNOptions

Granularity: TypeAlias = Literal["synapse", "neuron", "uniform"]
Plastic: TypeAlias = Literal["all", "input", "hidden"]
Norm: TypeAlias = Literal["pre", "post"] | None
NormOver: TypeAlias = Literal["neuron", "layer"]
Rule: TypeAlias = Literal["hebb", "oja"]
Nonlinearity: TypeAlias = Literal["tanh", "sigmoid", "relu"]


class _Plastic(Recurrence):
    """Parameters and options of plastic synapses; the recurrences below say what they do."""

    gates: ClassVar[int] = 1
    """Rows of synapses per hidden unit."""

    def _configure(
        self,
        stp: Granularity,
        plastic: Plastic,
        norm: Norm,
        norm_over: NormOver,
        norm_scale: bool,
        clamp: float | None,
        rule: Rule,
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        self.stp = checks.choice("stp", stp, ("synapse", "neuron", "uniform"))
        self.plastic = checks.choice("plastic", plastic, ("all", "input", "hidden"))
        if plastic == "hidden" and not self.recurrent:
            raise ValueError(
                f"plastic: expected 'all' or 'input', got 'hidden': {type(self).__name__} has no "
                "synapses from hidden units"
            )
        self.norm_scale_learnt = checks.flag("norm_scale", norm_scale)
        if norm_scale and norm is None:
            raise ValueError("norm_scale: expected False with norm=None, got True")
        self._options = STPNOptions(
            recurrent=self.recurrent,
            norm=checks.choice("norm", norm, ("pre", "post", None)),
            norm_over=checks.choice("norm_over", norm_over, ("neuron", "layer")),
            clamp=checks.positive_or_none("clamp", clamp),
            rule=checks.choice("rule", rule, ("hebb", "oja")),
            nonlinearity=checks.choice("nonlinearity", nonlinearity, ("tanh", "sigmoid", "relu")),
        )
        self._frozen_options = replace(self._options, frozen=True)

    def _columns(self, input_size: int) -> int:
        return input_size + self.hidden_size if self.recurrent else input_size

    def _plastic_columns(self, input_size: int) -> int:
        sizes = {"all": self._columns(input_size), "input": input_size, "hidden": self.hidden_size}
        return sizes[self.plastic]

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        rows = self.gates * self.hidden_size
        return (self.hidden_size,), (rows, self._columns(input_size))

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        rows = self.gates * self.hidden_size
        shapes = {
            "synapse": (rows, self._plastic_columns(input_size)),
            "neuron": (rows, 1),
            "uniform": (1, 1),
        }
        self._register("weight", suffix, (rows, self._columns(input_size)), factory)
        self._register("bias", suffix, (rows,) if self.has_bias else None, factory)
        self._register("lambda", suffix or "_", shapes[self.stp], factory)
        self._register("gamma", suffix, shapes[self.stp], factory)
        self._register("norm_scale", suffix, (rows,) if self.norm_scale_learnt else None, factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k = 1 / math.sqrt(self.hidden_size if self.recurrent else input_size)
        init.uniform_(getattr(self, f"weight{suffix}"), -k, k)
        if self.has_bias:
            init.uniform_(getattr(self, f"bias{suffix}"), -k, k)
        init.uniform_(getattr(self, f"lambda{suffix or '_'}"), 0, 1)
        init.uniform_(getattr(self, f"gamma{suffix}"), -0.001 * k, 0.001 * k)
        if self.norm_scale_learnt:
            init.ones_(getattr(self, f"norm_scale{suffix}"))

    def _tensors(self, suffix: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """weight, bias, lambda, gamma, the last two broadcastable to (R, D)."""
        weight = self._parameter("weight", suffix)
        lambda_ = self._parameter("lambda", suffix or "_")
        gamma = self._parameter("gamma", suffix)
        if self.plastic != "all" and self.recurrent:
            lambda_, gamma = (self._on_all_columns(value, weight) for value in (lambda_, gamma))
        return weight, self._parameter("bias", suffix), lambda_, gamma

    def _on_all_columns(self, value: Tensor, weight: Tensor) -> Tensor:
        """(R, P), (R, 1) or (1, 1) to (R, D) or (1, D), zero where synapses are not plastic."""
        columns, hidden = weight.shape[1], self.hidden_size
        plastic, before, after = (
            (columns - hidden, 0, hidden)
            if self.plastic == "input"
            else (hidden, columns - hidden, 0)
        )
        return functional.pad(value.expand(value.shape[0], plastic), (before, after))

    def _in_use(self) -> STPNOptions:
        return self._frozen_options if self._frozen else self._options

    def _synapses(self, state: Any, suffix: str) -> tuple[Tensor, Tensor]:
        g, _ = reference.efficacies(
            self._parameter("weight", suffix),
            state.f,
            self._options,
            self._parameter("norm_scale", suffix),
        )
        return state.f, g

    def extra_repr(self) -> str:
        options = self._options
        shown = {
            "stp": (self.stp, "synapse"),
            "plastic": (self.plastic, "all"),
            "norm": (options.norm, "pre"),
            "norm_over": (options.norm_over, "neuron"),
            "norm_scale": (self.norm_scale_learnt, False),
            "clamp": (options.clamp, None),
            "rule": (options.rule, "hebb"),
            "nonlinearity": (options.nonlinearity, "tanh"),
        }
        changed = [f"{name}={value!r}" for name, (value, usual) in shown.items() if value != usual]
        return ", ".join([super().extra_repr(), *changed])


class _Neurons(_Plastic):
    """Plain neurons: STPNf and STPNr."""

    state_type = STPNState

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
            options=self._in_use(),
            norm_scale=self._parameter("norm_scale", suffix),
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNState(last_step(y, lengths), f), power

    def _step(
        self, x: Tensor, state: STPNState, suffix: str, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.norm_scale_learnt:
            return super()._step(x, state, suffix, power_weight)
        y, power = backends.stpn_step_(
            x,
            state.h,
            state.f,
            *self._tensors(suffix),
            options=self._in_use(),
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power

    def _bound_kernel(self, x: Tensor, state: STPNState) -> Callable[[], Tensor] | None:
        ((_, suffix),) = self._layers()
        names = [f"{name}{suffix}" for name in ("weight", "bias", "lambda", "gamma")]
        parameters = [self._parameters.get(name) for name in names]
        # What is computed from the parameters (another dtype, padding) would not change with them.
        computed = (a is not b for a, b in zip(self._tensors(suffix), parameters, strict=True))
        copied = (p is not None and not p.is_contiguous() for p in parameters)
        if self.norm_scale_learnt or any(computed) or any(copied):
            return None
        return backends.bound_stpn_step(
            x,
            state.h,
            state.f,
            lambda: [self._parameters.get(name) for name in names],
            options=self._in_use(),
        )


class _FeedForward(_Neurons):
    recurrent = False


class _Gated(_Plastic):
    """LSTM gates on plastic synapses: STPNl."""

    state_type = STPNlState
    gates = 4

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        h, f = super()._state_shapes(input_size)
        return h, h, f

    def _run(
        self,
        x: Tensor,
        state: STPNlState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, STPNlState, Tensor | None]:
        y, c, f, power = backends.stpn_lstm(
            x,
            state.h,
            state.c,
            state.f,
            *self._tensors(suffix),
            options=self._in_use(),
            norm_scale=self._parameter("norm_scale", suffix),
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        return y, STPNlState(last_step(y, lengths), c, f), power

    def _step(
        self, x: Tensor, state: STPNlState, suffix: str, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.norm_scale_learnt:
            return super()._step(x, state, suffix, power_weight)
        y, power = backends.stpn_lstm_step_(
            x,
            state.h,
            state.c,
            state.f,
            *self._tensors(suffix),
            options=self._in_use(),
            power_weight=power_weight,
        )
        state.h.copy_(y)
        return y, power


class _NeuronLayer(_Neurons, RecurrentCore):
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
        stp: Granularity = "synapse",
        plastic: Plastic = "all",
        norm: Norm = "pre",
        norm_over: NormOver = "neuron",
        norm_scale: bool = False,
        clamp: float | None = None,
        rule: Rule = "hebb",
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(stp, plastic, norm, norm_over, norm_scale, clamp, rule, nonlinearity)
        self._build(device, dtype)


class _NeuronCell(_Neurons, RecurrentCell):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        stp: Granularity = "synapse",
        plastic: Plastic = "all",
        norm: Norm = "pre",
        norm_over: NormOver = "neuron",
        norm_scale: bool = False,
        clamp: float | None = None,
        rule: Rule = "hebb",
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(stp, plastic, norm, norm_over, norm_scale, clamp, rule, nonlinearity)
        self._build(device, dtype)


class STPNr(_NeuronLayer):
    """Recurrent STPN layer: synapses on [x ; h_prev], used as `nn.RNN` is.

        layer = STPNr(37, 64, batch_first=True)
        y, state = layer(x)                       # (B, T, 37) -> (B, T, 64)
        y, state = layer(x, state, reset=done)    # goes on; done (B, T): starts fresh there

    The state is a tuple of `STPNState(h, f)`, one per layer and direction: values, to be kept,
    detached (`tuple(s.detach() for s in state)`) or thrown away. Options of all STPNs:

        stp             granularity of lambda and gamma: "synapse", "neuron", or "uniform" (one
                        number for the layer)
        plastic         which synapses change: "all", "input" (those from x), "hidden" (from h_prev)
        norm            "pre": G, and F as it decays, are divided by the norm of G; "post": G, and F
                        after its update; None: nothing is
        norm_over       the norm is taken over each "neuron", or over the whole "layer"
        norm_scale      learn a factor of the normalised efficacies, one per neuron
        clamp           limit F to [-clamp, clamp] after each update
        rule            "hebb", or "oja"
        nonlinearity    "tanh", "sigmoid" or "relu" (not with gates)

    Parameters of layer k, with R = H rows (4H with gates, in the order i, f, g, o) and D columns
    (inputs first, then hidden units), P of them plastic: `weight_lk` (R, D), `bias_lk` (R),
    `lambda_lk` and `gamma_lk` (R, P), (R, 1) or (1, 1) by granularity, `norm_scale_lk` (R). Cells
    go without the suffix, and write `lambda_`, as Python keeps the word for itself.
    """


class STPNf(_FeedForward, _NeuronLayer):
    """Feed-forward STPN layer: synapses on x alone. Used as `STPNr`, with its options."""


class STPNl(_Gated, RecurrentCore):
    """STPN with the gates of an LSTM, each gate with plastic, normalised synapses on [x ; h_prev].

    Used as `STPNr`; the state is a tuple of `STPNlState(h, c, f)`.
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
        stp: Granularity = "synapse",
        plastic: Plastic = "all",
        norm: Norm = "pre",
        norm_over: NormOver = "neuron",
        norm_scale: bool = False,
        clamp: float | None = None,
        rule: Rule = "hebb",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(stp, plastic, norm, norm_over, norm_scale, clamp, rule)
        self._build(device, dtype)


class STPNrCell(_NeuronCell):
    """One step of `STPNr`: `h, state = cell(x, state)`, x (B, I) or (I,), state `STPNState(h, f)`.

    In an endless stream, `cell(x, state, inplace=True)` under `torch.no_grad()` overwrites the
    state that it is given, and needs no memory for another.
    """


class STPNfCell(_FeedForward, _NeuronCell):
    """One step of `STPNf`, used as `STPNrCell`."""


class STPNlCell(_Gated, RecurrentCell):
    """One step of `STPNl`, used as `STPNrCell`, state `STPNlState(h, c, f)`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        stp: Granularity = "synapse",
        plastic: Plastic = "all",
        norm: Norm = "pre",
        norm_over: NormOver = "neuron",
        norm_scale: bool = False,
        clamp: float | None = None,
        rule: Rule = "hebb",
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(stp, plastic, norm, norm_over, norm_scale, clamp, rule)
        self._build(device, dtype)
