"""The recipe for RLlib, examples/recipes/rllib_ppo.py."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="stpn-torch[ray] is not installed")

from stpn.scale.rllib import agent_from

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


@pytest.mark.slow
def test_what_acts_is_our_agent_and_it_learns(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    recipe = importlib.import_module("rllib_ppo")
    algorithm = recipe.config(envs=2).build_algo()
    try:
        recipe.train(algorithm, 2)
        agent = agent_from(algorithm)
        # one environment after another ends an episode and begins the next
        episodes = algorithm.env_runner.sample(num_episodes=6, force_reset=True)
    finally:
        algorithm.stop()
    assert len(episodes) >= 6
    for episode in episodes:
        seen = torch.as_tensor(np.stack(episode.get_observations()[:-1])).unsqueeze(0)
        with torch.no_grad():
            logits, _, _ = agent(seen)  # from a zero state
        acted = torch.as_tensor(np.stack(episode.get_extra_model_outputs("action_dist_inputs")))
        torch.testing.assert_close(acted, logits[0], rtol=1e-4, atol=1e-5)
