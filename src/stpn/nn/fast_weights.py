"""An RNN with fast weights (Ba et al. 2016), as layer and as cell.

What it computes is in `stpn.ops.reference_rivals`. The options, keyword-only:

    decay, rate     A' = decay * A + rate * (h_prev outer h_prev); fixed, not trained
    steps           turns of the inner loop per time step
    eps             of the layer norm

Parameters of layer k: `weight_lk` (H, I + H), columns: inputs first; `bias_lk` (H); the one layer
norm `ln_weight_lk` and `ln_bias_lk` (H). Cells go without the suffix.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence
from stpn.nn.state import FastWeightsState
from stpn.nn.time import last_step
from stpn.ops import backends


class _FastWeights(Recurrence):
    state_type = FastWeightsState

    def _configure(self, decay: float, rate: float, steps: int, eps: float) -> None:
        self.decay = checks.number("decay", decay)
        self.rate = checks.number("rate", rate)
        self.steps = checks.positive_int("steps", steps)
        self.eps = checks.number("eps", eps)

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, self.hidden_size)

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        hidden = self.hidden_size
        self._register("weight", suffix, (hidden, input_size + hidden), factory)
        self._register("bias", suffix, (hidden,) if self.has_bias else None, factory)
        self._register("ln_weight", suffix, (hidden,), factory)
        self._register("ln_bias", suffix, (hidden,), factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        init.uniform_(getattr(self, f"weight{suffix}"), -k, k)
        if self.has_bias:
            init.uniform_(getattr(self, f"bias{suffix}"), -k, k)
        init.ones_(getattr(self, f"ln_weight{suffix}"))
        init.zeros_(getattr(self, f"ln_bias{suffix}"))

    def _run(
        self,
        x: Tensor,
        state: FastWeightsState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, FastWeightsState, Tensor | None]:
        inputs = x.shape[-1]
        weight = self._parameter("weight", suffix)
        w_x, w_h = weight[:, :inputs], weight[:, inputs:]
        # Frozen fast weights neither decay nor grow.
        decay, rate = (1.0, 0.0) if self._frozen else (self.decay, self.rate)
        y, a, power = backends.fast_weights(
            functional.linear(x, w_x, self._parameter("bias", suffix)),
            state.h,
            state.a,
            w_h,
            self._parameter("ln_weight", suffix),
            self._parameter("ln_bias", suffix),
            decay=decay,
            rate=rate,
            steps=self.steps,
            eps=self.eps,
            reset=reset,
            lengths=lengths,
            power_weight=None if power_weight is None else power_weight[inputs:],
        )
        if power is not None and power_weight is not None:
            counted = power_weight[:inputs]
            power = backends.plus_static_power(power, x, w_x, counted, graph=self._power_graph)
        return y, FastWeightsState(last_step(y, lengths), a), power

    def _synapses(self, state: FastWeightsState, suffix: str) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no single matrix of efficacies to trace: its fast weights "
            "see another u than its slow ones"
        )

    def extra_repr(self) -> str:
        shown = {"decay": (self.decay, 0.9), "rate": (self.rate, 0.5), "steps": (self.steps, 1)}
        changed = [f"{name}={value}" for name, (value, usual) in shown.items() if value != usual]
        return ", ".join([super().extra_repr(), *changed])


class FastWeights(_FastWeights, RecurrentCore):
    """RNN with fast weights, used as `STPNr` is; the state is a tuple of `FastWeightsState(h, a)`.

    core = FastWeights(37, 20, batch_first=True)
    y, state = core(x)                        # (B, T, 37) -> (B, T, 20)
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
        decay: float = 0.9,
        rate: float = 0.5,
        steps: int = 1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(decay, rate, steps, eps)
        self._build(device, dtype)


class FastWeightsCell(_FastWeights, RecurrentCell):
    """One step of `FastWeights`: `h, state = cell(x, state)`, used as `STPNrCell`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        decay: float = 0.9,
        rate: float = 0.5,
        steps: int = 1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(decay, rate, steps, eps)
        self._build(device, dtype)
