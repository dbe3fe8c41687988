"""Pong as the paper plays it: single frames, repeated actions, games that end one by one."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode

from stpn import experiments
from stpn.nn.stpn import STPNr
from stpn.tasks import pong
from stpn.training.agent import Agent, encoder_for
from stpn.training.policies import policy_for
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.rollout import Actor

NOOP = 0


def test_one_grey_frame_per_step_and_four_frames_per_action() -> None:
    env = pong.vector_env(3, threads=1)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.single_observation_space.shape == (1, 84, 84)
    observation, infos = env.reset(seed=0)
    assert observation.dtype == np.uint8
    assert observation.shape == (3, 1, 84, 84)
    before = infos["episode_frame_number"].copy()
    _, _, _, _, infos = env.step(np.zeros(3, dtype=np.int64))
    np.testing.assert_array_equal(infos["episode_frame_number"] - before, 4)
    env.close()


def test_games_end_at_21_points_and_start_again_in_the_same_step() -> None:
    env = pong.vector_env(4, threads=1)
    env.reset(seed=0)
    score = np.zeros(4)
    finished: list[float] = []
    for _ in range(1200):
        observation, reward, terminated, truncated, infos = env.step(np.zeros(4, dtype=np.int64))
        assert set(np.unique(reward)) <= {-1, 0, 1}
        assert not truncated.any()
        score += reward
        for game in terminated.nonzero()[0]:
            finished.append(score[game])
            score[game] = 0
            # The new game's first frame, not the old one's last
            assert not np.array_equal(infos["final_obs"][game], observation[game])
            assert infos["episode_frame_number"][game] < 200
    assert len(finished) >= 4
    assert set(finished) == {-21.0}
    env.close()


def test_the_screen_shows_the_same_game() -> None:
    grey, screen = pong.vector_env(2, threads=1), pong.screen_env(2)
    rng = np.random.default_rng(0)
    grey.reset(seed=5)
    screen.reset(seed=5)
    rewards = []
    for _ in range(300):
        actions = rng.integers(6, size=2)
        _, reward, *_, infos = grey.step(actions)
        picture, same_reward, *_, same_infos = screen.step(actions)
        assert picture.shape == (2, 1, 210, 160, 3)
        np.testing.assert_array_equal(reward, same_reward)
        np.testing.assert_array_equal(infos["frame_number"], same_infos["frame_number"])
        rewards.append(reward)
    assert np.any(rewards)
    grey.close()
    screen.close()


def test_convolutions_are_the_papers() -> None:
    env = pong.vector_env(1, threads=1)
    encoder = encoder_for(env.single_observation_space)
    assert encoder.output_size == 2592
    frames = torch.from_numpy(env.reset(seed=0)[0])
    assert encoder(frames).shape == (1, 2592)
    assert encoder(torch.zeros_like(frames)).max() < encoder(torch.full_like(frames, 255)).max()
    shapes = [tuple(p.shape) for p in encoder.parameters() if p.dim() == 4]
    assert shapes == [(16, 1, 8, 8), (32, 16, 4, 4)]
    env.close()


def test_state_is_carried_across_rollouts_and_reset_inside_them() -> None:
    """Games broken off after 15 steps, rollouts of 10: replaying gives what was lived."""
    env = pong.vector_env(2, threads=1, max_num_frames_per_episode=60)
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = STPNr(encoder.output_size, 5, batch_first=True)
    agent = Agent(encoder, core, policy_for(env.single_action_space))
    actor = Actor(agent, env, steps=10)
    actor.start(seed=0)
    resets = []
    for update in range(4):
        rollout = actor.collect(torch.Generator().manual_seed(update))
        resets.append(rollout.reset.sum().item())
        with torch.no_grad():
            parameters, values, _ = agent(rollout.observations, rollout.states[0], rollout.reset)
        torch.testing.assert_close(parameters, rollout.heads[..., :-1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values, rollout.heads[..., -1], rtol=1e-4, atol=1e-5)
        cut = rollout.truncated.copy()
        cut[:, -1] = True
        assert ((rollout.bootstrap != 0) == cut).all()
    assert resets[0] >= 2
    assert sum(resets) > 4
    env.close()


def test_the_trainer_learns_from_games(monkeypatch: pytest.MonkeyPatch) -> None:
    short = functools.partial(pong.vector_env, max_num_frames_per_episode=1000)
    monkeypatch.setattr(pong, "vector_env", short)
    config = experiments.default_config(
        "pong", hidden_size=4, num_envs=2, num_steps=10, steps=40, eval_episodes=1, final_episodes=1
    )
    torch.manual_seed(0)
    trainer = ReinforcementTrainer(config)
    assert trainer.advance() is None
    row = trainer.advance()
    assert row is not None
    assert row["step"] == 40
    assert -21 <= row["proficiency"] <= 21
    figures = trainer.evaluate()
    assert len(figures.power_per_step) == 200
    assert figures.extras["episode_length"] == 250
    trainer.close()


def test_three_actions_play_the_same_game() -> None:
    six, three = pong.vector_env(2, threads=1), pong.vector_env(2, threads=1, three_actions=True)
    assert policy_for(three.single_action_space).num_parameters == 3
    assert three.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    rng = np.random.default_rng(0)
    six.reset(seed=3)
    three.reset(seed=3)
    for _ in range(60):
        actions = rng.integers(3, size=2)
        seen, *_ = three.step(actions)
        np.testing.assert_array_equal(seen, six.step(np.array(pong.EFFECTIVE_ACTIONS)[actions])[0])
    six.close()
    three.close()


def test_three_of_the_six_actions_have_all_effects() -> None:
    """Pressing fire changes nothing: each of the other actions leads to the same frames."""
    games = pong.vector_env(6, threads=1, noop_max=0)
    games.reset(seed=0)
    for _ in range(80):
        frames, *_ = games.step(np.arange(6))
    np.testing.assert_array_equal(frames[[0, 2, 3]], frames[[1, 4, 5]])
    assert not np.array_equal(frames[0], frames[2])
    assert not np.array_equal(frames[2], frames[3])
    games.close()
