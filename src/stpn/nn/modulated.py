"""RNNs with Hebbian plasticity that the network modulates itself (Miconi et al. 2019), or does not.

What they compute is in `stpn.ops.reference_rivals`. Parameters of layer k: `weight_ih_lk` (H, I)
and `bias_lk` (H) of the input, `weight_hh_lk` and `alpha_lk` (H, H) of the recurrent synapses (the
fixed part, and how plastic each is), `modulator_weight_lk` (H) and `modulator_bias_lk` () if they
are modulated, else `eta_lk` (), the one learning rate. Cells go without the suffix.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence
from stpn.nn.state import ModPlastState
from stpn.nn.time import last_step
from stpn.ops import backends


class _ModPlast(Recurrence):
    state_type = ModPlastState

    def _configure(self, modulated: bool) -> None:
        self.modulated = checks.flag("modulated", modulated)

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, self.hidden_size)

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        hidden = self.hidden_size
        self._register("weight_ih", suffix, (hidden, input_size), factory)
        self._register("bias", suffix, (hidden,) if self.has_bias else None, factory)
        self._register("weight_hh", suffix, (hidden, hidden), factory)
        self._register("alpha", suffix, (hidden, hidden), factory)
        self._register("modulator_weight", suffix, (hidden,) if self.modulated else None, factory)
        self._register("modulator_bias", suffix, () if self.modulated else None, factory)
        self._register("eta", suffix, None if self.modulated else (), factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k_input, k_hidden = 1 / math.sqrt(input_size), 1 / math.sqrt(self.hidden_size)
        init.uniform_(getattr(self, f"weight_ih{suffix}"), -k_input, k_input)
        if self.has_bias:
            init.uniform_(getattr(self, f"bias{suffix}"), -k_input, k_input)
        init.uniform_(getattr(self, f"weight_hh{suffix}"), 0, 0.01)
        init.uniform_(getattr(self, f"alpha{suffix}"), 0, 0.01)
        if self.modulated:
            init.uniform_(getattr(self, f"modulator_weight{suffix}"), -k_hidden, k_hidden)
            init.uniform_(getattr(self, f"modulator_bias{suffix}"), -k_hidden, k_hidden)
        else:
            init.constant_(getattr(self, f"eta{suffix}"), 0.01)

    def _run(
        self,
        x: Tensor,
        state: ModPlastState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, ModPlastState, Tensor | None]:
        inputs = x.shape[-1]
        weight = self._parameter("weight_ih", suffix)
        v, d = (
            self._parameter("modulator_weight", suffix),
            self._parameter("modulator_bias", suffix),
        )
        eta = self._parameter("eta", suffix)
        if self._frozen:  # nothing is learnt at a rate of zero
            v, d, eta = None, None, x.new_zeros(())
        y, hebb, power = backends.modplast(
            functional.linear(x, weight, self._parameter("bias", suffix)),
            state.h,
            state.hebb,
            self._parameter("weight_hh", suffix),
            self._parameter("alpha", suffix),
            v,
            d,
            eta,
            reset=reset,
            lengths=lengths,
            power_weight=None if power_weight is None else power_weight[inputs:],
        )
        if power is not None and power_weight is not None:
            counted = power_weight[:inputs]
            power = backends.plus_static_power(power, x, weight, counted, graph=self._power_graph)
        return y, ModPlastState(last_step(y, lengths), hebb), power

    def _synapses(self, state: ModPlastState, suffix: str) -> tuple[Tensor, Tensor]:
        weight = self._parameter("weight_ih", suffix)  # (H, I)
        plastic = self._parameter("alpha", suffix) * state.hebb  # (B, H, H)
        f = functional.pad(plastic, (weight.shape[1], 0))
        return f, torch.cat([weight, self._parameter("weight_hh", suffix)], dim=1) + f

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.modulated else ", modulated=False")


class ModPlast(_ModPlast, RecurrentCore):
    """RNN with plastic recurrent synapses, used as `STPNr`; state: `ModPlastState(h, hebb)`.

    `modulated=True`: a scalar that the network computes from its activations says how much each
    step is learnt. `modulated=False`: one trained rate does. `bias` is that of the neurons.
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
        modulated: bool = True,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(modulated)
        self._build(device, dtype)


class ModPlastCell(_ModPlast, RecurrentCell):
    """One step of `ModPlast`: `h, state = cell(x, state)`, used as `STPNrCell`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        modulated: bool = True,
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(modulated)
        self._build(device, dtype)
