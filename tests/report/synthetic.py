"""Runs that nobody trained, in the formats of `stpn.runs`: the report must not be able to tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stpn import experiments, paper

CURVE_ROWS = 60
POWER_POINTS = 200
STEPS = {"art": 9, "maze": 200, "maze-ablation": 200, "pong": 1500, "pendulum": 1000}


def write_result(
    root: Path,
    task: str,
    model: str,
    seed: int,
    *,
    reach: float = 1.0,
    finished: bool = True,
    proficiency: float | None = None,
    power: float | None = None,
    rows: int = CURVE_ROWS,
    config: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """One exported result, `root/<task>/<model>/seed<N>.json`, near the paper's figures."""
    experiment = experiments.TASKS[task]
    noise = np.random.default_rng([seed, sum(map(ord, task + model))])
    skill = paper.number(task, model, experiment.metric)
    cost = paper.number(task, model, "power")
    if proficiency is None:
        mean, std = (skill.mean, skill.std) if skill else (60.0, 5.0)
        proficiency = float(mean + std * noise.normal())
        if "accuracy" in experiment.metric:
            proficiency = min(proficiency, 100.0)
    if power is None:
        mean, std = (cost.mean, cost.std) if cost else (40.0, 3.0)
        power = float(abs(mean + std * noise.normal()))
    done = round(reach * experiment.length)
    steps = np.unique(np.linspace(1, max(done, 1), rows).round().astype(int))
    progress = 1 - np.exp(-6 * steps / experiment.length)
    jitter = 1 + 0.02 * noise.normal(size=len(steps))
    curve = {
        "step": steps.tolist(),
        "proficiency": (proficiency * progress * jitter).tolist(),
        "power": (power * (1.6 - 0.6 * progress) * jitter).tolist(),
        "loss": (1 - progress).tolist(),
        "seconds": (steps * 0.5).tolist(),
    }
    length = STEPS.get(task, 5000)
    per_step = power * (1 + 0.3 * np.sin(np.arange(length) / length * 6))
    per_step = per_step * (1 + 0.02 * noise.normal(size=length))
    stretch = -(-length // POWER_POINTS)
    content = {
        "config": {
            "task": task,
            "model": model,
            "seed": seed,
            "hidden_size": experiment.hidden_sizes.get(model, 20),
            **(config or {}),
        },
        "curve": curve,
        "summary": {
            "task": task,
            "model": model,
            "seed": seed,
            "metric": experiment.metric,
            "proficiency": proficiency,
            "power": power,
            "power_per_step": per_step[: length - length % stretch]
            .reshape(-1, stretch)
            .mean(1)
            .tolist(),
            "power_stretch": stretch,
            "done": done,
            "paper_length": experiment.length,
            "unit": experiment.unit,
            "finished": finished,
            "paper": None,
            "seconds": 1.0,
            **(summary or {}),
        },
    }
    path = root / task / model / f"seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_grid(root: Path, *, tasks: list[str] | None = None, seeds: int | None = None) -> Path:
    """The whole grid of the paper, or some tasks of it."""
    for task in tasks or list(experiments.TASKS):
        experiment = experiments.TASKS[task]
        for model in experiment.models:
            for seed in range(seeds or experiment.seeds):
                write_result(root, task, model, seed)
    return root
