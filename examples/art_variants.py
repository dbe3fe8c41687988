"""Associative retrieval with the STPN changed in one respect: what explains a number of the paper?

    python examples/art_variants.py no-bias --model stpnf
    python examples/art_variants.py new-h --epochs 20
    python examples/art_variants.py none            # efficacies are not normalised
    python examples/art_variants.py post --clamp 1  # normalised after the update

Each epoch prints validation accuracy and power. Everything else is as in `stpn train art`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stpn import STPNr, STPNState, build
from stpn.experiments import default_config
from stpn.nn.base import Parameters
from stpn.nn.core import RecurrentCore
from stpn.tasks import art
from stpn.tasks.art.training import ArtTrainer
from stpn.training import optim
from stpn.training.supervised import SequenceModel

VARIANTS = ("no-bias", "new-h", "none", "post")


class NewAssociation(STPNr):
    """Recurrent synapses associate with the new h, where Algorithm 1 has the previous one.

    With the other options as they are by default, but for `stp`.
    """

    def advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
        weight, bias, lambda_, gamma = self.operands(p)
        u = torch.cat([x, state.h], dim=1)  # (B, D)
        g = weight + state.f  # (B, H, D)
        n = g.norm(dim=2, keepdim=True) + 1e-16
        h = torch.tanh(torch.einsum("bij,bj->bi", g / n, u) + bias)
        new = torch.cat([x, h], dim=1)
        f = gamma * torch.einsum("bi,bj->bij", h, new) + lambda_ * (state.f / n)
        return h, STPNState(h, state.f if self.frozen else f)

    # The kernels of STPNr follow the old rule.
    run = RecurrentCore.run
    run_in_place = RecurrentCore.run_in_place
    bind = RecurrentCore.bind


def core_of(variant: str, model: str, size: int, clamp: float | None) -> RecurrentCore:
    options: dict[str, Any] = {"batch_first": True}
    if variant == "new-h":
        stp = "uniform" if model == "ustpnr" else "synapse"
        return NewAssociation(art.NUM_SYMBOLS, size, stp=stp, **options)
    if variant == "no-bias":
        options["bias"] = False
    else:
        options |= {"norm": None if variant == "none" else variant, "clamp": clamp}
    return build(model, art.NUM_SYMBOLS, size, **options)


def train(
    variant: str,
    model: str = "stpnr",
    epochs: int = 200,
    clamp: float | None = None,
    **settings: Any,
) -> list[dict[str, float]]:
    """One row an epoch: step, proficiency (validation accuracy), power, loss."""
    config = default_config("art", model, epochs=epochs, **settings)
    torch.manual_seed(config.seed)
    trainer = ArtTrainer(config)
    core = core_of(variant, model, trainer.model.core.hidden_size, clamp)
    trainer.model = trainer.network = SequenceModel(core, art.NUM_SYMBOLS, last_only=True)
    trainer.optimizer = optim.build("Adam", trainer.model.parameters(), lr=config.lr)
    rows = []
    while trainer.done < trainer.total:
        row = trainer.advance()
        if row is not None:
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--model", default="stpnr", choices=["stpnr", "stpnf", "ustpnr", "ustpnf"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--clamp", type=float)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.variant == "new-h" and options.model.endswith("f"):
        parser.error(f"new-h: {options.model} has no recurrent synapses")
    train(options.variant, options.model, options.epochs, options.clamp, seed=options.seed)


if __name__ == "__main__":
    main()
