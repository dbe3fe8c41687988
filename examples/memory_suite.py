"""Two questions before the memory suite is run: by which learning rates, and at which cost?

    python examples/memory_suite.py rates results/memory-suite/rates.json [MODEL ...]
    python examples/memory_suite.py costs results/memory-suite/costs.json [MODEL ...]

`rates` trains every core on `retrieval-p3` for 1,500 iterations by each of three rates and writes
the mean loss of the last 250. No core has seen their sequences before, so this is a test loss. A
rate that wins early may lose later: where 0.01 won, whole runs by 0.003 and by 0.01 decided
(`stpn sweep retrieval-p3 --lr 0.01`), by the same loss, which was added to the file as "whole". The
rates that won stand in `stpn.tasks.memory`.

`costs` takes a few updates of every run and one measurement, and writes the seconds of processor
time that the whole run will take.

Both files grow core by core; what they have is not done again. `stpn report` shows them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stpn import experiments
from stpn._files import write_atomic

SUITE = experiments.SUITES["memory-suite"]
TASK, ITERATIONS, RATES = "retrieval-p3", 1500, (1e-3, 3e-3, 1e-2)


def loss(model: str, rate: float, iterations: int = ITERATIONS) -> float:
    """Of the last sixth of a training by that rate."""
    settings = {"lr": rate, "iterations": iterations, "log_every": iterations}
    trainer = _trainer(TASK, model, **settings)
    losses = []
    while trainer.done < trainer.total:
        trainer.update()
        losses.append(trainer.loss)
    last = -(-iterations // 6)
    return sum(losses[-last:]) / last


def seconds(task: str, model: str, updates: int = 3) -> float:
    """Processor time of a whole run, its measurements included."""
    trainer = _trainer(task, model)
    config = trainer.config
    trainer.update()  # the first one also prepares
    each = _timed(lambda: [trainer.update() for _ in range(updates)]) / updates
    measuring = _timed(trainer.validate)  # an eighth of the final one
    return config.iterations * each + (config.iterations / config.log_every + 8) * measuring


def _trainer(task: str, model: str, **settings: Any) -> Any:
    config = experiments.default_config(task, model, **settings)
    torch.manual_seed(config.seed)
    return experiments.get(task).task.build_trainer(config)


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(question: str, path: Path, models: list[str]) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if question == "rates":
        found = {"task": TASK, "iterations": ITERATIONS, "losses": {}, **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    for model in models or SUITE.models:
        if question == "rates":
            losses = found["losses"].setdefault(model, {})
            for rate in RATES:
                if str(rate) not in losses:
                    losses[str(rate)] = round(loss(model, rate), 5)
        else:
            for task in SUITE.tasks:
                costs = found.setdefault(task, {})
                if model not in costs:
                    costs[model] = round(seconds(task, model), 1)
        write_atomic(path, (json.dumps(found, indent=1) + "\n").encode())
        print(model, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
