"""Acting against the episodes that the environments themselves recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import Broken, recorders

from stpn.nn.stpn import STPNr
from stpn.tasks.maze import MazeVectorEnv
from stpn.training.agent import Agent, encoder_for
from stpn.training.environments import EnvironmentFailure
from stpn.training.policies import UnsupportedSpace, policy_for
from stpn.training.rollout import Actor

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def agent_for(env: Any, hidden_size: int = 6) -> Agent:
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = STPNr(encoder.output_size, hidden_size, batch_first=True)
    with torch.no_grad():  # plasticity and memory strong enough to matter
        core.gamma_l0.normal_(0, 0.5)
    return Agent(encoder, core, policy_for(env.single_action_space))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("discrete", [True, False])
def test_rollouts_agree_with_the_recorded_episodes(mode: AutoresetMode, discrete: bool) -> None:
    """Every array of four rollouts in a row; each value replayed episode by episode."""
    env = recorders(4, mode, discrete=discrete)
    agent = agent_for(env)
    actor = Actor(agent, env, steps=11)
    actor.start(seed=0)
    names = ("observations", "actions", "heads", "reset", "rewards", "terminated", "truncated",
             "valid", "bootstrap")  # fmt: skip
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in names}
    rewards_told, rewards_lived = [], []
    for update in range(4):
        rollout = actor.collect(generator(update))
        for name in names:
            pieces[name].append(torch.as_tensor(getattr(rollout, name)).clone().numpy())
        rewards_told += rollout.episode_rewards
    data = {name: np.concatenate(parts, axis=1) for name, parts in pieces.items()}

    for b in range(4):
        t = 0
        for episode in env.envs[b].episodes:
            observations = torch.tensor(np.array(episode["observations"]), dtype=torch.float32)
            with torch.no_grad():
                parameters, values, _ = agent(observations.unsqueeze(0))
            for k, reward in enumerate(episode["rewards"]):
                over = k + 1 == episode["length"]
                terminated = over and episode["terminates"]
                cut = over or t % 11 == 10
                follows = float(values[0, k + 1]) if cut and not terminated else 0.0
                action = data["actions"][b, t]
                sent = action + 2 if discrete else action.clip(-1, 1)  # Discrete(3, start=2)
                assert data["valid"][b, t]
                assert data["reset"][b, t] == (k == 0)
                assert data["terminated"][b, t] == terminated
                assert data["truncated"][b, t] == (over and not terminated)
                assert data["rewards"][b, t] == pytest.approx(reward)
                assert data["bootstrap"][b, t] == pytest.approx(follows, abs=1e-5)
                np.testing.assert_allclose(data["observations"][b, t], observations[k])
                np.testing.assert_allclose(data["heads"][b, t, :-1], parameters[0, k], atol=1e-5)
                np.testing.assert_allclose(data["heads"][b, t, -1], values[0, k], atol=1e-5)
                np.testing.assert_allclose(sent, episode["actions"][k], atol=1e-6)
                t += 1
                if over:
                    rewards_lived.append(sum(episode["rewards"]))
            if mode is AutoresetMode.NEXT_STEP and t < 44:
                assert not data["valid"][b, t]  # the step that only started the next episode
                assert data["rewards"][b, t] == 0
                t += 1
        assert t == 44
    assert len(rewards_told) > 20
    assert sorted(rewards_told) == pytest.approx(sorted(rewards_lived))


@pytest.mark.parametrize("mode", MODES)
def test_kept_states_replay_their_sequences(mode: AutoresetMode) -> None:
    env = recorders(3, mode)
    agent = agent_for(env)
    actor = Actor(agent, env, steps=10, chunk=4)
    actor.start(seed=0)
    actor.collect(generator(1))
    rollout = actor.collect(generator(2))
    assert len(rollout.states) == 3
    for piece, state in enumerate(rollout.states):
        steps = slice(4 * piece, min(4 * piece + 4, 10))
        with torch.no_grad():
            parameters, values, _ = agent(
                rollout.observations[:, steps], state, rollout.reset[:, steps]
            )
        torch.testing.assert_close(parameters, rollout.heads[:, steps, :-1])
        torch.testing.assert_close(values, rollout.heads[:, steps, -1])


def test_bootstrapping_leaves_no_trace() -> None:
    """Two rollouts of 6 act as one of 12 does, though the first ends with a look ahead."""

    def act(steps: int, rollouts: int) -> torch.Tensor:
        env = recorders(3, AutoresetMode.SAME_STEP)
        actor = Actor(agent_for(env), env, steps)
        actor.agent.policy.noise = lambda *shape, generator: np.zeros((*shape, 3))  # type: ignore
        actor.start(seed=0)
        return torch.cat([actor.collect(generator()).heads.clone() for _ in range(rollouts)], dim=1)

    torch.testing.assert_close(act(6, 2), act(12, 1), rtol=0, atol=0)


def test_saved_actor_goes_on_identically() -> None:
    env = MazeVectorEnv(6)
    actor = Actor(agent_for(env), env, steps=30)  # not at an episode's end
    actor.start(seed=1)
    actor.collect(generator(0))
    other_env = MazeVectorEnv(6)
    other = Actor(agent_for(other_env), other_env, steps=30)
    saved = actor.state_dict()
    copied = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in saved.items()
    }
    copied["state"] = [tuple(value.clone() for value in layer) for layer in saved["state"]]
    other.load_state_dict(copied)
    for update in range(1, 9):
        left, right = actor.collect(generator(update)), other.collect(generator(update))
        assert torch.equal(left.heads, right.heads)
        assert np.array_equal(left.rewards, right.rewards)
        assert left.episode_rewards == right.episode_rewards


def test_an_environment_that_cannot_be_saved_is_not() -> None:
    env = recorders(2, AutoresetMode.SAME_STEP)
    assert Actor(agent_for(env), env, steps=3).state_dict() == {}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "the simulator is gone"),
        ("nan reward", "a reward of nan"),
        ("nan observation", "an observation with nan"),
    ],
)
def test_broken_environment(how: str, message: str) -> None:
    env = SyncVectorEnv([lambda: Broken(how, after=5)])
    actor = Actor(agent_for(env), env, steps=4)
    actor.start(seed=0)
    actor.collect(generator())
    with pytest.raises(EnvironmentFailure, match=message):
        actor.collect(generator())


def test_environment_without_autoreset_is_refused() -> None:
    env = recorders(2, AutoresetMode.DISABLED)
    with pytest.raises(UnsupportedSpace, match="DISABLED"):
        Actor(agent_for(env), env, steps=3)
