"""The example of an algorithm of one's own, from outside the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stpn.cli import main

pytest.importorskip("gymnasium")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"
TINY = ("--num-envs", "4", "--final-episodes", "4", "--eval-episodes", "4", "--threads", "1")


def test_it_trains_is_kept_and_resumed(
    python: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--iterations", "2", "--baseline-weight", "0.5", *TINY)
    python(EXAMPLE, "maze", "--model", "rnn", *flags)
    path = tmp_path / "runs/maze/rnn/seed0"
    config = json.loads((path / "config.json").read_bytes())
    assert (config["algo"], config["baseline_weight"]) == ("reinforce", 0.5)
    assert "clip_coef" not in config
    (tmp_path / "own_algorithm.py").symlink_to(EXAMPLE)
    resume = ["resume", str(path), "--total", "3"]
    python("-m", "stpn", *resume, STPN_PLUGINS="own_algorithm")
    assert main(resume) == 2
    assert "unknown algorithm 'reinforce'; known: a2c, ppo" in capsys.readouterr().err


@pytest.mark.slow
def test_it_learns(python: Callable[..., str], tmp_path: Path) -> None:
    flags = ("--steps", "100000", "--num-steps", "64", "--num-envs", "8", "--eval-every", "20000")
    flags += ("--threads", "1")
    python(EXAMPLE, "--env", "CartPole-v1", "--lr", "1e-2", *flags)
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert rows[-1]["train_reward"] > 30  # a random policy balances for some 20 steps
