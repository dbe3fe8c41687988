"""PPO against its definition: sequences, ratios, clipping; and a task that needs memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import Recall, recorders

from stpn import experiments
from stpn.nn.stpn import STPNf, STPNr
from stpn.training.agent import Agent, encoder_for
from stpn.training.gradients import Gradients
from stpn.training.policies import policy_for
from stpn.training.ppo import PPO, cut_into_sequences
from stpn.training.returns import generalised_advantages
from stpn.training.rollout import Actor

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def learner(
    env: Any, lr: float = 1e-2, steps: int = 10, sequence: int = 4, **changes: float
) -> tuple[Actor, PPO]:
    torch.manual_seed(0)
    encoder = encoder_for(env.single_observation_space)
    core = STPNr(encoder.output_size, 8, batch_first=True)
    agent = Agent(encoder, core, policy_for(env.single_action_space))
    settings = {
        "gamma": 0.9, "gae_lambda": 0.8, "vf_coef": 0.5, "relative_value": False,
        "ent_coef": 0.01, "clip_coef": 0.2, "update_epochs": 3, "minibatch_size": 16,
    }  # fmt: skip
    config = experiments.default_config("gym", env="none", **settings | changes)
    optimizer = torch.optim.Adam(agent.parameters(), lr=lr)
    algorithm = PPO(agent, Gradients(agent, optimizer, 40.0), config)
    actor = Actor(agent, env, steps, sequence)
    actor.start(seed=0)
    return actor, algorithm


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("steps", "length"), [(8, 4), (10, 4), (3, 5), (6, 1), (5, 5)])
@pytest.mark.parametrize("features", [(), (2,), (2, 3)])
def test_cut_into_sequences(steps: int, length: int, features: tuple[int, ...]) -> None:
    tensor = torch.randn(3, steps, *features)
    pieces = cut_into_sequences(tensor, length)
    count = -(-steps // length)
    assert pieces.shape == (3 * count, length, *features)
    for b in range(3):
        for piece in range(count):
            for k in range(length):
                t = piece * length + k
                expected = tensor[b, t] if t < steps else torch.zeros(features)
                assert torch.equal(pieces[piece * 3 + b, k], expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("discrete", [True, False])
def test_minibatches_replay_all_that_was_lived_once(mode: AutoresetMode, discrete: bool) -> None:
    """Rate 0: each step's probability and value, from its sequence alone, in any order."""
    actor, algorithm = learner(recorders(3, mode, discrete=discrete), lr=0.0)
    policy = algorithm.agent.policy
    actor.collect(generator(0))
    rollout = actor.collect(generator(1))
    advantages = generalised_advantages(
        rollout.rewards, rollout.values, rollout.ended, rollout.bootstrap,
        discount=0.9, smoothing=0.8,
    )  # fmt: skip
    lived = policy.distribution(rollout.heads[..., :-1]).log_prob(rollout.actions).numpy()
    valid = rollout.valid
    standard = (advantages - advantages[valid].mean()) / advantages[valid].std()

    sequences = algorithm.sequences(rollout)
    assert len(sequences) == 9
    met: list[np.ndarray] = []
    order = torch.randperm(9, generator=generator(5))
    minibatches = list(sequences.shuffled(order).split(4))
    assert sorted(len(minibatch) for minibatch in minibatches) == [2, 2, 2, 3]
    for batch in minibatches:
        with torch.no_grad():
            parameters, values, _ = algorithm.agent(batch.observations, batch.state, batch.reset)
        log_probs = policy.distribution(parameters).log_prob(batch.actions)
        real = batch.mask.bool()
        torch.testing.assert_close(log_probs[real], batch.log_probs[real])
        columns = (log_probs, values, batch.advantages, batch.returns)
        met.append(torch.stack([column[real] for column in columns], dim=1).numpy())
    expected = np.stack(
        [lived[valid], rollout.values[valid], standard[valid],
         (advantages + rollout.values)[valid]], axis=1,
    )  # fmt: skip
    found = np.concatenate(met)
    assert found.shape == expected.shape
    np.testing.assert_allclose(
        found[np.lexsort(found.round(3).T)], expected[np.lexsort(expected.round(3).T)], atol=1e-4
    )


