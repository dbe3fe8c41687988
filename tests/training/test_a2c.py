"""A2C against its definition, episode by episode, and on a task that needs memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import Recall, recorders

from stpn import experiments
from stpn.errors import NonFinite
from stpn.nn.stpn import STPNr
from stpn.tasks.maze import MazeVectorEnv
from stpn.training.a2c import A2C, starting_point
from stpn.training.agent import Agent, encoder_for
from stpn.training.gradients import Gradients
from stpn.training.policies import policy_for
from stpn.training.rollout import Actor, Rollout

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def learner(env: Any, lr: float = 1e-2, steps: int = 9, **changes: float) -> tuple[Actor, A2C]:
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = STPNr(encoder.output_size, 8, batch_first=True)
    agent = Agent(encoder, core, policy_for(env.single_action_space))
    settings = {
        "algo": "a2c", "gamma": 0.9, "vf_coef": 0.5, "relative_value": False, "ent_coef": 0.01,
        "concentration": 0.0,
    }  # fmt: skip
    config = experiments.default_config("gym", env="none", **settings | changes)
    optimizer = torch.optim.Adam(agent.parameters(), lr=lr)
    algorithm = A2C(agent, Gradients(agent, optimizer, 40.0), config)
    actor = Actor(agent, env, steps)
    actor.start(seed=0)
    return actor, algorithm


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def brute_force(
    agent: Agent, rollout: Rollout, discount: float, shared: bool = False
) -> dict[str, torch.Tensor]:
    """The terms of the loss from loops over environments and steps."""
    firsts: dict[int, torch.Tensor] = {}  # values of the first environment
    sums: dict[str, torch.Tensor] = {}
    count = 0
    batch, steps = rollout.rewards.shape
    for b in range(batch):
        state = tuple(
            layer.__class__(*(v[b : b + 1] for v in layer)) for layer in rollout.states[0]
        )
        for t in range(steps):
            if rollout.reset[b, t]:
                state = None
            heads, state = agent.step(rollout.observations[b : b + 1, t], state)
            firsts.setdefault(t, heads[0, -1])
            if not rollout.valid[b, t]:
                continue
            target, factor = 0.0, 1.0
            for k in range(t, steps):
                target += factor * rollout.rewards[b, k]
                factor *= discount
                if rollout.ended[b, k] or k == steps - 1:
                    target += factor * rollout.bootstrap[b, k]
                    break
            p = heads[0, :-1].softmax(0)
            error = target - (firsts[t] if shared else heads[0, -1])
            parts = {
                "policy_loss": -p[rollout.actions[b, t]].log() * error.detach(),
                "value_loss": error**2,
                "entropy": -(p * p.log()).sum(),
                "concentration": (p**2).sum(),
            }
            for name, part in parts.items():
                sums[name] = sums.get(name, 0.0) + part
            count += 1
    return {name: total / count for name, total in sums.items()}


@pytest.mark.parametrize(("mode", "shared"), [*((mode, False) for mode in MODES), (MODES[0], True)])
def test_loss_and_gradient_against_loops(mode: AutoresetMode, shared: bool) -> None:
    actor, algorithm = learner(recorders(3, mode), concentration=0.03, shared_baseline=shared)
    actor.collect(generator(1))
    rollout = actor.collect(generator(2))  # starts inside episodes
    terms = algorithm.terms(rollout)
    expected = brute_force(algorithm.agent, rollout, 0.9, shared)
    parameters = list(algorithm.agent.parameters())
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name], rtol=1e-4, atol=1e-5)
        ours = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        theirs = torch.autograd.grad(
            expected[name], parameters, retain_graph=True, allow_unused=True
        )
        for left, right in zip(ours, theirs, strict=True):
            if right is not None:
                torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)


def test_the_maze_bootstraps_nothing() -> None:
    actor, _ = learner(MazeVectorEnv(3), steps=200)
    for update in range(2):
        rollout = actor.collect(generator(update))
        assert rollout.reset[:, 0].all()
        assert not rollout.reset[:, 1:].any()
        assert rollout.terminated[:, -1].all()
        assert not rollout.bootstrap.any()
        assert starting_point(rollout) == (None, None)
        assert len(rollout.episode_rewards) == 3


def test_starting_point_carries_what_goes_on() -> None:
    actor, _ = learner(recorders(3, AutoresetMode.SAME_STEP))
    actor.collect(generator(0))
    rollout = actor.collect(generator(1))
    state, reset = starting_point(rollout)
    assert state is not None
    assert reset is not None
    before = rollout.reset.clone()
    rollout.reset[:, 0] = True
    state, reset = starting_point(rollout)
    assert state is None
    assert reset is not None
    assert not reset[:, 0].any()
    assert torch.equal(reset[:, 1:], before[:, 1:])
    assert rollout.reset[:, 0].all()  # the rollout itself is left alone


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("discrete", [True, False])
def test_rate_zero_replays_what_was_lived(mode: AutoresetMode, discrete: bool) -> None:
    actor, algorithm = learner(recorders(3, mode, discrete=discrete), lr=0.0)
    policy = algorithm.agent.policy
    for update in range(3):
        rollout = actor.collect(generator(update))
        lived = policy.distribution(rollout.heads[..., :-1]).log_prob(rollout.actions)
        with torch.no_grad():
            parameters, values, _ = algorithm.agent(rollout.observations, *starting_point(rollout))
        replayed = policy.distribution(parameters).log_prob(rollout.actions)
        torch.testing.assert_close(replayed, lived)
        torch.testing.assert_close(values, rollout.heads[..., -1])
        algorithm.learn(rollout, generator(), "now")


def test_gradient_is_clipped_and_the_rate_decays() -> None:
    parameter = torch.nn.Linear(1, 1, bias=False)
    gradients = Gradients(parameter, torch.optim.SGD(parameter.parameters(), lr=0.5), max_norm=2.0)
    before = parameter.weight.item()
    norm = gradients.step(parameter(torch.full((1, 1), 100.0)).sum(), "now")
    assert norm == pytest.approx(100.0)
    assert parameter.weight.item() == pytest.approx(before - 0.5 * 2.0, rel=1e-4)
    gradients.decay(0.25)
    before = parameter.weight.item()
    gradients.step(parameter(torch.ones(1, 1)).sum(), "now")
    assert parameter.weight.item() == pytest.approx(before - 0.125)


@pytest.mark.parametrize("mode", MODES)
def test_relative_value_does_not_depend_on_the_size_of_rewards(mode: AutoresetMode) -> None:
    actor, algorithm = learner(recorders(3, mode), relative_value=True)
    rollout = actor.collect(generator())
    with torch.no_grad():
        algorithm.agent.heads.weight[-1] = 0.0  # a value of 0 everywhere
        algorithm.agent.heads.bias[-1] = 0.0
    small = algorithm.terms(rollout)["value_loss"]
    rollout.rewards *= 100
    rollout.bootstrap *= 100
    torch.testing.assert_close(algorithm.terms(rollout)["value_loss"], small)


def test_a_broken_network_is_named() -> None:
    actor, algorithm = learner(recorders(2, AutoresetMode.SAME_STEP))
    rollout = actor.collect(generator())
    with torch.no_grad():
        algorithm.agent.heads.weight[0, 0] = float("nan")
    with pytest.raises(NonFinite, match=r"heads\.weight"):
        algorithm.learn(rollout, generator(), "update 7")


def test_learns_to_remember() -> None:
    env = SyncVectorEnv([Recall] * 16, autoreset_mode=AutoresetMode.SAME_STEP)
    actor, algorithm = learner(env, lr=2e-2, steps=6)
    for update in range(250):
        rollout = actor.collect(generator(update))
        algorithm.learn(rollout, generator(), "now")
    rewards = [r for update in range(10) for r in actor.collect(generator(update)).episode_rewards]
    assert sum(rewards) / len(rewards) > 0.9  # 0.5 by chance
