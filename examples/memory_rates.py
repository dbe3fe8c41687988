"""Learning rates for the memory suite: each core's best of three, on its cheapest task.

    python examples/memory_rates.py results/memory-suite/rates.json [MODEL ...]

Trains every core of the suite on `retrieval-p3` for 1,500 iterations by each rate and writes the
mean loss of the last 250, which no core has seen before, so that it is a test loss. The file grows
core by core, and what it has is not run again. The rates that won stand in `stpn.tasks.memory`;
`stpn report` shows the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from stpn import experiments
from stpn._files import write_atomic

TASK, ITERATIONS, RATES = "retrieval-p3", 1500, (1e-3, 3e-3, 1e-2)


def loss(model: str, rate: float, iterations: int = ITERATIONS) -> float:
    """Of the last sixth of a training by that rate."""
    last = -(-iterations // 6)
    config = experiments.default_config(
        TASK, model, lr=rate, iterations=iterations, log_every=iterations, eval_sequences=8
    )
    torch.manual_seed(config.seed)
    trainer = experiments.get(TASK).task.build_trainer(config)
    losses = []
    while trainer.done < trainer.total:
        trainer.update()
        losses.append(trainer.loss)
    return sum(losses[-last:]) / last


def main(path: Path, models: list[str]) -> None:
    torch.set_num_threads(1)
    found = json.loads(path.read_text()) if path.exists() else {}
    found = {"task": TASK, "iterations": ITERATIONS, "losses": {}, **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    for model in models or experiments.SUITES["memory-suite"].models:
        losses = found["losses"].setdefault(model, {})
        for rate in RATES:
            if str(rate) not in losses:
                losses[str(rate)] = round(loss(model, rate), 5)
        write_atomic(path, (json.dumps(found, indent=1) + "\n").encode())
        print(model, losses, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
