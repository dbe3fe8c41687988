"""The trainers as the loop sees them: rows, resuming, schedules, and what can go wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

import gymnasium as gym
from toy_environments import Broken, Endless, Recorder

from stpn import experiments
from stpn._extras import MissingExtra
from stpn.errors import ConfigError, StpnError
from stpn.nn import registry
from stpn.runs import Run
from stpn.training import checkpoint, evaluation, session
from stpn.training.loop import Reporter, Stop
from stpn.training.policies import UnsupportedSpace
from stpn.training.reinforcement import ReinforcementTrainer, stretches
from stpn.training.trainer import Row


def register(name: str, make: Any) -> None:
    if name not in gym.registry:
        gym.register(name, entry_point=make)


register("stpn-test/Recorder-v0", lambda: Recorder(0))
register("stpn-test/Broken-v0", lambda: Broken("raise", after=1000))
register("stpn-test/Endless-v0", Endless)
register("stpn-test/NaN-v0", lambda: Broken("nan observation", after=1000))


class TwoLevers(Recorder):
    def __init__(self) -> None:
        super().__init__(0)
        self.action_space = gym.spaces.MultiDiscrete([2, 2])


register("stpn-test/TwoLevers-v0", TwoLevers)

TINY_MAZE: dict[str, Any] = {
    "hidden_size": 7, "num_envs": 4, "iterations": 4, "eval_every": 2, "eval_episodes": 4,
    "final_episodes": 8,
}  # fmt: skip
SHARED: dict[str, Any] = {
    "hidden_size": 7, "num_envs": 3, "num_steps": 20, "steps": 300, "eval_every": 120,
    "eval_episodes": 4, "final_episodes": 4,
}  # fmt: skip
TINY_GYM = {**SHARED, "minibatch_size": 20, "update_epochs": 2, "sequence_length": 8}  # PPO


def trainer(task: str, **settings: Any) -> ReinforcementTrainer:
    config = experiments.default_config(task, **settings)
    torch.manual_seed(config.seed)
    built = experiments.get(task).task.build_trainer(config)
    assert isinstance(built, ReinforcementTrainer)
    return built


def work(built: ReinforcementTrainer) -> list[Row]:
    rows = []
    while built.done < built.total:
        row = built.advance()
        if row is not None:
            rows.append(row)
    return rows


@pytest.mark.parametrize("model", registry.models())
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_any_core_acts_and_learns(model: str, algo: str) -> None:
    tiny = TINY_GYM if algo == "ppo" else SHARED
    built = trainer("gym", env="stpn-test/Recorder-v0", model=model, algo=algo, **tiny)
    before = [parameter.detach().clone() for parameter in built.model.parameters()]
    rows = work(built)
    assert [row["step"] for row in rows] == [120, 240, 300]
    for row in rows:
        assert all(np.isfinite(value) for value in row.values())
        assert row["power"] > 0
    changed = [
        not torch.equal(old, new) for old, new in zip(before, built.model.parameters(), strict=True)
    ]
    assert all(changed)
    figures = built.evaluate()
    assert figures.extras["episodes"] >= 4
    assert 0 < len(figures.power_per_step) <= 7


def test_maze_rows_and_figures() -> None:
    built = trainer("maze", **TINY_MAZE)
    rows = work(built)
    assert [row["step"] for row in rows] == [2, 4]
    assert {"proficiency", "power", "loss", "train_reward", "entropy", "lr"} <= rows[0].keys()
    figures = built.evaluate()
    assert len(figures.power_per_step) == 200
    assert figures.extras["episodes"] == 8
    assert figures.extras["greedy_power"] > 0  # beside what was sampled
    assert 0 <= figures.extras["greedy_reward"] != figures.proficiency
    assert figures.power == pytest.approx(np.mean(figures.power_per_step))
    assert figures == built.evaluate()
    assert sum(built.seconds.values()) > 0


def test_the_papers_settings() -> None:
    headline = experiments.default_config("maze", preset="paper")
    assert (headline.algo, headline.num_envs, headline.iterations) == ("a2c", 512, 50_000)
    assert (headline.lr, headline.lr_decay, headline.relative_value) == (1e-4, None, False)
    assert (headline.num_steps, headline.gamma, headline.vf_coef) == (200, 0.9, 0.1)
    assert (headline.algorithm.concentration, headline.max_grad_norm, headline.eps) == (
        0.03,
        4.0,
        1e-4,
    )
    assert (headline.hidden_size, headline.norm, headline.clamp) == (55, "post", 1.0)
    assert (headline.ent_coef, headline.final_episodes, headline.greedy) == (0.0, 51_200, False)
    ablation = experiments.default_config("maze-ablation", preset="paper")
    assert (ablation.hidden_size, ablation.norm, ablation.clamp) == (30, "pre", None)
    assert experiments.default_config("maze", "lstm").hidden_size == 47

    pong = experiments.default_config("pong", preset="paper")
    assert (pong.algo, pong.num_envs, pong.num_steps, pong.gamma) == ("a2c", 64, 50, 0.99)
    assert (pong.vf_coef, pong.ent_coef, pong.max_grad_norm) == (0.5, 0.01, 40.0)
    assert (pong.lr, pong.greedy, pong.algorithm.concentration) == (7e-4, True, 0.0)
    assert experiments.default_config("pong", "lstm", preset="paper").lr == 1e-4
    assert not pong.normalize_observations
    fast = experiments.default_config("pong", preset="fast")
    assert (fast.algo, fast.num_envs, fast.lr, fast.steps) == ("ppo", 32, 4e-4, 10_000_000)

    tuned = experiments.default_config("pong", "lstm")
    assert (tuned.preset, tuned.algo, tuned.lr, tuned.lr_final) == ("tuned", "ppo", 5e-4, 0.0)
    assert experiments.default_config("pong", rllib=True).preset == "paper"

    assert experiments.default_config("pendulum").lr_final == 0.0
    before = experiments.default_config("pendulum", preset="fast")
    assert (before.lr_final, before.lr_decay) == (None, 4_000_000)
    pendulum = experiments.default_config("pendulum", preset="paper")
    assert not pendulum.relative_value
    assert (pendulum.algo, pendulum.num_envs, pendulum.num_steps) == ("ppo", 1, 2048)
    assert (
        pendulum.algorithm.update_epochs,
        pendulum.algorithm.minibatch_size,
        pendulum.algorithm.sequence_length,
    ) == (10, 64, 20)
    assert (pendulum.gamma, pendulum.algorithm.gae_lambda, pendulum.algorithm.clip_coef) == (
        0.99,
        0.95,
        0.2,
    )
    assert (pendulum.vf_coef, pendulum.ent_coef, pendulum.max_grad_norm) == (1.0, 0.01, 40.0)
    assert (pendulum.lr, pendulum.norm, pendulum.clamp) == (3e-4, "none", 0.1)


@pytest.mark.slow
def test_the_fast_preset_finds_its_way_in_the_maze() -> None:
    built = trainer("maze", iterations=60, eval_every=20, eval_episodes=64)
    rewards = [row["train_reward"] for row in work(built)]
    assert 4 < rewards[0] < 8  # a random walk earns 5.6
    assert rewards[-1] > 1.5 * rewards[0]


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
@pytest.mark.parametrize("rollout", [200, 30])
def test_a_resumed_maze_is_bit_identical(tmp_path: Path, algo: str, rollout: int) -> None:
    settings = TINY_MAZE | {"algo": algo, "num_steps": rollout, "lr_decay": 10}
    if algo == "ppo":
        settings |= {"minibatch_size": 200, "update_epochs": 2}
    straight = trainer("maze", **settings)
    rows = work(straight)

    first = trainer("maze", **settings)
    resumed_rows = [first.advance() for _ in range(3)]
    checkpoint.write(tmp_path / "saved", first.state_dict())
    second = trainer("maze", **settings)
    second.load_state_dict(checkpoint.read(tmp_path / "saved"))
    resumed_rows += work(second)
    assert [row for row in resumed_rows if row is not None] == rows
    assert same(straight.state_dict(), second.state_dict())
    assert straight.evaluate() == second.evaluate()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return bool(np.array_equal(left, right))


def test_an_environment_that_cannot_be_saved_starts_anew(tmp_path: Path) -> None:
    built = trainer("gym", env="CartPole-v1", **TINY_GYM)
    built.advance()
    checkpoint.write(tmp_path / "saved", built.state_dict())

    def resumed() -> ReinforcementTrainer:
        again = trainer("gym", env="CartPole-v1", **TINY_GYM)
        again.load_state_dict(checkpoint.read(tmp_path / "saved"))
        return again

    left, right = resumed(), resumed()
    assert left.steps == built.steps == 60
    assert same(left.model.state_dict(), built.model.state_dict())
    assert work(left) == work(right)  # the new episodes follow from seed and update


def test_the_learning_rate_falls() -> None:
    built = trainer("gym", env="stpn-test/Recorder-v0", lr=0.5e-3, lr_decay=240, **TINY_GYM)
    rates = []
    while built.done < built.total:
        built.advance()
        rates.append(built.optimizer.param_groups[0]["lr"] / 0.5e-3)
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_the_end_is_the_end_even_if_a_rollout_reaches_beyond() -> None:
    built = trainer("gym", env="stpn-test/Recorder-v0", **TINY_GYM | {"steps": 70})
    rows = work(built)
    assert (built.updates, built.steps, built.done) == (2, 120, 70)
    assert rows[-1]["step"] == 70


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_cannot_be_shorter_than_what_it_has_done(tmp_path: Path, finished: bool) -> None:
    config = experiments.default_config("gym", env="stpn-test/Recorder-v0", **TINY_GYM)
    stop = Stop()
    reporter = StopAfterRows(stop, 9 if finished else 1)
    outcome = session.start(config, tmp_path, stop=stop, reporter=reporter)
    assert outcome.finished is finished
    before = {path: path.read_bytes() for path in outcome.run.path.glob("*.*")}
    with pytest.raises(ConfigError, match="gone further than 60 steps, nothing was changed"):
        session.resume(outcome.run.path, total=60)  # one rollout; at least two were done
    assert {path: path.read_bytes() for path in outcome.run.path.glob("*.*")} == before
    assert session.resume(outcome.run.path, total=330).finished


class StopAfterRows(Reporter):
    def __init__(self, stop: Stop, rows: int) -> None:
        self.stop, self.left = stop, rows

    def measured(self, row: Row) -> None:
        self.left -= 1
        if not self.left:
            self.stop.request()


def test_episodes_without_an_end_are_cut(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 50)
    built = trainer("gym", env="stpn-test/Endless-v0", **TINY_GYM | {"final_episodes": 3})
    figures = built.evaluate()
    assert figures.proficiency == 50.0
    assert figures.extras["episodes_cut"] == 3
    assert figures.extras["episode_length"] == 50
    assert "3 of 3 measured episodes did not end within 50 steps" in caplog.text


def test_stretches() -> None:
    assert stretches(np.arange(3.0), 5) == [0.0, 1.0, 2.0]
    assert stretches(np.arange(10.0), 5) == [0.5, 2.5, 4.5, 6.5, 8.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs must be >= 1"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be > 0"),
        ({"concentration": 0.03}, "concentration is a setting of a2c"),
        ({"algo": "dqn"}, "unknown algorithm 'dqn'"),
        ({"preset": "quick"}, "preset must be one of"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiments.default_config("maze", **settings)


def test_unknown_environment() -> None:
    with pytest.raises(ConfigError, match=r"unknown environment 'CartPool-v1'.*CartPole"):
        trainer("gym", env="CartPool-v1", **TINY_GYM)


def test_an_environment_that_cannot_be_made() -> None:
    def burst() -> None:
        raise OSError("no licence")

    register("stpn-test/Unmade-v0", burst)
    with pytest.raises(StpnError, match=r"Unmade-v0 cannot be made.*no licence"):
        trainer("gym", env="stpn-test/Unmade-v0", **TINY_GYM)
    with pytest.raises(StpnError, match="no_such_module"):
        trainer("gym", env="no_such_module:Thing-v0", **TINY_GYM)


def test_the_maze_by_name() -> None:
    built = trainer("gym", env="stpn/Maze-v0", **TINY_GYM)
    assert type(built.actor.envs.env).__name__ == "MazeVectorEnv"


class Parts(gym.Env):
    """Sees a card and two switches, and nothing else."""

    observation_space = gym.spaces.Tuple(
        (gym.spaces.Discrete(3), gym.spaces.Dict({"switches": gym.spaces.MultiDiscrete([2, 4])}))
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return (2, {"switches": np.array([0, 3])}), {}

    def step(self, action):
        return (1, {"switches": np.array([1, 0])}), 1.0, False, True, {}


def test_observations_in_parts_are_one_vector() -> None:
    register("stpn-test/Parts-v0", Parts)
    built = trainer("gym", env="stpn-test/Parts-v0", **TINY_GYM)
    seen = built.actor.envs.observation[0]
    assert seen.tolist() == [0, 0, 1, *(1, 0), *(0, 0, 0, 1)]  # one-hot, part by part
    built.update()
    assert built.model.core.input_size == 9


def test_unsupported_action_space() -> None:
    with pytest.raises(UnsupportedSpace, match=r"Discrete and Box.*MultiDiscrete"):
        trainer("gym", env="stpn-test/TwoLevers-v0", **TINY_GYM)


def test_concentration_of_continuous_actions() -> None:
    register("stpn-test/Box-v0", lambda: Recorder(0, discrete=False))
    with pytest.raises(ConfigError, match="discrete actions"):
        trainer("gym", env="stpn-test/Box-v0", algo="a2c", concentration=0.1, **SHARED)


@pytest.mark.parametrize(
    ("name", "message"), [("Broken", "the simulator is gone"), ("NaN", "an observation with nan")]
)
def test_a_broken_environment_keeps_the_last_checkpoint(
    tmp_path: Path, name: str, message: str
) -> None:
    config = experiments.default_config(
        "gym", env=f"stpn-test/{name}-v0", checkpoint_seconds=0.0,
        **TINY_GYM | {"steps": 100_000, "eval_every": 100_000},
    )  # fmt: skip
    with pytest.raises(StpnError, match=message) as raised:
        session.start(config, tmp_path)
    run = Run.open(tmp_path / config.directory)
    assert checkpoint.read(run.checkpoint)["trainer"]["updates"] == 50
    assert str(run.path) in str(raised.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gymnasium", "gymnasium.vector", "gymnasium.spaces", "ale_py", "mujoco"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    monkeypatch.delitem(sys.modules, "stpn.tasks.maze.environment", raising=False)
    for task, settings in {"maze": {}, "pong": {}, "pendulum": {}, "gym": {"env": "X-v0"}}.items():
        with pytest.raises(MissingExtra, match=r"pip install '\.\[rl\]'"):
            trainer(task, **settings)


def test_the_trainer_takes_the_headline_maze() -> None:
    built = trainer("maze", **TINY_MAZE)
    assert "norm='post', clamp=1.0" in repr(built.model.core)
    built.close()
