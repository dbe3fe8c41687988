"""What helps agents to learn: schedules, learning rates by group, starts, statistics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from gymnasium import spaces

from stpn import experiments
from stpn.config import from_dict
from stpn.errors import ConfigError
from stpn.nn import registry
from stpn.training import checkpoint, initialisation, optim, session
from stpn.training.agent import Agent, Vector, encoder_for
from stpn.training.loop import Reporter
from stpn.training.policies import Categorical
from stpn.training.ppo import PPO, standardized
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.returns import RewardScale
from stpn.training.rl_config import line
from stpn.training.running import RunningStatistics
from stpn.training.trainer import Trainer

TINY: dict[str, Any] = {
    "env": "CartPole-v1", "hidden_size": 5, "num_envs": 3, "num_steps": 20, "steps": 240,
    "eval_every": 120, "eval_episodes": 2, "final_episodes": 2, "minibatch_size": 20,
    "update_epochs": 2, "sequence_length": 8,
}  # fmt: skip


def trainer(task: str = "gym", **settings: Any) -> ReinforcementTrainer:
    config = experiments.default_config(task, **(TINY if task == "gym" else {}) | settings)
    torch.manual_seed(config.seed)
    built = experiments.get(task).task.build_trainer(config)
    assert isinstance(built, ReinforcementTrainer)
    return built


def test_schedules_are_lines_to_the_end_of_the_run() -> None:
    settings = {"lr": 1e-3, "lr_final": 2e-4, "lr_decay": 10, "ent_coef": 0.02, "clip_coef": 0.2}
    built = trainer(**settings, ent_coef_final=0.0, clip_coef_final=0.1, lr_plasticity=5e-3)
    seen = []
    assert isinstance(built.algorithm, PPO)
    while built.done < built.total:
        built.advance()
        rates = [group["lr"] for group in built.optimizer.param_groups]
        seen.append([*rates, built.algorithm.ent_coef, built.algorithm.clip_coef])
    expected = [
        [1e-3 - 2e-4 * k, 5e-3 * (1 - 0.2 * k), 0.02 * (1 - k / 4), 0.2 - 0.025 * k]
        for k in range(4)
    ]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_the_schedule_follows_the_length_of_the_run() -> None:
    config = experiments.default_config("pong", lr=1e-3, lr_final=0.0, steps=1000)
    assert line(config.lr, config.lr_final, 0.5) == pytest.approx(5e-4)
    assert line(config.ent_coef, None, 0.5) == config.ent_coef
    assert line(config.lr, config.lr_final, 1.5) == 0.0


@pytest.mark.parametrize("model", ["stpnr", "ustpnf", "stpnl", "modplast", "plastic", "hebbff"])
def test_plasticity_learns_at_its_own_rate(model: str) -> None:
    built = trainer(model=model, lr=0.0, lr_plasticity=1e-2)
    before = {name: p.detach().clone() for name, p in built.model.named_parameters()}
    built.advance()
    changed = {
        name for name, p in built.model.named_parameters() if not torch.equal(p, before[name])
    }
    prefixes = tuple(f"core.{name}" for name in optim.PLASTICITY)
    assert changed == {name for name in before if name.startswith(prefixes)}
    assert changed


def test_without_plasticity_there_is_no_rate_of_it() -> None:
    with pytest.raises(ConfigError, match="lr_plasticity is for models"):
        trainer(model="lstm", lr_plasticity=1e-3)


def agent_on(space: Any, model: str, hidden: int = 6) -> Agent:
    encoder = encoder_for(space)
    core = registry.build(model, encoder.output_size, hidden, batch_first=True)
    return Agent(encoder, core, Categorical(3))


def test_orthogonal_start() -> None:
    agent = agent_on(spaces.Box(0, 255, (1, 36, 36), np.uint8), "stpnr", hidden=8)
    initialisation.orthogonal(agent)
    policy, value = agent.heads.weight[:-1], agent.heads.weight[-1:]
    torch.testing.assert_close(policy @ policy.t(), 1e-4 * torch.eye(3))
    torch.testing.assert_close(value @ value.t(), torch.ones(1, 1))
    rows = agent.encoder.conv1.weight.flatten(1)  # (16, 64)
    torch.testing.assert_close(rows @ rows.t(), 2 * torch.eye(16), atol=1e-5, rtol=1e-5)
    assert not agent.heads.bias.any()
    assert not agent.encoder.conv2.bias.any()


def test_lambda_starts_where_it_is_told() -> None:
    start = ("lambda_min=0.9", "lambda_max=0.95")
    built = trainer(model="stpnr", core=start, hidden_size=30)
    values = built.model.core.lambda_l0
    assert 0.9 <= values.min() < 0.902
    assert 0.948 < values.max() <= 0.95
    with pytest.raises(ConfigError, match="unknown option of lstm 'lambda_min'"):
        trainer(model="lstm", core=start)
    with pytest.raises(ConfigError, match="lambda_min: expected at most lambda_max"):
        trainer(model="stpnr", core=("lambda_min=1.5",))


def test_a_start_of_lambda_from_an_earlier_version_is_an_option_of_the_core() -> None:
    settings = {"task": "maze", "model": "stpnr", "lambda_min": 0.9, "core": ["associate=new"]}
    assert from_dict(settings).core_options == {
        "associate": "new", "lambda_min": 0.9, "lambda_max": 1,
    }  # fmt: skip
    settings = {"task": "maze", "model": "lstm", "lambda_min": 0.0, "lambda_max": 1.0}
    assert from_dict(settings).core == ()


@pytest.mark.parametrize("model", ["stpnr", "lstm", "gru"])
def test_time_constants_are_spread_evenly_in_their_logarithm(model: str) -> None:
    built = trainer(model=model, longest_memory=100.0, hidden_size=400)
    core = built.model.core
    if model == "stpnr":
        tau = -1 / core.lambda_l0.log()
    else:
        gates = 4 if model == "lstm" else 3
        rows = (core.bias_ih_l0 + core.bias_hh_l0).view(gates, -1)
        tau = 1 / (1 - rows[1].sigmoid())  # what is kept of a memory from step to step
        if model == "lstm":
            torch.testing.assert_close(rows[0], -rows[1])
    assert tau.min() >= 1
    assert tau.max() <= 101
    assert tau.log().mean().item() == pytest.approx(math.log(100) / 2, abs=0.25)
    with pytest.raises(ConfigError, match="no time constants"):
        trainer(model="rnn", longest_memory=100.0)


def test_defaults_draw_nothing() -> None:
    """Runs of old settings start from the weights that they always started from."""
    torch.manual_seed(0)
    agent = agent_on(spaces.Box(-1, 1, (4,), np.float32), "stpnr")
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    state = torch.get_rng_state()
    initialisation.initialise(agent, experiments.default_config("gym", "stpnr", env="CartPole-v1"))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in agent.state_dict().items())


def test_advantages_of_a_minibatch_are_standard() -> None:
    numbers = torch.randn(4, 5) * 3 + 7
    mask = torch.ones(4, 5)
    mask[1, 3:] = 0
    real = standardized(numbers, mask)[mask.bool()]
    assert real.mean().item() == pytest.approx(0, abs=1e-5)
    assert real.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    built = trainer(standardize="minibatch")
    rollout = built.actor.collect(torch.Generator().manual_seed(0))
    assert isinstance(built.algorithm, PPO)
    raw = built.algorithm.sequences(rollout).advantages
    assert raw.std() != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("one_scale", [False, True])
def test_running_statistics_are_those_of_all_at_once(one_scale: bool) -> None:
    numbers = torch.randn(50, 2, 3) * torch.tensor([1.0, 5.0, 0.1]) + 3
    statistics = RunningStatistics((2, 3), one_scale=one_scale)
    torch.testing.assert_close(statistics(numbers[:2]), numbers[:2])
    for piece in numbers.split([7, 30, 13]):
        statistics.update(piece)
    torch.testing.assert_close(statistics.mean, numbers.mean(0))
    variance = numbers.var(0, correction=0)
    if one_scale:
        shown = (numbers - numbers.mean(0)) / variance.max().sqrt()
    else:
        shown = (numbers - numbers.mean(0)) / variance.sqrt()
    torch.testing.assert_close(statistics(numbers), shown, atol=1e-4, rtol=1e-4)


def test_normalised_observations_are_saved_with_the_network(tmp_path: Path) -> None:
    built = trainer(normalize_observations=True)
    built.advance()
    statistics = built.model.encoder.statistics
    assert statistics.count == 60
    built.advance()
    checkpoint.write(tmp_path / "saved", built.state_dict())
    again = trainer(normalize_observations=True)
    again.load_state_dict(checkpoint.read(tmp_path / "saved"))
    torch.testing.assert_close(again.model.encoder.statistics.mean, statistics.mean)
    assert again.model.encoder.statistics.count == 120
    # what was acted on is what is replayed: the statistics change between rollouts only
    rollout = again.actor.collect(torch.Generator().manual_seed(0))
    with torch.no_grad():
        parameters, _, _ = again.model(rollout.observations, rollout.states[0], rollout.reset)
    torch.testing.assert_close(parameters, rollout.heads[..., :-1], atol=1e-5, rtol=1e-4)


def test_frames_show_what_differs_from_their_mean() -> None:
    encoder = encoder_for(spaces.Box(0, 255, (1, 36, 36), np.uint8), normalize=True)
    frames = torch.full((16, 1, 36, 36), 100, dtype=torch.uint8)
    for n in range(16):
        frames[n, 0, 10, n] = 200
    encoder.observe(frames)
    assert encoder.statistics.count == 2  # one in eight
    encoder.observe(frames[:3])
    assert encoder.statistics.count == 3
    centred = encoder.statistics(frames.float() / 255)
    assert centred[:, :, 20].abs().max() < 1e-3
    # pixel 0 was lit in two of three frames: no other varied more
    assert centred[5, 0, 10, 5].item() == pytest.approx((2 / 9) ** -0.5, rel=1e-3)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-5, 5, (4,)),
        spaces.Box(0, 9, (4,), np.uint8),
        spaces.Box(0, 255, (1, 36, 36), np.uint8),
    ],
)
def test_what_the_core_sees_has_one_length(space: spaces.Box) -> None:
    plain, fixed = encoder_for(space), encoder_for(space, length=7.0)
    fixed.load_state_dict(plain.state_dict())
    seen = torch.from_numpy(np.stack([space.sample() for _ in range(3)]))
    as_it_is, scaled = plain(seen), fixed(seen)
    torch.testing.assert_close(scaled.norm(dim=1), torch.full((3,), 7.0))
    cosine = torch.nn.functional.cosine_similarity(as_it_is, scaled)
    torch.testing.assert_close(cosine, torch.ones(3))
    nothing = Vector((4,), length=7.0)(torch.zeros(1, 4, requires_grad=True))
    nothing.sum().backward()  # finite
    assert not nothing.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feature_length": 0.0}, "feature_length must be > 0"),
        ({"lr_final": -1.0}, "lr_final must be >= 0"),
        ({"clip_coef_final": 0.0}, "clip_coef_final must be > 0"),
        ({"longest_memory": 1.0}, "longest_memory must be > 1"),
        ({"average": 1.0}, "average must be >= 0 and < 1"),
        ({"rllib": True, "orthogonal": True}, "orthogonal is not a setting of RLlib"),
    ],
)
def test_impossible_options_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiments.default_config("gym", env="CartPole-v1", **settings)


def test_the_average_of_the_weights_is_what_is_measured_and_saved() -> None:
    built = trainer(average=0.6)
    assert built.model is not built.learner
    expected = {name: p.detach().clone() for name, p in built.learner.named_parameters()}
    for update in range(1, 4):
        built.advance()
        decay = min(0.6, update / (10 + update))
        for name, p in built.learner.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()
    for name, p in built.model.named_parameters():
        torch.testing.assert_close(p, expected[name])
    saved = built.state_dict()
    torch.testing.assert_close(saved["model"]["core.weight_l0"], expected["core.weight_l0"])
    assert torch.equal(saved["learner"]["core.weight_l0"], built.learner.core.weight_l0)


def test_without_an_average_the_learner_is_the_network() -> None:
    built = trainer()
    assert built.model is built.learner
    assert "learner" not in built.state_dict()


def test_the_run_ends_at_its_target(tmp_path: Path) -> None:
    built = trainer(target=1.0)  # every pole stands for a step
    row = None
    while built.done < built.total:
        row = built.advance()
    assert (built.done, built.updates) == (120, 2)
    assert row is not None
    checkpoint.write(tmp_path / "saved", built.state_dict())
    again = trainer(target=1.0)
    again.load_state_dict(checkpoint.read(tmp_path / "saved"))
    assert again.done == again.total == 120


@pytest.mark.parametrize("total", [180, 240])  # 240: what it was to have at first
def test_a_run_that_ended_at_its_target_can_be_lengthened(tmp_path: Path, total: int) -> None:
    config = experiments.default_config("gym", **TINY, target=1.0)
    ended = session.start(config, tmp_path)
    assert ended.summary is not None
    assert (ended.summary.done, ended.finished) == (120, True)
    assert session.resume(ended.run.path).summary == ended.summary  # nothing more to do

    class Interrupt(Reporter):
        def progressed(self, trainer: Trainer) -> None:
            raise KeyboardInterrupt  # before anything new is saved

    with pytest.raises(KeyboardInterrupt):
        session.resume(ended.run.path, total=total, reporter=Interrupt())
    longer = session.resume(ended.run.path)  # to the length that was asked for
    assert longer.summary is not None
    assert (longer.summary.done, longer.finished) == (total, True)


def test_a_run_that_ended_at_its_target_is_not_shortened(tmp_path: Path) -> None:
    ended = session.start(experiments.default_config("gym", **TINY, target=1.0), tmp_path)
    with pytest.raises(ConfigError, match="already gone further than 60 steps"):
        session.resume(ended.run.path, total=60)
    assert ended.run.summary == ended.summary


def test_rewards_in_deviations_of_returns() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(3, 40)).astype(np.float32) * 7 + 2
    ended = rng.random((3, 40)) < 0.1
    returns = np.zeros((3, 40))
    for b in range(3):
        following = 0.0
        for t in range(40):
            following = rewards[b, t] + 0.9 * following
            returns[b, t] = following
            following *= not ended[b, t]
    scale = RewardScale(3, 0.9)
    first, second = rewards[:, :15].copy(), rewards[:, 15:].copy()
    scale.apply(first, ended[:, :15])
    np.testing.assert_allclose(first, rewards[:, :15] / returns[:, :15].std(), rtol=1e-5)
    again = RewardScale(3, 0.9)
    again.load_state_dict(scale.state_dict())
    again.apply(second, ended[:, 15:])
    np.testing.assert_allclose(second, rewards[:, 15:] / returns.std(), rtol=1e-5)


def test_scaled_rewards_are_learnt_from_but_not_reported(tmp_path: Path) -> None:
    built = trainer(normalize_rewards=True)
    built.advance()
    row = built.advance()
    assert row is not None
    assert row["train_reward"] >= 8  # steps, not deviations
    saved = built.state_dict()["reward_scale"]
    assert saved["count"] == 120
    checkpoint.write(tmp_path / "saved", built.state_dict())
    again = trainer(normalize_rewards=True)
    again.load_state_dict(checkpoint.read(tmp_path / "saved"))
    assert again.state_dict()["reward_scale"]["variance"] == saved["variance"]
