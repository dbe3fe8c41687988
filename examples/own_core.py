"""A core of one's own in one file: an RNN whose synapses tire when they are used.

    python examples/own_core.py --epochs 20      # checked, then trained on associative retrieval
    python examples/own_core.py --core use=0.3

From then on it is a core like any other: `stpn.build("tiring", 37, 20)`, every task, the power
meter, `stpn.trace`, and

    STPN_PLUGINS=own_core stpn sweep art --models tiring stpnr     # in this directory

What is to be defined stands in `stpn.nn.base`.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn import init

import stpn
from stpn.cli import main
from stpn.nn.base import Parameters, Shapes


@stpn.nn.state
class TiringState(NamedTuple):
    h: Tensor
    """(B, H) activations."""
    tired: Tensor
    """(B, D) how tired the synapses of each input are, from 0 (rested) to 1."""


class Tiring(stpn.nn.RecurrentCore):
    """RNN whose synapses tire with use and recover: short-term depression."""

    state_type = TiringState

    def configure(
        self,
        *,
        use: Annotated[float, "how much a strong input tires its synapses, 0 to 1"] = 0.5,
        keep: Annotated[float, "how much of their tiredness is kept, 0 to 1"] = 0.8,
    ) -> None:
        for name, value in (("use", use), ("keep", keep)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: expected a number in [0, 1], got {value}")
        self.use, self.keep = use, keep

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        return (self.hidden_size,), (input_size + self.hidden_size,)

    def parameter_shapes(self, input_size: int) -> Shapes:
        return {
            "weight": (self.hidden_size, input_size + self.hidden_size),
            "bias": (self.hidden_size,) if self.has_bias else None,
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        k = 1 / math.sqrt(self.hidden_size)
        for value in p.values():
            if value is not None:
                init.uniform_(value, -k, k)

    def synapses(self, state: TiringState, p: Parameters) -> tuple[Tensor, Tensor]:
        f = -p["weight"] * state.tired.unsqueeze(1)  # (B, H, D)
        return f, p["weight"] + f

    def advance(self, x: Tensor, state: TiringState, p: Parameters) -> tuple[Tensor, TiringState]:
        u = torch.cat([x, state.h], dim=1)  # (B, D)
        _, g = self.synapses(state, p)
        a = (g @ u.unsqueeze(2)).squeeze(2)  # (B, H)
        h = torch.tanh(a if p["bias"] is None else a + p["bias"])
        if self.frozen:
            return h, TiringState(h, state.tired)
        tired = self.keep * state.tired + self.use * (1 - state.tired) * torch.tanh(u * u)
        return h, TiringState(h, tired)


stpn.register_core("tiring", Tiring, title="Tiring RNN", colour="#8A5A00")

if __name__ == "__main__":
    stpn.testing.check_core("tiring", skip=["compile"])
    print("tiring keeps what every core promises")
    sys.exit(main(["train", "art", "--model", "tiring", *sys.argv[1:]]))
