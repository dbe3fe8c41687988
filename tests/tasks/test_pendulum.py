"""The Inverted Pendulum as the paper sets it, and a short training that must improve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")
pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode

from stpn import experiments
from stpn.tasks import pendulum
from stpn.training.reinforcement import ReinforcementTrainer


def test_environment() -> None:
    env = pendulum.vector_env(2)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.single_observation_space.shape == (4,)
    assert env.single_action_space.shape == (1,)
    env.reset(seed=0)
    length = 0
    while True:
        length += 1
        _, _, terminated, truncated, infos = env.step(np.full((2, 1), 3.0, dtype=np.float32))
        if terminated.any():
            break
    assert length < 50  # pushed over
    assert not truncated.any()
    assert "final_obs" in infos
    env.close()


def test_an_episode_is_broken_off_after_1000_steps() -> None:
    """A hand-made controller balances to the end, which is a truncation: the value goes on."""
    env = pendulum.vector_env(1)
    observation, _ = env.reset(seed=0)
    for step in range(1, 1001):
        x, angle, speed, turning = observation[0]
        push = 10.0 * angle + 1.5 * turning + 0.3 * x + 0.6 * speed
        action = np.clip([[push]], -3, 3).astype(np.float32)
        observation, _, terminated, truncated, _ = env.step(action)
        assert not terminated.any(), step
    assert truncated.all()
    env.close()


def test_training_improves_balance() -> None:
    config = experiments.default_config(
        "pendulum", steps=6144, eval_every=6144, eval_episodes=8, threads=1
    )
    torch.manual_seed(0)
    trainer = ReinforcementTrainer(config)
    assert "norm=None, clamp=0.1" in repr(trainer.model.core)
    before = trainer.evaluate().proficiency
    while trainer.done < trainer.total:
        row = trainer.advance()
    assert row is not None
    assert row["proficiency"] > 2 * before
    assert row["power"] > 0
    trainer.close()
