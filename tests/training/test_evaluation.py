"""Measured episodes against what the environments recorded and what the meter says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode
from toy_environments import recorders

from stpn.energy import EnergyMeter
from stpn.nn import registry
from stpn.tasks.maze import MazeVectorEnv
from stpn.training.agent import Agent, encoder_for
from stpn.training.evaluation import play
from stpn.training.policies import policy_for

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def agent_for(env: Any, model: str = "stpnr", **options: Any) -> Agent:
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = registry.build(model, encoder.output_size, 6, batch_first=True, **options)
    return Agent(encoder, core, policy_for(env.single_action_space))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", [1, 2])
def test_every_environment_counts_alike(mode: AutoresetMode, layers: int) -> None:
    """Two whole episodes of each, whatever their lengths; nothing of a third."""
    env = recorders(3, mode)
    agent = agent_for(env, num_layers=layers)
    played = play(agent, env, 5, seed=0, generator=generator(), greedy=False)
    lived = [episode for one in env.envs for episode in one.episodes[:2]]
    assert sorted(played.rewards) == pytest.approx(sorted(sum(e["rewards"]) for e in lived))
    assert sorted(played.lengths) == sorted(e["length"] for e in lived)

    powers = []
    for episode in lived:
        x = torch.tensor(np.array(episode["observations"][:-1]), dtype=torch.float32)
        with EnergyMeter(agent.core) as meter, torch.no_grad():
            agent.core(x.unsqueeze(0))
        powers.append(torch.stack(list(meter.per_step.values())).sum(0).numpy())
    assert played.power == pytest.approx(np.concatenate(powers).mean(), rel=1e-4)
    longest = max(map(len, powers))
    assert len(played.power_per_step) == longest
    for t in range(longest):
        there = [power[t] for power in powers if len(power) > t]
        assert played.power_per_step[t] == pytest.approx(np.mean(there), rel=1e-4)


@pytest.mark.parametrize("model", registry.models())
def test_any_core_can_be_measured(model: str) -> None:
    env = recorders(2, AutoresetMode.SAME_STEP)
    played = play(agent_for(env, model), env, 2, seed=0, generator=generator(), greedy=True)
    assert played.power > 0
    assert np.isfinite(played.power_per_step).all()


def test_measuring_is_repeatable_and_greedy_takes_no_chances() -> None:
    env = MazeVectorEnv(8)
    agent = agent_for(env)

    def reward(seed: int, chance: int, greedy: bool) -> list[float]:
        noise = torch.Generator().manual_seed(chance)
        played = play(agent, MazeVectorEnv(8), 8, seed=seed, generator=noise, greedy=greedy)
        return [played.power, *played.rewards]

    assert reward(0, 0, False) == reward(0, 0, False)
    assert reward(0, 0, False) != reward(0, 1, False)
    assert reward(0, 0, True) == reward(0, 1, True)
    assert reward(0, 0, False) != reward(1, 0, False)


def test_the_meter_is_off_afterwards() -> None:
    env = recorders(2, AutoresetMode.SAME_STEP)
    agent = agent_for(env)
    play(agent, env, 2, seed=0, generator=generator(), greedy=True)
    assert agent.core._observers is None
