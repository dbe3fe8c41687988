"""Inverted Pendulum with the value's error limited as RLlib's PPO does by default.

    python examples/pendulum_value_clip.py --model lstm --steps 300000

The paper trained with RLlib and its defaults, one of which (`vf_clip_param`) lets the squared error
of a step count up to 10: where the value is further off, it learns nothing from that step. Returns
of this task go up to 100. Everything else is as in `stpn train pendulum --preset paper`. Prints
a row of metrics every 20,000 steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stpn.experiments import default_config
from stpn.training.ppo import PPO, Sequences
from stpn.training.reinforcement import ReinforcementTrainer


class ClippedValuePPO(PPO):
    """PPO for whose value a step's squared error counts up to `limit`."""

    limit = 10.0

    def value_errors(self, values: Tensor, batch: Sequences) -> Tensor:
        return super().value_errors(values, batch).clamp(max=self.limit)


def train(model: str, steps: int, limit: float, **settings: Any) -> list[dict[str, Any]]:
    """The rows of metrics."""
    config = default_config("pendulum", model, preset="paper", steps=steps, **settings)
    torch.manual_seed(config.seed)
    trainer = ReinforcementTrainer(config)
    trainer.algorithm = ClippedValuePPO(trainer.model, trainer.gradients, config)
    trainer.algorithm.limit = limit
    rows = []
    while trainer.done < trainer.total:
        row = trainer.advance()
        if row is not None:
            rows.append(row)
            print(json.dumps(row), flush=True)
    trainer.close()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lstm", choices=["stpnf", "lstm", "rnn", "mlp"])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=ClippedValuePPO.limit)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    train(options.model, options.steps, options.limit, seed=options.seed)


if __name__ == "__main__":
    main()
