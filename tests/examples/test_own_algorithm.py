"""The example of an algorithm of one's own, from outside the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = ("--num-envs", "4", "--final-episodes", "4", "--eval-episodes", "4", "--threads", "1")


def run(directory: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
    )


def test_it_trains_is_kept_and_resumed(tmp_path: Path) -> None:
    example, flags = str(EXAMPLES / "own_algorithm.py"), ("--baseline-weight", "0.5", *TINY)
    done = run(tmp_path, example, "maze", "--model", "rnn", "--iterations", "2", *flags)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs/maze/rnn/seed0"
    config = json.loads((path / "config.json").read_bytes())
    assert (config["algo"], config["baseline_weight"]) == ("reinforce", 0.5)
    assert "clip_coef" not in config
    (tmp_path / "own_algorithm.py").symlink_to(example)
    resume = ("-m", "stpn", "resume", str(path), "--total", "3")
    done = run(tmp_path, *resume, STPN_PLUGINS="own_algorithm")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, *resume)
    assert "unknown algorithm 'reinforce'; known: a2c, ppo" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    flags = ("--steps", "100000", "--num-steps", "64", "--num-envs", "8", "--eval-every", "20000")
    flags += ("--threads", "1")
    example = str(EXAMPLES / "own_algorithm.py")
    done = run(tmp_path, example, "--env", "CartPole-v1", "--lr", "1e-2", *flags)
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert rows[-1]["train_reward"] > 30  # a random policy balances for some 20 steps
