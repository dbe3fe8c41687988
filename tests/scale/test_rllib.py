"""Cores in RLlib: replayed as they were lived, learning, and weights that travel both ways."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="stpn-torch[ray] is not installed")

from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns

import stpn
from stpn import experiments
from stpn.errors import CheckpointError, ConfigError
from stpn.scale.rllib import IN_CHECKPOINT, agent_from, agent_into
from stpn.scale.rllib_algorithms import algorithm_config
from stpn.tasks.agents import AgentTask
from stpn.tasks.gym import Gym
from stpn.training import session
from stpn.training.trainer import Trainer


class Noise(gym.Env):
    """Images, of which nothing is to be learnt, in episodes of seven steps."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 40), np.uint8)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, context=None):
        super().__init__()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action):
        self.steps += 1
        return self._see(), 1.0, self.steps == 7, False, {}

    def _see(self):
        return self.np_random.integers(0, 256, (1, 36, 40), np.uint8)


class Watching(PPOTorchLearner):
    """Compares what is replayed with what was sampled."""

    differences: list[float] = []  # noqa: RUF012  (shared with the test on purpose)

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        lived, replayed = batch[Columns.ACTION_DIST_INPUTS], fwd_out[Columns.ACTION_DIST_INPUTS]
        real = batch[Columns.LOSS_MASK]
        self.differences.append(float((lived - replayed.detach())[real].abs().max()))
        return super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )


def settings(model="stpnr", **changes):
    small = {
        "num_envs": 2,
        "num_steps": 40,
        "sequence_length": 8,
        "minibatch_size": 80,
        "update_epochs": 1,
        "threads": 1,
    }
    changes = {"hidden_size": 8, "env": "CartPole-v1", "rllib": True, **small, **changes}
    return experiments.default_config("gym", model, **changes)


def build(config, **changes):
    """The algorithm; a network that starts at zero would replay anything."""
    algorithm = algorithm_config(config, hidden_size=config.hidden_size)
    return algorithm.training(**changes).build_algo()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", Noise])
@pytest.mark.parametrize("model", ["stpnr", "stpnl", "modplast", "lstm", "mlp"])
def test_with_learning_rate_zero_the_replay_is_what_was_lived(ray, model, env):
    """Three iterations: episodes that go on from one to the next, and padded sequences."""
    changed = {"lr": 0.0, "learner_class": Watching}
    config = settings(model, relative_value=False)
    algorithm = algorithm_config(config, hidden_size=8).environment(env).training(**changed)
    algorithm = algorithm.build_algo()
    Watching.differences.clear()
    try:
        for _ in range(3):
            result = algorithm.train()
    finally:
        algorithm.stop()
    assert len(Watching.differences) >= 3
    assert max(Watching.differences) < 1e-5
    assert result["env_runners"]["power"] > 0


def test_power_in_the_results_is_that_of_the_meter(ray):
    algorithm = build(settings(num_layers=2))
    try:
        (episode, *_) = algorithm.env_runner.sample(num_episodes=1)
        agent = agent_from(algorithm)
    finally:
        algorithm.stop()
    seen = torch.as_tensor(np.stack(episode.get_observations()[:-1])).unsqueeze(0)
    with stpn.EnergyMeter(agent.core) as meter, torch.no_grad():
        agent(seen)
    measured = torch.stack([*meter.per_step.values()]).sum(0)
    reported = torch.as_tensor(np.array(episode.get_extra_model_outputs("power")))
    torch.testing.assert_close(reported, measured, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "appo", "impala"])
def test_weights_go_both_ways(ray, tmp_path, algorithm):
    config = settings(algorithm=algorithm)
    first = build(config)
    try:
        for _ in range(6):
            result = first.train()
        before = agent_from(first)
        first.save_to_path(tmp_path / "saved")
        loss = result["learners"]["default_policy"]["total_loss"]
    finally:
        first.stop()
    assert math.isfinite(loss) or algorithm != "ppo"  # the others may have learnt nothing just now

    with pytest.raises(CheckpointError, match="reading it executes"):
        agent_from(tmp_path / "saved")
    agent = agent_from(tmp_path / "saved", trusted=True)
    if algorithm == "ppo":  # the others learn on in a thread
        assert equal(agent, before)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.normal_()
    second = build(config)
    try:
        agent_into(second, agent)
        assert equal(agent_from(second), agent)
        assert equal(second.get_module().agent, agent)  # and those who play have them, too
        agent_into(second, agent_from(tmp_path / "saved", trusted=True))
        assert not equal(agent_from(second), agent)
    finally:
        second.stop()


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not a checkpoint of an RLlib algorithm"):
        agent_from(tmp_path)


