"""The paper's grid, the paper's numbers, and configurations made of them."""

import json
import subprocess
import sys

import pytest

from stpn import experiments, paper
from stpn.config import IDENTITY, MACHINE, MEASUREMENT, from_dict
from stpn.errors import ConfigError
from stpn.tasks.art import ArtConfig
from stpn.tasks.familiarity import FamiliarityConfig

SUPERVISED = ["art", "familiarity-dataset-r3", "familiarity-infinite-r3", "familiarity-infinite-r6"]


def test_every_number_of_the_paper_belongs_to_an_experiment():
    for row in paper.numbers():
        task = experiments.get(row.task)
        assert row.model in task.models, row
        assert row.metric in (task.metric, "power"), row


def test_every_experiment_has_its_number_in_the_paper():
    for task in experiments.TASKS.values():
        for model in task.models:
            assert paper.number(task.name, model, task.metric), (task.name, model)


def test_main_table_before_ablation():
    assert paper.number("art", "stpnr", "test_accuracy").mean == 98.55
    assert paper.number("art", "stpnr", "test_accuracy", table="ablation").mean == 99.99
    assert paper.number("maze", "stpnr", "reward").mean == 132.7
    assert paper.number("maze-ablation", "stpnr", "reward").mean == 115.7
    assert paper.number("art", "gru", "test_accuracy") is None
    assert str(paper.number("art", "stpnr", "power")) == "10.9 ± 3.8"


@pytest.mark.parametrize("name", SUPERVISED)
def test_every_supervised_experiment_has_a_valid_configuration(name):
    task = experiments.get(name)
    for model in task.models:
        config = experiments.default_config(name, model)
        assert config.hidden_size == task.hidden_sizes[model]
        assert config.total == task.length
        assert config.unit == task.unit
        assert from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_defaults_are_the_papers():
    art = experiments.default_config("art")
    assert isinstance(art, ArtConfig)
    assert (art.model, art.hidden_size, art.epochs, art.batch_size) == ("stpnr", 11, 200, 128)
    assert (art.train_size, art.validation_size, art.test_size) == (100_000, 10_000, 20_000)
    assert (art.optimizer, art.lr, art.norm, art.clamp) == ("Adam", 0.001, "pre", None)
    familiarity = experiments.default_config("familiarity-infinite-r6", "hebbff")
    assert isinstance(familiarity, FamiliarityConfig)
    assert (familiarity.mode, familiarity.distance, familiarity.iterations) == ("infinite", 6, 3500)
    assert (familiarity.length, familiarity.input_size, familiarity.probability) == (5000, 100, 0.5)


def test_run_directory():
    config = experiments.default_config("art", "lstm", seed=3)
    assert config.directory.as_posix() == "art/lstm/seed3"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "arts"}, "unknown task 'arts' (did you mean 'art'?); known: art, "),
        ({"task": "nothing"}, "unknown task 'nothing'; known: art, "),
        ({"model": "ltsm"}, "unknown model 'ltsm' (did you mean 'lstm'?)"),
        ({"epoch": 3}, "unknown setting of art 'epoch' (did you mean 'epochs'?)"),
        ({"epochs": "3"}, "epochs must be a whole number, not '3'"),
        ({"epochs": 2.0}, "epochs must be a whole number, not 2.0"),
        ({"epochs": True}, "epochs must be a whole number, not True"),
        ({"epochs": 0}, "epochs must be >= 1, not 0"),
        ({"seed": -1}, "seed must be >= 0, not -1"),
        ({"hidden_size": 0}, "hidden_size must be >= 1, not 0"),
        ({"lr": -1.0}, "lr must be finite and >= 0, not -1.0"),
        ({"lr": float("nan")}, "lr must be finite and >= 0, not nan"),
        ({"lr": None}, "lr must be a number, not None"),
        ({"clamp": 0}, "clamp must be > 0, not 0"),
        ({"norm": "before"}, "norm must be one of 'pre', 'post', 'f', 'none', not 'before'"),
        ({"threads": 0}, "threads must be >= 1, not 0"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds must be >= 0, not -1"),
        ({"batch_size": 0}, "batch_size must be >= 1, not 0"),
        ({"model": "lstm", "clamp": 1.0}, "clamp is a setting of STPN models"),
        ({"model": "stpnf", "plastic": "hidden"}, "plastic must be 'all'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        from_dict({"task": "art", **settings})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 1.1}, "probability must be between 0 and 1"),
        ({"distance": 5000}, "distance must be smaller than length"),
        ({"mode": "finite"}, "mode must be one of 'dataset', 'infinite'"),
        ({"log_every": 0}, "log_every must be >= 1"),
    ],
)
def test_impossible_familiarity_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        from_dict({"task": "familiarity-infinite-r3", **settings})


@pytest.mark.parametrize("values", [{}, [], {"task": 3}])
def test_a_configuration_must_name_its_task(values):
    with pytest.raises(ConfigError, match="names its task"):
        from_dict(values)


def test_contradiction_ignores_what_changes_no_result():
    config = experiments.default_config("art")
    same = {**config.to_dict(), "epochs": 3, "threads": 2, "checkpoint_seconds": 1.0}
    assert config.contradiction(same) is None
    assert config.contradiction({**same, "lr": 0.1}) == "its lr is 0.1, not 0.001"
    assert (
        experiments.default_config("art", "gru").contradiction(
            {**config.to_dict(), "model": "gru", "hidden_size": 12}
        )
        is None
    )


@pytest.mark.parametrize("module", ["stpn.runs", "stpn.experiments", "stpn.config", "stpn.sweep"])
def test_the_reading_side_needs_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_whether_a_setting_matters_stands_at_its_field():
    run = experiments.default_config("maze", threads=1)
    assert run.incidental(IDENTITY) == {"task", "model", "seed"}
    machine = {"threads", "backend", "device", "checkpoint_seconds", "env_runners"}
    assert run.incidental(MACHINE) == machine
    assert run.incidental(MEASUREMENT) == {"eval_every", "eval_episodes"}
    other = {**run.to_dict(), "threads": 2, "backend": "reference", "iterations": 9}
    assert run.contradiction(other) is None
    assert "eval_every" in run.contradiction({**other, "eval_every": 7})
