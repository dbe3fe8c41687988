"""RNN, LSTM, GRU and MLP in the calling form of the STPN layers, on PyTorch's own fused kernels.

Parameters have the names and starts of `nn.RNN`, `nn.LSTM` and `nn.GRU` (cells: of `nn.RNNCell` and
so on), so a `state_dict` fits both ways. The MLP has `weight_lk` (H, I) and `bias_lk` (H).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence
from stpn.nn.state import LSTMState, MLPState, RNNState
from stpn.nn.time import last_step
from stpn.ops import aten
from stpn.ops.power import hidden_power, static_power

Nonlinearity: TypeAlias = Literal["tanh", "relu"]


class _Fixed(Recurrence):
    """Synapses that do not change, with one row per gate and hidden unit."""

    gates: ClassVar[int] = 1

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return ((self.hidden_size,),)

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        rows = self.gates * self.hidden_size
        bias = (rows,) if self.has_bias else None
        self._register("weight_ih", suffix, (rows, input_size), factory)
        self._register("weight_hh", suffix, (rows, self.hidden_size), factory)
        self._register("bias_ih", suffix, bias, factory)
        self._register("bias_hh", suffix, bias, factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        for name in self._names():
            init.uniform_(getattr(self, f"{name}{suffix}"), -k, k)

    def _names(self) -> tuple[str, ...]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return names if self.has_bias else names[:2]

    def _weights(self, suffix: str) -> tuple[Tensor, ...]:
        return tuple(self._parameter(name, suffix) for name in self._names())

    def _power(
        self,
        x: Tensor,  # (B, T, I)
        y: Tensor,  # (B, T, H)
        h0: Tensor,  # (B, H)
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,  # (I + H,)
    ) -> Tensor | None:
        """(B, T): all rows see u = [x ; h_prev], and x is 0 past the ends."""
        if power_weight is None:
            return None
        inputs = x.shape[-1]
        of_input = static_power(x, self._parameter("weight_ih", suffix), power_weight[:inputs])
        weight, counted = self._parameter("weight_hh", suffix), power_weight[inputs:]
        of_hidden = hidden_power(y, h0, weight, counted, reset, lengths)
        return of_input + of_hidden


class _RNN(_Fixed):
    state_type = RNNState

    def _configure(self, nonlinearity: Nonlinearity) -> None:
        self.nonlinearity = checks.choice("nonlinearity", nonlinearity, ("tanh", "relu"))

    def _run(
        self,
        x: Tensor,
        state: RNNState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        y = aten.rnn(
            x,
            state.h,
            self._weights(suffix),
            nonlinearity=self.nonlinearity,
            reset=reset,
            lengths=lengths,
        )
        power = self._power(x, y, state.h, reset, lengths, suffix, power_weight)
        return y, RNNState(last_step(y, lengths)), power

    def extra_repr(self) -> str:
        other = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity!r}"
        return super().extra_repr() + other


class _LSTM(_Fixed):
    state_type = LSTMState
    gates = 4

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size,)

    def _run(
        self,
        x: Tensor,
        state: LSTMState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, LSTMState, Tensor | None]:
        weights = self._weights(suffix)
        y, c = aten.lstm(x, state.h, state.c, weights, reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, reset, lengths, suffix, power_weight)
        return y, LSTMState(last_step(y, lengths), c), power


class _GRU(_Fixed):
    state_type = RNNState
    gates = 3

    def _run(
        self,
        x: Tensor,
        state: RNNState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        y = aten.gru(x, state.h, self._weights(suffix), reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, reset, lengths, suffix, power_weight)
        return y, RNNState(last_step(y, lengths)), power


class _MLP(Recurrence):
    state_type = MLPState
    recurrent = False

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return ()

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        self._register("weight", suffix, (self.hidden_size, input_size), factory)
        self._register("bias", suffix, (self.hidden_size,) if self.has_bias else None, factory)

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        k = 1 / math.sqrt(input_size)
        for name in ("weight", "bias") if self.has_bias else ("weight",):
            init.uniform_(getattr(self, f"{name}{suffix}"), -k, k)

    def _run(
        self,
        x: Tensor,
        state: MLPState,
        reset: Tensor | None,
        lengths: Tensor | None,
        suffix: str,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, MLPState, Tensor | None]:
        weight = self._parameter("weight", suffix)
        y = torch.tanh(functional.linear(x, weight, self._parameter("bias", suffix)))
        y = aten.zero_past_the_ends(y, lengths)
        power = None if power_weight is None else static_power(x, weight, power_weight)
        return y, state, power


class _Layer(RecurrentCore):
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
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._build(device, dtype)


class _Cell(RecurrentCell):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._build(device, dtype)


class RNN(_RNN, RecurrentCore):
    """`nn.RNN` with the calling form of the STPN layers; state: `RNNState(h)`."""

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
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
        self._configure(nonlinearity)
        self._build(device, dtype)


class RNNCell(_RNN, RecurrentCell):
    """One step of `RNN`: `h, state = cell(x, state)`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self._configure(nonlinearity)
        self._build(device, dtype)


class LSTM(_LSTM, _Layer):
    """`nn.LSTM` with the calling form of the STPN layers; state: `LSTMState(h, c)`."""


class LSTMCell(_LSTM, _Cell):
    """One step of `LSTM`: `h, state = cell(x, state)`."""


class GRU(_GRU, _Layer):
    """`nn.GRU` with the calling form of the STPN layers; state: `RNNState(h)`."""


class GRUCell(_GRU, _Cell):
    """One step of `GRU`: `h, state = cell(x, state)`."""


class MLP(_MLP, _Layer):
    """One hidden layer of tanh units (`num_layers` of them), applied to each step by itself.

    It remembers nothing: the state is a tuple of empty `MLPState()`, and a reset changes nothing.
    """


class MLPCell(_MLP, _Cell):
    """One step of `MLP`."""
