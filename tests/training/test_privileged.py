"""A critic that sees more than the agent, and heads that have the core find out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import Recorder

from stpn import experiments
from stpn.errors import ConfigError
from stpn.nn.stpn import STPNr
from stpn.training import checkpoint
from stpn.training.agent import Agent, encoder_for
from stpn.training.environments import EnvironmentFailure
from stpn.training.policies import policy_for
from stpn.training.privileged import Privileged
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.rollout import Actor

TINY_MAZE: dict[str, Any] = {
    "hidden_size": 7, "num_envs": 4, "iterations": 4, "eval_every": 2, "eval_episodes": 4,
    "final_episodes": 8,
}  # fmt: skip
PPO_MAZE: dict[str, Any] = {"minibatch_size": 200, "update_epochs": 2}
KNOWING: dict[str, Any] = {"privileged_critic": True, "auxiliary": 0.1}


def trainer(task: str = "maze", **settings: Any) -> ReinforcementTrainer:
    config = experiments.default_config(task, **settings)
    torch.manual_seed(config.seed)
    built = experiments.get(task).task.build_trainer(config)
    assert isinstance(built, ReinforcementTrainer)
    return built


class Knowing(SyncVectorEnv):
    """Recorders that tell how long their episode is and how much of it is left."""

    privileged_space = spaces.Dict(length=spaces.Discrete(8), left=spaces.Box(0, 9, (1,)))

    def __init__(self, mode: AutoresetMode, tells_final: bool = True) -> None:
        super().__init__([lambda s=s: Recorder(s) for s in range(3)], autoreset_mode=mode)
        self.tells_final = tells_final

    def privileged(self) -> dict[str, np.ndarray]:
        return self._told([env.episodes[-1] for env in self.envs])

    def step(self, actions: Any) -> Any:
        before = [env.episodes[-1] for env in self.envs]
        *rest, infos = super().step(actions)
        if self.tells_final:
            infos["final_privileged"] = self._told(before)
        return *rest, infos

    def _told(self, episodes: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        return {
            "length": np.array([e["length"] for e in episodes]),
            "left": np.array([float(e["length"] - len(e["rewards"])) for e in episodes]),
        }


def test_table_value_and_errors_against_loops() -> None:
    env = SimpleNamespace(privileged_space=spaces.Dict(
        a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)), c=spaces.Discrete(4)
    ))  # fmt: skip
    torch.manual_seed(0)
    privileged = Privileged(env, 5, critic=True, auxiliary=True)
    known = torch.from_numpy(privileged.table(
        {"c": np.array([3, 0]), "a": np.array([1, 2]), "b": np.array([[0.5, -1.0], [0.0, 2.0]])}
    ))  # fmt: skip
    assert known.tolist() == [[1, 0.5, -1, 3], [2, 0, 2, 0]]
    output = torch.randn(2, 5)
    for row in range(2):
        a, c = int(known[row, 0]), int(known[row, 3])
        seen = torch.cat([output[row], torch.eye(3)[a], known[row, 1:3], torch.eye(4)[c]])
        value = privileged.value(output, known)[row]
        torch.testing.assert_close(value, privileged.critic(seen)[0])
        told = privileged.heads(output[row])
        expected = [
            -told[:3].log_softmax(0)[a],
            (told[3:5] - known[row, 1:3]).square().mean(),
            -told[5:].log_softmax(0)[c],
        ]
        torch.testing.assert_close(privileged.errors(output, known)[row], sum(expected) / 3)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_values_of_a_rollout_are_the_critics(mode: AutoresetMode) -> None:
    env = Knowing(mode)
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = STPNr(encoder.output_size, 8, batch_first=True)
    agent = Agent(encoder, core, policy_for(env.single_action_space))
    privileged = Privileged(env, 8, critic=True, auxiliary=False)
    actor = Actor(agent, env, 12, 4, privileged)
    actor.start(seed=0)
    for seed in range(2):
        rollout = actor.collect(torch.Generator().manual_seed(seed))
        with torch.no_grad():
            output, _ = agent.outputs(rollout.observations, rollout.states[0], rollout.reset)
            values = privileged.value(output, rollout.known)
        torch.testing.assert_close(output, rollout.outputs, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(torch.from_numpy(rollout.values), values, atol=1e-5, rtol=1e-4)
        # with SAME_STEP the last step of an episode is told with one step left
        last = torch.from_numpy(rollout.ended)
        assert (rollout.known[..., 1][last] == 1).all()
        cut = rollout.truncated.copy()
        cut[:, -1] |= ~rollout.terminated[:, -1]
        assert ((rollout.bootstrap != 0) == cut).all()


def test_an_end_without_knowledge_is_refused() -> None:
    env = Knowing(AutoresetMode.SAME_STEP, tells_final=False)
    encoder = encoder_for(env.single_observation_space)
    agent = Agent(encoder, STPNr(3, 4, batch_first=True), policy_for(env.single_action_space))
    actor = Actor(agent, env, 30, None, Privileged(env, 4, critic=True, auxiliary=False))
    actor.start(seed=0)
    with pytest.raises(EnvironmentFailure, match="final_privileged"):
        actor.collect(torch.Generator().manual_seed(0))


def test_the_maze_tells_cell_and_goal() -> None:
    env = trainer(**TINY_MAZE).make_env(3)
    env.reset(seed=0)
    env.step(np.array([0, 1, 2]))
    told = env.privileged()
    np.testing.assert_array_equal(told["cell"], env.cell)
    np.testing.assert_array_equal(told["reward_cell"], env.reward_cell)
    np.testing.assert_allclose(told["clock"], 1 / 200)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_critic_and_heads_learn_and_are_resumed_bit_for_bit(tmp_path: Path, algo: str) -> None:
    settings = TINY_MAZE | KNOWING | {"algo": algo, "average": 0.9}
    settings |= PPO_MAZE if algo == "ppo" else {}
    straight = trainer(**settings)
    before = {name: p.clone() for name, p in straight._privileged.state_dict().items()}
    rows = []
    while straight.done < straight.total:
        rows.append(straight.advance())
    assert "auxiliary" in rows[-1]
    after = straight.state_dict()
    assert all(not torch.equal(p, before[name]) for name, p in after["privileged"].items())
    assert not any("critic" in name for name in after["model"])  # an agent acts without it

    first = trainer(**settings)
    first.advance()
    checkpoint.write(tmp_path / "saved", first.state_dict())
    second = trainer(**settings)
    second.load_state_dict(checkpoint.read(tmp_path / "saved"))
    while second.done < second.total:
        row = second.advance()
    assert row == rows[-1]
    for part in ("model", "learner", "privileged"):
        for name, value in second.state_dict()[part].items():
            assert torch.equal(value, after[part][name]), (part, name)


def test_an_environment_that_tells_nothing() -> None:
    with pytest.raises(ConfigError, match="tells nothing that its agents do not see"):
        trainer("gym", env="CartPole-v1", privileged_critic=True)
    strange = SimpleNamespace(privileged_space=spaces.Dict(a=spaces.MultiBinary(3)))
    with pytest.raises(ConfigError, match="'a' must be a Discrete space"):
        Privileged(strange, 4, critic=True, auxiliary=False)


def test_a_critic_that_sees_the_cue_learns_its_value() -> None:
    """Rewards that depend on what is hidden: only the privileged critic can foretell them."""
    torch.manual_seed(0)
    env = SimpleNamespace(privileged_space=spaces.Dict(cue=spaces.Discrete(2)))
    privileged = Privileged(env, 3, critic=True, auxiliary=False)
    known = torch.tensor([[0.0], [1.0]]).repeat(20, 1)
    output, target = torch.zeros(40, 3), known.squeeze(-1) * 2 - 1
    optimizer = torch.optim.Adam(privileged.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        (privileged.value(output, known) - target).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(privileged.value(output, known), target, atol=0.1, rtol=0.1)
