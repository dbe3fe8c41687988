"""Algorithms by name, their settings as groups, and settings under the names they used to have."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import stpn
from stpn import experiments, zoo
from stpn.config import from_dict
from stpn.errors import ConfigError
from stpn.results import load_results
from stpn.runs import Run
from stpn.training import algorithms
from stpn.training.algorithms import A2CSettings, PPOSettings
from stpn.training.rl_config import RENAMED

RESULTS = Path(__file__).parents[2] / "results"


def test_the_settings_of_an_algorithm_are_a_group_of_their_own() -> None:
    ppo: Any = experiments.default_config("maze", clip_coef=0.3)
    assert ppo.algorithm == dataclasses.replace(
        PPOSettings(update_epochs=3, minibatch_size=3200, sequence_length=200), clip_coef=0.3
    )
    a2c: Any = experiments.default_config("maze", algo="a2c", concentration=0.1)
    assert a2c.algorithm == A2CSettings(concentration=0.1)
    assert "clip_coef" not in a2c.to_dict()
    assert from_dict(a2c.to_dict()) == a2c
    assert hash(a2c) != hash(ppo)
    with pytest.raises(ConfigError, match="clip_coef is a setting of ppo: add --algo ppo"):
        experiments.default_config("maze", algo="a2c", clip_coef=0.3)
    with pytest.raises(ConfigError, match="clip_coef must be > 0"):
        experiments.default_config("maze", clip_coef=0.0)
    with pytest.raises(ConfigError, match="unknown algorithm 'dqn'; known: a2c, ppo"):
        experiments.default_config("maze", algo="dqn")
    with pytest.raises(ConfigError, match="PPOSettings are not the settings of a2c"):
        dataclasses.replace(ppo, algo="a2c").check()
    with pytest.raises(ConfigError, match="an algorithm named 'ppo' already"):
        stpn.register_algorithm("ppo", PPOSettings)


def test_no_setting_of_an_algorithm_hides_one_that_all_share() -> None:
    shared = {field.name for field in dataclasses.fields(experiments.default_config("maze"))}
    for name in algorithms.names():
        assert not shared & {field.name for field in dataclasses.fields(algorithms.get(name))}


OLD = {
    "task": "maze", "model": "lstm", "seed": 3, "algo": "ppo", "agents": 5, "rollout": 20,
    "discount": 0.8, "value_weight": 0.3, "entropy": 0.02, "concentration": 0.0, "grad_norm": 2.0,
    "smoothing": 0.9, "clip": 0.1, "epochs": 7, "minibatch": 40, "sequence": 10,
    "algorithm": "auto", "protocol": "paper",
}  # fmt: skip


def test_old_names_become_new_ones() -> None:
    config: Any = from_dict(OLD)
    shared = (config.num_envs, config.num_steps, config.gamma, config.vf_coef, config.ent_coef)
    assert shared == (5, 20, 0.8, 0.3, 0.02)
    assert (config.max_grad_norm, config.preset) == (2.0, "paper")
    own = PPOSettings(
        gae_lambda=0.9, clip_coef=0.1, update_epochs=7, minibatch_size=40, sequence_length=10
    )
    assert config.algorithm == own
    assert config.contradiction(OLD) is None
    assert "gamma is 0.7" in config.contradiction({**OLD, "discount": 0.7})
    a2c: Any = from_dict({**OLD, "algo": "a2c", "concentration": 0.5})
    assert a2c.algorithm == A2CSettings(concentration=0.5)
    # a file of an earlier version as the start of another run: its preset decides the defaults
    paper: Any = experiments.default_config("maze", "rnn", protocol="paper")
    assert (paper.preset, paper.algo, paper.num_envs) == ("paper", "a2c", 512)
    # epochs are the length of other tasks
    assert from_dict({"task": "art", "epochs": 7}).total == 7


def test_old_runs_results_and_networks_are_read_under_the_new_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OLD))
    assert Run.open(tmp_path).config["num_envs"] == 5
    for damaged in (5, [], "dqn"):
        (tmp_path / "config.json").write_text(json.dumps({**OLD, "algo": damaged}))
        with pytest.raises(ConfigError, match="algo"):
            from_dict(Run.open(tmp_path).config)
    for result in load_results(RESULTS / "maze"):
        assert not RENAMED.keys() & result.config.keys()
        assert from_dict(result.config).to_dict().items() >= result.config.items()
    card = zoo.pretrained.card("maze-stpnr")
    assert card.config["gamma"] == 0.9
    assert not any(f"--{name.replace('_', '-')} " in card.command for name in RENAMED)
