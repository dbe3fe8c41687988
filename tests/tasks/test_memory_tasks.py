"""Tasks of the memory suite: what is asked can be known, and nothing else is asked."""

from __future__ import annotations

import pytest
import torch

import stpn
from stpn import experiments
from stpn.cli import sweep
from stpn.errors import ConfigError
from stpn.tasks import registry

SUITE = experiments.SUITES["memory-suite"]


def drawn(name: str, count: int = 50, **settings):
    config = experiments.default_config(name, **settings)
    return config, *config.draw(count, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["retrieval-p3", "retrieval-p64", "retrieval-p3-d20"])
def test_retrieval_asks_for_the_digit_of_one_of_its_keys(name: str) -> None:
    config, x, target = drawn(name)
    assert x.shape == (50, 2 * config.pairs + config.delay + 3)
    assert int(x.max()) < config.inputs
    for symbols, answers in zip(x.tolist(), target.tolist(), strict=True):
        held = symbols[: 2 * config.pairs]
        digits = dict(zip(held[::2], held[1::2], strict=True))
        assert len(digits) == config.pairs
        assert all(symbol == config.inputs - 1 for symbol in symbols[2 * config.pairs : -3])
        assert symbols[-3:-1] == [config.inputs - 2] * 2
        assert answers == [-1] * (len(symbols) - 1) + [digits[symbols[-1]] - config.keys]


@pytest.mark.parametrize("name", ["mqar-l24-k4-v32", "mqar-l64-k4"])
def test_mqar_asks_once_for_the_value_of_every_key(name: str) -> None:
    config, x, target = drawn(name)
    for symbols, answers in zip(x.tolist(), target.tolist(), strict=True):
        held = symbols[: 2 * config.pairs]
        values = dict(zip(held[::2], held[1::2], strict=True))
        assert all(0 < key < config.vocabulary // 2 <= value for key, value in values.items())
        asked = {symbols[t]: answer for t, answer in enumerate(answers) if answer >= 0}
        assert asked == values
        assert all(answer < 0 for answer in answers[: 2 * config.pairs])


def test_keys_of_mqar_come_back_soon_rather_than_late() -> None:
    _, _, target = drawn("mqar-l64-k4", 400)
    where = (target >= 0).float().sum(0)[8:]
    assert where[:14].sum() > 2 * where[-14:].sum()


def test_copying_asks_for_its_numbers_in_order() -> None:
    _, x, target = drawn("copying-n5-d20")
    assert x.shape == (50, 30, 3)
    assert torch.equal(target[:, -5:, 0], x[:, :5, 0])
    assert target[:, :-5].isnan().all()
    assert torch.equal(x[0, :, 1:].argmax(1)[:5], torch.zeros(5, dtype=torch.int64))
    assert not x[:, 5:, 0].any()
    assert x[:, -5:, 2].all()
    assert not x[:, :-5, 2].any()


def test_rewards_are_seen_in_the_first_half_and_asked_in_the_second() -> None:
    _, x, target = drawn("cue-reward", noise=0.0)
    assert x.shape == (50, 20, 16)
    assert target[:, :10].isnan().all()
    assert not x[:, 10:, -2].any()
    for inputs, answers in zip(x, target, strict=True):
        rewards = {tuple(step[:-2].tolist()): float(step[-2]) for step in inputs[:10]}
        known = [t for t in range(10, 20) if tuple(inputs[t, :-2].tolist()) in rewards]
        assert known
        for t in known:
            assert float(answers[t]) == rewards[tuple(inputs[t, :-2].tolist())]


@pytest.mark.parametrize("name", ["retrieval-p3", "mqar-l24-k4-v32", "copying-n5-d0", "cue-reward"])
def test_a_network_learns_and_its_figures_say_what_it_keeps(name: str) -> None:
    settings = {"iterations": 60, "log_every": 60, "eval_sequences": 80, "parameters": 1500}
    trainer = registry.get(name).build_trainer(
        experiments.default_config(name, "deltanet", lr=1e-2, **settings)
    )
    x, target = trainer.batch()
    first = trainer.loss_of(trainer.output_of(x, target), target).item()
    while trainer.done < trainer.total:
        row = trainer.advance()
    assert row["loss"] < first
    figures = trainer.evaluate()
    assert figures.extras["state_size"] == trainer.core.state_size
    assert abs(figures.extras["core_parameters"] - 1500) < 300
    assert 0 < figures.extras["update_ms"] < 1000
    assert figures.power > 0
    assert figures.proficiency <= 100


def test_an_embedding_stands_before_the_core_of_the_usual_mqar() -> None:
    config = experiments.default_config("mqar-l64-k4", "lstm", vocabulary=100)
    network = stpn.build_network(config)
    assert network.core.input_size == 64
    assert network(torch.zeros(2, 7, dtype=torch.int64)).shape == (2, 7, 100)


def test_the_suite_is_one_name_for_a_whole_grid() -> None:
    chosen = sweep.Sweep(tasks=("memory-suite",), models=("gla",))
    configs = sweep.grid(chosen, ["--iterations", "3"])
    assert [config.task for config in configs] == list(SUITE.tasks)
    assert {config.total for config in configs} == {3}
    assert all(config.core_options == {"conv": 4} for config in configs)
    assert dict(sweep._tasks(sweep.Sweep(tasks=("memory-suite", "maze")))) == {
        **dict.fromkeys(SUITE.tasks, SUITE.models), "maze": experiments.get("maze").models
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("retrieval-p3", {"pairs": 0}, "pairs"),
        ("mqar-l64-k4", {"pairs": 20}, "length"),
        ("mqar-l64-k4", {"vocabulary": 8}, "vocabulary"),
        ("copying-n5-d0", {"delay": -1}, "delay"),
        ("cue-reward", {"noise": -0.1}, "noise"),
    ],
)
def test_settings_that_cannot_work_are_named(name, settings, said) -> None:
    with pytest.raises(ConfigError, match=said):
        experiments.default_config(name, **settings)