@pytest.mark.slow
def test_a_few_iterations_on_cartpole_improve(ray, tmp_path):
    config = experiments.default_config(
        "gym",
        "stpnr",
        env="CartPole-v1",
        rllib=True,
        hidden_size=16,
        threads=1,
        steps=12000,
        eval_every=3000,
    )  # fmt: skip
    outcome = session.start(config, tmp_path)
    rows = outcome.run.metrics()
    assert rows[-1]["train_reward"] > 1.3 * rows[0]["train_reward"]  # over all episodes between
    assert rows[-1]["proficiency"] > 25  # of a few; random play lasts 22 steps
    assert rows[-1]["power"] > 0
    assert rows[-1]["train_power"] > 0
    with session.restored(outcome.run.path) as plain:  # the task's own trainer
        figures = plain.evaluate()
    assert figures.proficiency == outcome.summary.proficiency


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "small"),
    [
        ("pendulum", {"num_steps": 128, "update_epochs": 1, "eval_every": 128}),
        ("pong", {"num_envs": 2, "num_steps": 6, "hidden_size": 4, "eval_every": 10**6}),
        ("maze", {"num_envs": 4, "algo": "ppo", "eval_every": 1}),
    ],
)
def test_the_tasks_of_the_paper_are_ready_and_either_trainer_goes_on(ray, task, small):
    total = {"iterations": 1} if task == "maze" else {"steps": 10**6}
    if task == "maze":
        small = {**small, "eval_episodes": 4, "minibatch_size": 200}
    common = {"threads": 1, **small, **total}
    config = experiments.default_config(task, rllib=True, **common)
    trainer = experiments.get(task).task.build_trainer(config)
    try:
        while trainer.done == 0:
            row = trainer.advance()
        saved = trainer.state_dict()
        trainer.load_state_dict(saved)
        (_, rate), (rest, _) = trainer.algorithm.config.lr  # falls on from where it was
        end = config.lr_decay * (800 if task == "maze" else 1)
        assert rest == end - trainer.samples
        assert rate == pytest.approx(config.lr * rest / end)
    finally:
        trainer.close()
    assert saved["steps"] == trainer.samples > 0
    if task != "pong":  # the first row of Pong would be minutes away
        assert row["power"] > 0
    plain = experiments.get(task).task.build_trainer(
        experiments.default_config(task, preset=config.preset, **common)
    )
    try:
        plain.load_state_dict(saved)
        assert isinstance(plain, Trainer)
        assert equal(plain.model, trainer.model)
        plain.state_dict()
    finally:
        plain.close()


def test_algorithms_follow_the_task():
    from stpn.scale.rllib_algorithms import chosen

    assert chosen(experiments.default_config("pong", rllib=True)) == "impala"
    assert chosen(experiments.default_config("pendulum", rllib=True)) == "ppo"
    assert chosen(experiments.default_config("pong", rllib=True, algorithm="appo")) == "appo"


def test_the_settings_of_pendulum_arrive():
    config = algorithm_config(experiments.default_config("pendulum", rllib=True), hidden_size=64)
    assert (config.gamma, config.lambda_, config.clip_param) == (0.99, 0.95, 0.2)
    assert (config.num_epochs, config.minibatch_size, config.grad_clip) == (10, 64, 40.0)
    assert config.lr == [[0, 3e-4], [4_000_000, 0.0]]
    maze = algorithm_config(experiments.default_config("maze", rllib=True), hidden_size=64)
    assert maze.lr == [[0, 1e-3], [12_000 * 64 * 200, 0.0]]  # it counts iterations, RLlib steps
    model = config.rl_module_spec.model_config
    assert (model["max_seq_len"], model["core"]["clamp"], model["core"]["norm"]) == (20, 0.1, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 3, "env_runners": 2}, "3 agents cannot be shared evenly by 2"),
        ({"optimizer": "SGD"}, "RLlib learns by Adam, not by SGD"),
    ],
)
def test_what_rllib_cannot_do_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        algorithm_config(settings(**changes), hidden_size=8)


@pytest.mark.parametrize("changes", [{"rllib_algorithm": "appo"}, {"env_runners": 2}])
def test_settings_of_rllib_without_it_are_refused(changes):
    with pytest.raises(ConfigError, match="is a setting of RLlib: add --rllib"):
        settings(rllib=False, **changes)


def equal(a, b):
    theirs = b.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in a.state_dict().items())


def test_a_task_that_has_no_environment_there_is_refused(monkeypatch):
    config = settings()
    monkeypatch.setattr(Gym, "rllib_env", AgentTask.rllib_env)
    with pytest.raises(ConfigError, match="gym cannot be trained in RLlib"):
        algorithm_config(config, hidden_size=8)


def test_a_checkpoint_of_unknown_origin_is_not_unpickled(tmp_path):
    (tmp_path / IN_CHECKPOINT).mkdir(parents=True)
    (tmp_path / IN_CHECKPOINT / "class_and_ctor_args.pkl").write_bytes(Mine(tmp_path).pickled)
    with pytest.raises(CheckpointError, match="say agent_from"):
        agent_from(tmp_path)
    assert not (tmp_path / "executed").exists()


class Mine:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, directory):
        self.target = directory / "executed"

    def __reduce__(self):
        return (open, (str(self.target), "w"))

    @property
    def pickled(self):
        return pickle.dumps(self)
