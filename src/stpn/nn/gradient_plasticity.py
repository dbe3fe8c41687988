"""An RNN with gradient-based plasticity (Duan et al. 2023), as layer and as cell.

What it computes is in `stpn.ops.gradient_plasticity.reference`. In the paper the outputs of the
task are among those of the internal loss; a core does not know them, and has the internal ones
alone. Its loss is that of each sequence by itself, where the public code takes the mean of a batch.

Parameters of layer k: `weight_lk` and `alpha_lk` (H, I + H + 1), the synapses and their rates,
columns: inputs, hidden units, bias; `weight_out_lk` and `alpha_out_lk` (O, H + 1) of the internal
outputs, `scale_lk` (O) of their loss. Cells go without the suffix.
"""

from __future__ import annotations

import math
from typing import Annotated, NoReturn

from torch import Tensor
from torch.nn import init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.cell import RecurrentCell
from stpn.nn.core import RecurrentCore
from stpn.nn.state import GradientPlasticityState
from stpn.nn.time import last_step
from stpn.nn.torch_cores import Nonlinearity
from stpn.ops import backends


class _GradientPlasticity(Recurrence):
    state_type = GradientPlasticityState

    def configure(
        self,
        *,
        outputs: Annotated[int, "internal outputs, the modulator not counted"] = 4,
        rate: Annotated[float, "inner learning rate, which the modulator at most doubles"] = 0.1,
        decay: Annotated[float, "share of F that is lost, modulated as the rate"] = 0.1,
        clip: Annotated[float, "most of the norm of the inner gradient"] = 1.0,
        nonlinearity: Nonlinearity = "relu",
    ) -> None:
        self.outputs = checks.positive_int("outputs", outputs)
        self.rate = checks.number("rate", rate)
        self.decay = checks.number("decay", decay)
        self.clip = checks.number("clip", clip)
        if self.clip <= 0:
            raise ValueError(f"clip: expected a number > 0, got {clip!r}")
        self.nonlinearity = checks.choice("nonlinearity", nonlinearity, ("tanh", "relu"))

    def _shapes(self, input_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of the synapses of the neurons, and of those of the internal outputs."""
        hidden, bias = self.hidden_size, int(self.has_bias)
        return (hidden, input_size + hidden + bias), (self.outputs + 1, hidden + bias)

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), *self._shapes(input_size)

    def parameter_shapes(self, input_size: int) -> Shapes:
        neurons, outputs = self._shapes(input_size)
        return {
            "weight": neurons,
            "weight_out": outputs,
            "alpha": neurons,
            "alpha_out": outputs,
            "scale": (self.outputs + 1,),
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        for name in ("weight", "weight_out"):
            init.uniform_(p[name], -k, k)
        for name in ("alpha", "alpha_out"):
            init.uniform_(p[name], -1, 1)
        init.ones_(p["scale"])

    def run(
        self,
        x: Tensor,
        state: GradientPlasticityState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, GradientPlasticityState, Tensor | None]:
        y, f, f_out, power = backends.gradient_plasticity(
            x,
            state.h,
            state.f,
            state.f_out,
            p["weight"],
            p["weight_out"],
            p["alpha"],
            p["alpha_out"],
            p["scale"],
            rate=self.rate,
            decay=self.decay,
            clip=self.clip,
            nonlinearity=self.nonlinearity,
            frozen=self.frozen,
            reset=reset,
            lengths=lengths,
            power_weight=power_weight,
        )
        if self.frozen:  # they may be those that came in
            f, f_out = f.clone(), f_out.clone()
        return y, GradientPlasticityState(last_step(y, lengths), f, f_out), power

    def synapses(self, state: GradientPlasticityState, p: Parameters) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no single matrix of efficacies to trace: its internal "
            "outputs see another u than its neurons"
        )

    def count_synapses(self, input_size: int) -> int:
        rows, inputs = self.hidden_size, input_size + self.hidden_size
        return rows * inputs + (self.outputs + 1) * self.hidden_size


class GradientPlasticity(_GradientPlasticity, RecurrentCore):
    """RNN whose synapses learn by the gradient of an internal loss, used as `STPNr`.

    The state is a tuple of `GradientPlasticityState(h, f, f_out)`.
    """


class GradientPlasticityCell(_GradientPlasticity, RecurrentCell):
    """One step of `GradientPlasticity`: `h, state = cell(x, state)`."""
