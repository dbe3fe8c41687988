"""Teaching a network to save energy: the front between accuracy and power on associative retrieval.

The networks of the paper are never told to save energy. Here power is part of the loss:

    loss + beta * power

A network learns the task first (beta = 0), then goes on from there once for each beta. Larger betas
buy lower power; the first savings cost hardly any accuracy, the last ones do. About a minute.

    python examples/energy_front.py
    python examples/energy_front.py --model lstm --hidden 16
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.energy import EnergyMeter
from stpn.nn import registry
from stpn.tasks import art


class Network(nn.Module):
    """A core and a linear readout of its last step."""

    def __init__(self, model: str, hidden_size: int) -> None:
        super().__init__()
        self.core = registry.build(model, art.NUM_SYMBOLS, hidden_size, batch_first=True)
        self.readout = nn.Linear(hidden_size, art.NUM_SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.core(x)  # (B, T, 37) -> (B, T, H)
        return self.readout(y[:, -1])


def train(
    network: Network, data: art.Split, steps: int, *, beta: float, lr: float, batch: int = 128
) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=lr)
    meter = EnergyMeter(network.core, differentiable=True)
    for _ in range(steps):
        rows = torch.randint(len(data.answers), (batch,))
        x, answers = art.one_hot(data.symbols[rows]), data.answers[rows]
        if beta == 0:
            loss = functional.cross_entropy(network(x), answers)
        else:
            meter.reset()
            with meter:
                loss = functional.cross_entropy(network(x), answers)
            loss = loss + beta * meter.power
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def measure(network: Network, data: art.Split) -> tuple[float, float]:
    """Accuracy in percent, and power."""
    with EnergyMeter(network.core) as meter:
        right = network(art.one_hot(data.symbols)).argmax(1) == data.answers
    return 100 * right.double().mean().item(), meter.power


def front(
    model: str,
    hidden_size: int,
    betas: Sequence[float],
    first: int,
    more: int,
    lr: float,
    seed: int,
) -> list[tuple[float, float, float]]:
    """(beta, accuracy, power) of each network, printed as they come."""
    torch.manual_seed(seed)
    data, test = art.split(art.sequences(105_000, seed=seed), [100_000, 5_000])
    network = Network(model, hidden_size)
    train(network, data, first, beta=0, lr=lr)
    print(f"{model}, {hidden_size} units: {first} steps on the task, then {more} with each beta\n")
    print("   beta   accuracy    power")
    points = []
    for beta in betas:
        pupil = copy.deepcopy(network)
        train(pupil, data, more, beta=beta, lr=lr)
        accuracy, power = measure(pupil, test)
        points.append((beta, accuracy, power))
        print(f"{beta:7g}   {accuracy:6.2f} %   {power:6.3f}", flush=True)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="stpnr", choices=registry.models())
    parser.add_argument("--hidden", type=int, default=16, help="hidden units")
    parser.add_argument("--betas", type=float, nargs="+", default=[0, 0.01, 0.03, 0.1, 0.3, 1, 3])
    parser.add_argument("--first", type=int, default=6000, help="training steps on the task alone")
    parser.add_argument("--more", type=int, default=600, help="training steps with each beta")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.perf_counter()
    points = front(
        given.model, given.hidden, given.betas, given.first, given.more, given.lr, given.seed
    )
    _, accuracy, power = points[0]
    _, least_accuracy, least_power = points[-1]
    print(
        f"\nfrom beta {points[0][0]:g} to {points[-1][0]:g}: power {least_power / power:.0%}, "
        f"accuracy {least_accuracy - accuracy:+.1f} points, in {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
