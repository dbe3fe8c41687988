"""RNN, LSTM, GRU and MLP in the calling form of the STPN layers, on PyTorch's own fused kernels.

Parameters have the names and starts of `nn.RNN`, `nn.LSTM` and `nn.GRU` (cells: of `nn.RNNCell` and
so on), so a `state_dict` fits both ways. The MLP has `weight_lk` (H, I) and `bias_lk` (H).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.normalisation import Normalize, normalised_rows
from stpn.nn.operations import Operations
from stpn.nn.state import LSTMState, MLPState, RNNState
from stpn.nn.time import last_step
from stpn.ops import aten
from stpn.ops.power import hidden_power, static_power

LayerNorm: TypeAlias = Annotated[
    bool, "standardise the sums of the neurons, of each gate by itself, with a learnt gain"
]
Nonlinearity: TypeAlias = Annotated[Literal["tanh", "relu"], "of the neurons"]


class _Fixed(Recurrence):
    """Synapses that do not change, with one row per gate and hidden unit."""

    gates: ClassVar[int] = 1

    def configure(self, *, normalize: Normalize = False, layer_norm: LayerNorm = False) -> None:
        self.normalize = checks.flag("normalize", normalize)
        self.layer_norm = checks.flag("layer_norm", layer_norm)
        if self.layer_norm:
            self.plain_because = "PyTorch's RNN, LSTM and GRU have no layer norm"

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
            "ln_weight": (rows,) if self.layer_norm else None,
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        for name, value in p.items():
            if value is not None:
                init.ones_(value) if name == "ln_weight" else init.uniform_(value, -k, k)

    def operands(self, p: Parameters) -> tuple[Tensor, ...]:
        """weight_ih, weight_hh as they act, and the biases if there are any."""
        weights: tuple[Tensor, ...] = (p["weight_ih"], p["weight_hh"])
        if self.normalize:
            weights = normalised_rows(*weights)
        return (*weights, p["bias_ih"], p["bias_hh"]) if self.has_bias else weights

    def synapses(self, state: Any, p: Parameters) -> tuple[Tensor, Tensor]:
        if not self.layer_norm:
            return super().synapses(state, p)
        g = torch.cat(self.operands(p)[:2], dim=1)
        return torch.zeros_like(g), g

    def sums(self, x: Tensor, h: Tensor, p: Parameters) -> tuple[Tensor, ...]:
        """Standardised sums with their biases, (B, H) of each of the gates."""
        w_ih, w_hh, *biases = self.operands(p)
        a = functional.linear(x, w_ih) + functional.linear(h, w_hh)
        return self._standardised(a, sum(biases) if biases else None, p)

    def _standardised(self, a: Tensor, bias: Any, p: Parameters) -> tuple[Tensor, ...]:
        of_gates = a.unflatten(-1, (self.gates, -1))  # (B, gates, H)
        of_gates = functional.layer_norm(of_gates, of_gates.shape[-1:])
        a = p["ln_weight"] * of_gates.flatten(-2)
        return (a if bias is None else a + bias).chunk(self.gates, dim=-1)

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
        w_ih, w_hh, *_ = self.operands(p)
        of_input = static_power(x, w_ih, power_weight[:inputs])
        counted = power_weight[inputs:]
        return of_input + hidden_power(y, h0, w_hh, counted, reset, lengths)


class _RNN(_Fixed):
    state_type = RNNState

    def configure(self, *, nonlinearity: Nonlinearity = "tanh", **options: Any) -> None:
        self.nonlinearity = checks.choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        super().configure(**options)

    def advance(self, x: Tensor, state: RNNState, p: Parameters) -> tuple[Tensor, RNNState]:
        (a,) = self.sums(x, state.h, p)
        h = torch.tanh(a) if self.nonlinearity == "tanh" else torch.relu(a)
        return h, RNNState(h)

    def run(
        self,
        x: Tensor,
        state: RNNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        if self.layer_norm:  # PyTorch's kernels have none
            return super().run(x, state, p, reset, lengths, power_weight)
        weights, kind = self.operands(p), self.nonlinearity
        y = aten.rnn(x, state.h, weights, nonlinearity=kind, reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, RNNState(last_step(y, lengths)), power


class _LSTM(_Fixed):
    state_type = LSTMState
    gates = 4

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size,)

    def advance(self, x: Tensor, state: LSTMState, p: Parameters) -> tuple[Tensor, LSTMState]:
        i, f, g, o = self.sums(x, state.h, p)
        c = f.sigmoid() * state.c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, LSTMState(h, c)

    def run(
        self,
        x: Tensor,
        state: LSTMState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, LSTMState, Tensor | None]:
        if self.layer_norm:  # PyTorch's kernels have none
            return super().run(x, state, p, reset, lengths, power_weight)
        weights = self.operands(p)
        y, c = aten.lstm(x, state.h, state.c, weights, reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, LSTMState(last_step(y, lengths), c), power


class _GRU(_Fixed):
    state_type = RNNState
    gates = 3

    def advance(self, x: Tensor, state: RNNState, p: Parameters) -> tuple[Tensor, RNNState]:
        w_ih, w_hh, *biases = self.operands(p)
        b_ih, b_hh = biases or (None, None)
        r, z, _ = self.sums(x, state.h, p)
        # r scales what comes from h alone: the two parts of n are standardised by themselves.
        _, _, n_x = self._standardised(functional.linear(x, w_ih), b_ih, p)
        _, _, n_h = self._standardised(functional.linear(state.h, w_hh), b_hh, p)
        r, z = r.sigmoid(), z.sigmoid()
        h = (1 - z) * torch.tanh(n_x + r * n_h) + z * state.h
        return h, RNNState(h)

    def run(
        self,
        x: Tensor,
        state: RNNState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, RNNState, Tensor | None]:
        if self.layer_norm:  # PyTorch's kernels have none
            return super().run(x, state, p, reset, lengths, power_weight)
        y = aten.gru(x, state.h, self.operands(p), reset=reset, lengths=lengths)
        power = self._power(x, y, state.h, p, reset, lengths, power_weight)
        return y, RNNState(last_step(y, lengths)), power

    def operations(self, input_size: int) -> Operations:
        """The reset gate multiplies one half of the candidate: it is two sums."""
        return replace(super().operations(input_size), outputs=4 * self.hidden_size)


class _MLP(Recurrence):
    state_type = MLPState
    recurrent = False

    def configure(self, *, normalize: Normalize = False) -> None:
        self.normalize = checks.flag("normalize", normalize)

    def operands(self, p: Parameters) -> tuple[Tensor, Tensor | None]:
        """weight as it acts, and bias."""
        (weight,) = normalised_rows(p["weight"]) if self.normalize else (p["weight"],)
        return weight, p["bias"]

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
        weight, bias = self.operands(p)
        y = torch.tanh(functional.linear(x, weight, bias))
        y = aten.zero_past_the_ends(y, lengths)
        power = None if power_weight is None else static_power(x, weight, power_weight)
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