@pytest.mark.parametrize("mode", MODES)
def test_loss_against_loops(mode: AutoresetMode) -> None:
    actor, algorithm = learner(recorders(3, mode))
    rollout = actor.collect(generator(0))
    sequences = algorithm.sequences(rollout)
    with torch.no_grad():  # another policy than the one that acted
        for parameter in algorithm.agent.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator(3)), alpha=0.2)
    terms = algorithm.terms(sequences)

    gains, errors, entropies, clipped = [], [], [], 0
    for s in range(len(sequences)):
        state = tuple(type(layer)(*(v[s : s + 1] for v in layer)) for layer in sequences.state)
        for k in range(4):
            if sequences.reset[s, k]:
                state = None
            heads, state = algorithm.agent.step(sequences.observations[s : s + 1, k], state)
            if not sequences.mask[s, k]:
                continue
            p = heads[0, :-1].softmax(0)
            ratio = p[sequences.actions[s, k]] / sequences.log_probs[s, k].exp()
            advantage = sequences.advantages[s, k]
            gains.append(min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
            clipped += int(abs(ratio - 1) > 0.2)
            errors.append((heads[0, -1] - sequences.returns[s, k]) ** 2)
            entropies.append(-(p * p.log()).sum())
    assert clipped > 3
    assert len(gains) == rollout.valid.sum()
    torch.testing.assert_close(terms["policy_loss"], -torch.stack(gains).mean())
    torch.testing.assert_close(terms["value_loss"], torch.stack(errors).mean())
    torch.testing.assert_close(terms["entropy"], torch.stack(entropies).mean())


def test_rate_zero_changes_nothing() -> None:
    actor, algorithm = learner(recorders(3, AutoresetMode.SAME_STEP), lr=0.0, ent_coef=0.0)
    before = [parameter.clone() for parameter in algorithm.agent.parameters()]
    rollout = actor.collect(generator(0))
    numbers = algorithm.learn(rollout, generator(1), "now")
    for parameter, old in zip(algorithm.agent.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    # All ratios are 1, and standardised advantages have mean 0 over the whole batch.
    whole = algorithm.terms(algorithm.sequences(rollout))
    assert whole["policy_loss"].item() == pytest.approx(0.0, abs=1e-5)
    assert numbers["value_loss"] == pytest.approx(whole["value_loss"].item(), rel=0.2)


def test_order_depends_on_the_generator_alone() -> None:
    def trained(seed: int) -> list[torch.Tensor]:
        actor, algorithm = learner(recorders(3, AutoresetMode.SAME_STEP))
        algorithm.learn(actor.collect(generator(0)), generator(seed), "now")
        return [parameter.detach() for parameter in algorithm.agent.parameters()]

    first, again, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_one_environment_and_a_core_without_recurrence() -> None:
    env = recorders(1, AutoresetMode.SAME_STEP, discrete=False)
    torch.manual_seed(0)
    core = STPNf(3, 8, batch_first=True, norm=None, clamp=0.1)
    agent = Agent(
        encoder_for(env.single_observation_space), core, policy_for(env.single_action_space)
    )
    settings = experiments.default_config(
        "gym", env="none", vf_coef=1.0, update_epochs=2, minibatch_size=64
    )
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    algorithm = PPO(agent, Gradients(agent, optimizer, 40.0), settings)
    actor = Actor(agent, env, 128, 20)
    actor.start(seed=0)
    for update in range(2):
        numbers = algorithm.learn(actor.collect(generator(update)), generator(update), "now")
        assert all(np.isfinite(number) for number in numbers.values())


def test_learns_to_remember() -> None:
    env = SyncVectorEnv([Recall] * 16, autoreset_mode=AutoresetMode.SAME_STEP)
    actor, algorithm = learner(
        env, lr=1e-2, steps=12, sequence=6, minibatch_size=48, update_epochs=4
    )
    for update in range(40):
        algorithm.learn(actor.collect(generator(update)), generator(update), "now")
    rewards = [r for update in range(10) for r in actor.collect(generator(update)).episode_rewards]
    assert sum(rewards) / len(rewards) > 0.9  # 0.5 by chance
