"""RNNs with Hebbian plasticity that the network modulates itself (Miconi et al. 2019), or does not.

What they compute is in `stpn.ops.modplast.reference`. Parameters of layer k: `weight_ih_lk` (H, I)
and `bias_lk` (H) of the input, `weight_hh_lk` and `alpha_lk` (H, H) of the recurrent synapses (the
fixed part, and how plastic each is), `modulator_weight_lk` (H) and `modulator_bias_lk` () if they
are modulated, else `eta_lk` (), the one learning rate. Cells go without the suffix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.normalisation import Normalize, normalised_rows
from stpn.nn.operations import Operations
from stpn.nn.state import ModPlastState, RetroactiveState
from stpn.nn.time import last_step
from stpn.ops import backends


class _ModPlast(Recurrence):
    state_type: ClassVar[Callable[..., Any]] = ModPlastState

    def configure(
        self,
        *,
        modulated: Annotated[
            bool, "the network says how much each step is learnt; else one trained rate does"
        ] = True,
        normalize: Normalize = False,
    ) -> None:
        self.modulated = checks.flag("modulated", modulated)
        self.normalize = checks.flag("normalize", normalize)

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, self.hidden_size)

    def parameter_shapes(self, input_size: int) -> Shapes:
        hidden = self.hidden_size
        return {
            "weight_ih": (hidden, input_size),
            "bias": (hidden,) if self.has_bias else None,
            "weight_hh": (hidden, hidden),
            "alpha": (hidden, hidden),
            "modulator_weight": (hidden,) if self.modulated else None,
            "modulator_bias": () if self.modulated else None,
            "eta": None if self.modulated else (),
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k_input, k_hidden = 1 / math.sqrt(input_size), 1 / math.sqrt(self.hidden_size)
        init.uniform_(p["weight_ih"], -k_input, k_input)
        if self.has_bias:
            init.uniform_(p["bias"], -k_input, k_input)
        init.uniform_(p["weight_hh"], 0, 0.01)
        init.uniform_(p["alpha"], 0, 0.01)
        if self.modulated:
            init.uniform_(p["modulator_weight"], -k_hidden, k_hidden)
            init.uniform_(p["modulator_bias"], -k_hidden, k_hidden)
        else:
            init.constant_(p["eta"], 0.01)

    def weights(self, p: Parameters) -> tuple[Tensor, ...]:
        """weight_ih and weight_hh as they act."""
        weights = p["weight_ih"], p["weight_hh"]
        return normalised_rows(*weights) if self.normalize else weights

    def run(
        self,
        x: Tensor,
        state: ModPlastState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, ModPlastState, Tensor | None]:
        inputs, (weight, w_hh) = x.shape[-1], self.weights(p)
        v, d, eta = p["modulator_weight"], p["modulator_bias"], p["eta"]
        if self.freezes:  # nothing is learnt at a rate of zero
            v, d, eta = None, None, x.new_zeros(())
        y, hebb, power = backends.modplast(
            functional.linear(x, weight, p["bias"]),
            state.h,
            state.hebb,
            w_hh,
            p["alpha"],
            v,
            d,
            eta,
            reset=reset,
            lengths=lengths,
            power_weight=None if power_weight is None else power_weight[inputs:],
        )
        if power is not None and power_weight is not None:
            counted = power_weight[:inputs]
            power = backends.plus_static_power(power, x, weight, counted, graph=self.power_graph)
        return y, ModPlastState(last_step(y, lengths), hebb), power

    def synapses(self, state: ModPlastState, p: Parameters) -> tuple[Tensor, Tensor]:
        plastic = p["alpha"] * state.hebb  # (B, H, H)
        f = functional.pad(plastic, (p["weight_ih"].shape[1], 0))
        return f, torch.cat(self.weights(p), dim=1) + f

    def operations(self, input_size: int) -> Operations:
        """The modulator is one more row on the new activations."""
        usual = super().operations(input_size)
        modulator = self.hidden_size if self.modulated else 0
        return replace(
            usual,
            cells=usual.cells + modulator,
            reads=usual.reads + modulator,
            inputs=usual.inputs + modulator,
            outputs=usual.outputs + self.modulated,
        )


class _Retroactive(_ModPlast):
    """With eligibility traces: what the modulator of a step takes over is what came before it.

        Hb' = clip(Hb + m E),  E' = (1 - eta) E + eta (h outer h_prev)

    with m as in `ModPlast` and eta trained. It has no kernel: every step is plain PyTorch.
    """

    state_type = RetroactiveState
    plain_because = "modulated plasticity with eligibility traces (modul) has no kernel"

    def configure(self, *, normalize: Normalize = False) -> None:  # type: ignore[override]
        super().configure(modulated=True, normalize=normalize)

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        h, hebb = super().state_shapes(input_size)
        return h, hebb, hebb

    def parameter_shapes(self, input_size: int) -> Shapes:
        return {**super().parameter_shapes(input_size), "eta": ()}

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        super().init_parameters(p, input_size)
        init.constant_(p["eta"], 0.1)

    def advance(
        self, x: Tensor, state: RetroactiveState, p: Parameters
    ) -> tuple[Tensor, RetroactiveState]:
        w_ih, w_hh = self.weights(p)
        drive = functional.linear(x, w_ih, p["bias"])
        g = w_hh + p["alpha"] * state.hebb  # (B, H, H)
        h = torch.tanh(drive + torch.einsum("bij,bj->bi", g, state.h))
        if self.freezes:
            return h, RetroactiveState(h, state.hebb, state.trace)
        m = torch.tanh(h @ p["modulator_weight"] + p["modulator_bias"])  # (B,)
        hebb = (state.hebb + m.reshape(-1, 1, 1) * state.trace).clamp(-1.0, 1.0)
        met = h.unsqueeze(2) * state.h.unsqueeze(1)  # (B, H, H)
        return h, RetroactiveState(h, hebb, (1 - p["eta"]) * state.trace + p["eta"] * met)

    run = Recurrence.run
    run_in_place, bind = Recurrence.run_in_place, Recurrence.bind


class ModPlast(_ModPlast, RecurrentCore):
    """RNN with plastic recurrent synapses, used as `STPNr`; state: `ModPlastState(h, hebb)`.

    `modulated=True`: a scalar that the network computes from its activations says how much each
    step is learnt. `modulated=False`: one trained rate does. `bias` is that of the neurons.
    """


class ModPlastCell(_ModPlast, RecurrentCell):
    """One step of `ModPlast`: `h, state = cell(x, state)`, used as `STPNrCell`."""


class Retroactive(_Retroactive, RecurrentCore):
    """`ModPlast` with eligibility traces (Backpropamine's retroactive form), used as it is.

    The state is a tuple of `RetroactiveState(h, hebb, trace)`.
    """


class RetroactiveCell(_Retroactive, RecurrentCell):
    """One step of `Retroactive`: `h, state = cell(x, state)`, used as `STPNrCell`."""
