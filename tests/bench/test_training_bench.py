from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import stpn
from stpn._extras import MissingExtra
from stpn.bench import training
from stpn.bench.learning_parts import timed_learning
from stpn.errors import ConfigError
from stpn.experiments import default_config
from stpn.nn.registry import build
from stpn.tasks.familiarity.training import FamiliarityTrainer
from stpn.training.agent import Agent, encoder_for
from stpn.training.policies import Categorical


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def printed(rows: list[training.Row]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(training.table(rows))
    return capture.get()


@pytest.mark.slow
def test_art() -> None:
    said: list[str] = []
    rows = training.measure(["art"], quick=True, say=said.append)
    assert [line.split(":")[0] for line in said] == ["art"]
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert set(row) == {"task", "what", "value", "unit", "target", "reached", "shares"}
    by_name = {row["what"]: row for row in rows}
    faster = by_name["kernels over plain loop"]
    assert faster["value"] > 1.5
    assert faster["target"] == ">= 4"
    rate = by_name["epochs, kernels"]["value"]
    assert by_name["200 epochs"]["value"] == pytest.approx(200 / rate / 60)
    assert by_name["epochs, kernels"]["value"] == pytest.approx(
        by_name["updates, kernels"]["value"] / (100_000 / 128), rel=0.02
    )
    assert "kernels over plain loop" in printed(rows)


def test_targets_in_both_directions() -> None:
    assert training._row("t", "w", 4.0, "x", at_least=4)["reached"] is True
    assert training._row("t", "w", 3.9, "x", at_least=4)["reached"] is False
    assert training._row("t", "w", 6.1, "min", at_most=6)["reached"] is False
    assert training._row("t", "w", 5.0, "min", at_most=6)["target"] == "<= 6"
    assert training._row("t", "w", 5.0, "/s")["reached"] is None


class DrowsyTrainer(FamiliarityTrainer):
    """Sleeps outside of what belongs to a step, and measures every second update."""

    def batch(self) -> tuple[Tensor, Tensor]:
        time.sleep(0.05)
        return super().batch()

    def evaluate(self) -> Any:
        raise AssertionError("not part of training")


def drowsy() -> DrowsyTrainer:
    settings = {"length": 20, "input_size": 10, "log_every": 2}
    config = default_config("familiarity-infinite-r3", "stpnr", **settings)
    return DrowsyTrainer(config)  # type: ignore[arg-type]


def test_shares_find_the_time_outside_forward_backward_and_optimizer() -> None:
    trainer = drowsy()
    shares = training._step_shares(trainer, 2)
    assert list(shares) == ["forward", "backward", "optimizer", "other"]
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())
    assert shares["other"] > 0.5


def test_timing_leaves_the_trainer_as_it_was() -> None:
    trainer, backward = drowsy(), torch.Tensor.backward
    training._step_shares(trainer, 2)
    assert trainer.network is trainer.model
    assert "loss_of" not in vars(trainer)
    assert "step" not in vars(trainer.optimizer)
    assert torch.Tensor.backward is backward


def test_an_agents_time_is_accounted_for() -> None:
    pytest.importorskip("gymnasium")
    seconds, shares = training._agent("maze", "stpnr", 2, num_envs=4, num_steps=50)
    assert seconds > 0
    assert list(shares) == [
        "environment", "acting", "encoder", "core", "optimizer", "other learning"
    ]  # fmt: skip
    assert 0.8 < sum(shares.values()) <= 1
    assert shares["core"] > shares["encoder"] >= 0  # numbers are seen as they are
    assert shares["optimizer"] > 0


def test_the_encoder_has_its_share_of_learning_from_frames() -> None:
    spaces = pytest.importorskip("gymnasium.spaces")
    space = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    agent = Agent(encoder_for(space), build("rnn", 2592, 3, batch_first=True), Categorical(2))
    optimizer = torch.optim.Adam(agent.parameters())
    frames = torch.randint(0, 255, (8, 5, 1, 84, 84), dtype=torch.uint8)
    forward = agent.encoder.forward
    with timed_learning(agent, optimizer) as spent:
        start = time.perf_counter()
        with torch.no_grad():
            agent(frames)
        assert not any(spent.values())  # acting is no learning
        for _ in range(3):
            parameters, values, _ = agent(frames)
            (parameters.sum() + values.sum()).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
    assert spent["encoder"] > spent["core"] > 0
    assert spent["optimizer"] > 0
    assert sum(spent.values()) < seconds
    assert "forward" not in vars(agent.encoder)
    assert agent.encoder.forward == forward


@pytest.mark.slow
def test_memory_of_a_process_of_its_own() -> None:
    pytest.importorskip("gymnasium")
    ballast = torch.ones(2**28)  # 1 GiB that the new process must not be charged with
    memory = training._memory_of_maze(agents=2, updates=1)
    assert 2**26 < memory < 2**30 <= 4 * len(ballast)


def test_unknown_task() -> None:
    with pytest.raises(ConfigError, match="did you mean 'maze'"):
        training.measure(["mase"])


def test_missing_extra_is_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(quick: bool) -> list[training.Row]:
        """a task"""
        raise MissingExtra("this needs 'ale_py'; install it with: pip install 'stpn-torch[rl]'")

    monkeypatch.setitem(training.TASKS, "pong", missing)
    (row,) = training.measure(["pong"], say=lambda line: None)
    assert row["value"] is None
    assert row["reached"] is None
    assert "skipped" in printed([row])
    assert "stpn-torch[rl]" in printed([row])  # not eaten as markup


def test_nothing_is_timed_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(stpn.Backend):
        name = "native"

        def unusable(self) -> str:
            return "no compiler"

    monkeypatch.setattr(stpn, "backends", lambda: (Missing(),))
    (row,) = training.measure(["art"], say=lambda line: None)
    assert row["value"] is None
    assert "no compiler" in row["what"]
