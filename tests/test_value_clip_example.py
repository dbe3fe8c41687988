"""The example that limits the value's error as RLlib does."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stpn.experiments import default_config

pytest.importorskip("mujoco")
EXAMPLE = Path(__file__).parents[1] / "examples" / "pendulum_value_clip.py"
TINY = {"num_steps": 64, "update_epochs": 2, "eval_every": 64, "eval_episodes": 1}


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def test_trains_and_the_limit_matters(example: dict[str, Any]) -> None:
    limited, free = (example["train"]("mlp", 128, limit, **TINY) for limit in (0.01, 1e9))
    assert [row["step"] for row in limited] == [64, 128]
    assert limited[0]["value_loss"] <= 0.01 < free[0]["value_loss"]


def test_nothing_is_learnt_from_a_large_error(example: dict[str, Any]) -> None:
    algorithm = example["ClippedValuePPO"](None, None, default_config("pendulum", "mlp"))
    values = torch.zeros(1, 2, requires_grad=True)
    batch = SimpleNamespace(returns=torch.tensor([[3.0, 50.0]]))
    algorithm.value_errors(values, batch).sum().backward()
    assert values.grad.tolist() == [[-6.0, 0.0]]
