"""STPNf as the public code of the paper has it in associative retrieval, and not as the paper says.

    STPN_PLUGINS=public_stpnf stpn train art --model stpnf-public       # in this directory
    STPN_PLUGINS=public_stpnf stpn sweep art --models stpnf-public stpnf --seeds 5

Three things differ from Algorithm 1: there is no bias, F is never divided by the norm (the
efficacies are), and F goes through tanh at every step. All three together are that code.
"""

from __future__ import annotations

import torch
from torch import Tensor

import stpn
from stpn.nn import STPNState
from stpn.nn.base import Parameters


class PublicSTPNf(stpn.STPNf):
    """`STPNf` without bias, with F undivided and squashed."""

    def advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
        _, g = self.synapses(state, p)  # (B, H, I), divided by their norm
        h = torch.tanh((g @ x.unsqueeze(2)).squeeze(2))
        if self.frozen:
            return h, STPNState(h, state.f)
        met = h.unsqueeze(2) * x.unsqueeze(1)
        return h, STPNState(h, torch.tanh(p["gamma"] * met + p["lambda"] * state.f))

    def parameter_shapes(self, input_size: int) -> stpn.nn.base.Shapes:
        return {**super().parameter_shapes(input_size), "bias": None}

    run = stpn.nn.RecurrentCore.run
    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


stpn.register_core(
    "stpnf-public",
    PublicSTPNf,
    title="STPNf, as in the public code",
    colour="#8A6A3A",
    description="STPNf without bias, F undivided by the norm and squashed by tanh",
)

if __name__ == "__main__":
    stpn.testing.check_core("stpnf-public", skip=["compile"])
    print("stpnf-public keeps the promises of a core")
