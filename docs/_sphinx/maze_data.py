"""What the page of the maze needs: the tables of the maze, and two agents of the package.

Written as a script, `_static/maze-data.js`: a page that is opened from a disk may load a script,
but no JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import stpn
from stpn.report.network import export_core
from stpn.report.style import model_style
from stpn.tasks import maze
from stpn.tasks.maze import grid
from stpn.training.running import LARGEST, RunningStatistics

AGENTS = ("maze-stpnr", "maze-lstm")


def tables() -> dict[str, Any]:
    """The maze: where a step leads and what is seen, by cell."""
    return {
        "size": grid.SIZE,
        "actions": grid.ACTIONS,
        "centre": grid.CENTRE,
        "open": grid.OPEN.tolist(),
        "walls": grid.WALLS.ravel().astype(int).tolist(),
        "step": grid.STEP.tolist(),  # (169, 4)
        "view": grid.VIEW.astype(int).tolist(),  # (169, 9)
        "episode_steps": maze.EPISODE_STEPS,
        "reward": maze.REWARD,
    }


def agent(name: str) -> dict[str, Any]:
    card, network = stpn.pretrained.card(name), stpn.pretrained(name)
    return {
        "name": name,
        "title": model_style(card.model).name,
        "colour": model_style(card.model).colour,
        "hidden_size": card.hidden_size,
        "parameters": card.parameters,
        "mean_reward": card.proficiency,
        "mean_power": card.power,
        **exported(network),
    }


def exported(network: Any) -> dict[str, Any]:
    """An agent as the page runs it: what it sees of the maze, the core, and the heads, which are
    the policy's logits and then the value."""
    return {
        "reward_input": network.config.reward_input,
        "normalized": _statistics(network.encoder.statistics),
        **export_core(network.core, network.heads),
    }


def _statistics(statistics: RunningStatistics | None) -> dict[str, Any] | None:
    if statistics is None:
        return None
    factor = (statistics.variance + 1e-8).rsqrt()
    return {"mean": statistics.mean.tolist(), "factor": factor.tolist(), "largest": LARGEST}


def script() -> str:
    data = {**tables(), "agents": [agent(name) for name in AGENTS]}
    return f"const MAZE_DATA = {json.dumps(data)};\n"


def _write(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        static = Path(app.outdir) / "_static"
        static.mkdir(exist_ok=True)
        (static / "maze-data.js").write_text(script(), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
