"""RNN, LSTM, GRU and MLP in the calling form of the STPN layers, on PyTorch's own fused kernels.

Parameters have the names and starts of `nn.RNN`, `nn.LSTM` and `nn.GRU` (cells: of `nn.RNNCell` and
so on), so a `state_dict` fits both ways. The MLP has `weight_lk` (H, I) and `bias_lk` (H).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.operations import Operations
from stpn.nn.state import LSTMState, MLPState, RNNState
from stpn.nn.time import last_step
from stpn.ops import aten
from stpn.ops.power import hidden_power, static_power

Nonlinearity: TypeAlias = Annotated[Literal["tanh", "relu"], "of the neurons"]


class _Fixed(Recurrence):
    """Synapses that do not change, with one row per gate and hidden unit."""

    gates: ClassVar[int] = 1

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return ((self.hidden_size,),)

    def parameter_shapes(self, input_size: int) -> Shapes:
        rows = self.gates * self.hidden_size
        bias = (rows,) if self.has_bias else None
        return {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, self.hidden_size),
            "bias_ih": bias,
            "bias_hh": bias,
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        for value in self.operands(p):
            init.uniform_(value, -k, k)

    def operands(self, p: Parameters) -> tuple[Tensor, ...]:
        """weight_ih, weight_hh, and the biases if there are any."""
        weights = p["weight_ih"], p["weight_hh"]
        return (*weights, p["bias_ih"], p["bias_hh"]) if self.has_bias else weights

    def _power(
        self,
        x: Tensor,  # (B, T, I)
        y: Tensor,  # (B, T, H)
        h0: Tensor,  # (B, H)
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,  # (I + H,)
    ) -> Tensor | None:
        """(B, T): all rows see u = [x ; h_prev], and x is 0 past the ends."""
        if power_weight is None:
            return None
        inputs = x.shape[-1]
        of_input = static_power(x, p["weight_ih"], power_weight[:inputs])
        counted = power_weight[inputs:]
        return of_input + hidden_power(y, h0, p["weight_hh"], counted, reset, lengths)


class _RNN(_Fixed):
    state_type = RNNState

    def configure(self, *, nonlinearity: Nonlinearity = "tanh") -> None:
        self.nonlinearity = checks.choice("nonlinearity", nonlinearity, ("tanh", "relu"))

    def run(
        self,
        x: Tensor,
        state: RNNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        weights, kind = self.operands(p), self.nonlinearity
        y = aten.rnn(x, state.h, weights, nonlinearity=kind, reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, RNNState(last_step(y, lengths)), power


class _LSTM(_Fixed):
    state_type = LSTMState
    gates = 4

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size,)

    def run(
        self,
        x: Tensor,
        state: LSTMState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, LSTMState, Tensor | None]:
        weights = self.operands(p)
        y, c = aten.lstm(x, state.h, state.c, weights, reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, LSTMState(last_step(y, lengths), c), power


class _GRU(_Fixed):
    state_type = RNNState
    gates = 3

    def run(
        self,
        x: Tensor,
        state: RNNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        y = aten.gru(x, state.h, self.operands(p), reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, RNNState(last_step(y, lengths)), power

    def operations(self, input_size: int) -> Operations:
        """The reset gate multiplies one half of the candidate: it is two sums."""
        return replace(super().operations(input_size), outputs=4 * self.hidden_size)


class _MLP(Recurrence):
    state_type = MLPState
    recurrent = False

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return ()

    def parameter_shapes(self, input_size: int) -> Shapes:
        bias = (self.hidden_size,) if self.has_bias else None
        return {"weight": (self.hidden_size, input_size), "bias": bias}

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(input_size)
        init.uniform_(p["weight"], -k, k)
        if self.has_bias:
            init.uniform_(p["bias"], -k, k)

    def run(
        self,
        x: Tensor,
        state: MLPState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, MLPState, Tensor | None]:
        y = torch.tanh(functional.linear(x, p["weight"], p["bias"]))
        y = aten.zero_past_the_ends(y, lengths)
        power = None if power_weight is None else static_power(x, p["weight"], power_weight)
        return y, state, power


class RNN(_RNN, RecurrentCore):
    """`nn.RNN` with the calling form of the STPN layers; state: `RNNState(h)`."""


class RNNCell(_RNN, RecurrentCell):
    """One step of `RNN`: `h, state = cell(x, state)`."""


class LSTM(_LSTM, RecurrentCore):
    """`nn.LSTM` with the calling form of the STPN layers; state: `LSTMState(h, c)`."""


class LSTMCell(_LSTM, RecurrentCell):
    """One step of `LSTM`: `h, state = cell(x, state)`."""


class GRU(_GRU, RecurrentCore):
    """`nn.GRU` with the calling form of the STPN layers; state: `RNNState(h)`."""


class GRUCell(_GRU, RecurrentCell):
    """One step of `GRU`: `h, state = cell(x, state)`."""


class MLP(_MLP, RecurrentCore):
    """One hidden layer of tanh units (`num_layers` of them), applied to each step by itself.

    It remembers nothing: the state is a tuple of empty `MLPState()`, and a reset changes nothing.
    """


class MLPCell(_MLP, RecurrentCell):
    """One step of `MLP`."""
