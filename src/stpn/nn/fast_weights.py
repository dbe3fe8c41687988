"""An RNN with fast weights (Ba et al. 2016), as layer and as cell.

What it computes is in `stpn.ops.fast_weights.reference`: A' = decay * A + rate * (h_prev outer
h_prev), with a fixed decay and rate.

Parameters of layer k: `weight_lk` (H, I + H), columns: inputs first; `bias_lk` (H); the one layer
norm `ln_weight_lk` and `ln_bias_lk` (H). Cells go without the suffix.
"""

from __future__ import annotations

import math
from typing import Annotated, NoReturn

from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.normalisation import Normalize, normalised_rows
from stpn.nn.operations import Operations
from stpn.nn.state import FastWeightsState
from stpn.nn.time import last_step
from stpn.ops import backends


class _FastWeights(Recurrence):
    state_type = FastWeightsState

    def configure(
        self,
        *,
        decay: Annotated[float, "how much of the fast weights is kept"] = 0.9,
        rate: Annotated[float, "how much of h outer h is added to them"] = 0.5,
        steps: Annotated[int, "turns of the inner loop per time step"] = 1,
        eps: Annotated[float, "of the layer norm"] = 1e-5,
        normalize: Normalize = False,
    ) -> None:
        self.decay = checks.number("decay", decay)
        self.rate = checks.number("rate", rate)
        self.steps = checks.positive_int("steps", steps)
        self.eps = checks.number("eps", eps)
        self.normalize = checks.flag("normalize", normalize)

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (self.hidden_size, self.hidden_size)

    def parameter_shapes(self, input_size: int) -> Shapes:
        hidden = self.hidden_size
        return {
            "weight": (hidden, input_size + hidden),
            "bias": (hidden,) if self.has_bias else None,
            "ln_weight": (hidden,),
            "ln_bias": (hidden,),
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        init.uniform_(p["weight"], -k, k)
        if self.has_bias:
            init.uniform_(p["bias"], -k, k)
        init.ones_(p["ln_weight"])
        init.zeros_(p["ln_bias"])

    def slow_weight(self, p: Parameters) -> Tensor:
        """(H, I + H): as it acts."""
        (weight,) = normalised_rows(p["weight"]) if self.normalize else (p["weight"],)
        return weight

    def run(
        self,
        x: Tensor,
        state: FastWeightsState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, FastWeightsState, Tensor | None]:
        inputs = x.shape[-1]
        w_x, w_h = self.slow_weight(p).split((inputs, self.hidden_size), dim=-1)
        # Frozen fast weights neither decay nor grow.
        decay, rate = (1.0, 0.0) if self.freezes else (self.decay, self.rate)
        y, a, power = backends.fast_weights(
            functional.linear(x, w_x, p["bias"]),
            state.h,
            state.a,
            w_h,
            p["ln_weight"],
            p["ln_bias"],
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
            power = backends.plus_static_power(power, x, w_x, counted, graph=self.power_graph)
        return y, FastWeightsState(last_step(y, lengths), a), power

    def synapses(self, state: FastWeightsState, p: Parameters) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no single matrix of efficacies to trace: its fast weights "
            "see another u than its slow ones"
        )

    def count_synapses(self, input_size: int) -> int:
        return self.hidden_size * (input_size + 2 * self.hidden_size)  # slow ones, then fast ones

    def operations(self, input_size: int) -> Operations:
        """The inner loop reads the fast weights again and again, and normalises each time."""
        hidden, steps = self.hidden_size, self.steps
        return Operations(
            cells=self.count_synapses(input_size),
            reads=hidden * (input_size + hidden) + steps * hidden * hidden,
            inputs=input_size + hidden + steps * hidden,
            outputs=(1 + steps) * hidden,
            fan_in=input_size + hidden,
            writes=hidden * hidden,
            normalised=(1 + steps) * hidden,
        )


class FastWeights(_FastWeights, RecurrentCore):
    """RNN with fast weights, used as `STPNr` is; the state is a tuple of `FastWeightsState(h, a)`.

    core = FastWeights(37, 20, batch_first=True)
    y, state = core(x)                        # (B, T, 37) -> (B, T, 20)
    """


class FastWeightsCell(_FastWeights, RecurrentCell):
    """One step of `FastWeights`: `h, state = cell(x, state)`, used as `STPNrCell`."""
