"""The smallest trainer that uses all the loop offers: weights, optimizer, dropout, streams."""

from __future__ import annotations

import os
import signal
import typing
from dataclasses import dataclass

import torch
from torch import nn

from stpn.config import RunConfig
from stpn.experiments import Experiment
from stpn.tasks.registry import Task
from stpn.training import checkpoint, finite, optim
from stpn.training.trainer import Evaluation, Row, State, Trainer, stream


@dataclass(frozen=True, kw_only=True)
class ToyConfig(RunConfig):
    iterations: int = 10
    every: int = 2
    poison_at: int | None = None  # this update's loss is NaN
    break_at: int | None = None  # this update leaves a NaN weight behind
    crash_at: int | None = None  # this update raises
    signal_at: int | None = None  # this update is hit by SIGINT
    signals: int = 1
    signal_in_evaluation: bool = False
    signal_in_measurement: int | None = None  # the row of this update is hit by SIGTERM

    total_field: typing.ClassVar[str] = "iterations"


class ToyTrainer(Trainer):
    """Linear regression with dropout: the global generator matters, as does the data's stream."""

    sample_unit = "iterations"
    proficiency_name = "score"

    def __init__(self, config: ToyConfig) -> None:
        self.config = config
        self.model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = optim.build(config.optimizer, self.model.parameters(), lr=0.1)
        self.done = self.samples = 0
        self.loss = 0.0
        self.closed = False

    def update(self) -> bool:
        update = self.done + 1
        if update == self.config.crash_at:
            raise RuntimeError("the environment went away")
        if update == self.config.signal_at:
            for _ in range(self.config.signals):
                os.kill(os.getpid(), signal.SIGINT)
        x = torch.randn(8, 4, generator=stream(self.config.seed, "x", self.done))
        loss = (self.model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        if update == self.config.poison_at:
            loss = loss * float("nan")
        self.loss = finite.check_loss(loss, self.model, f"update {update}")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if update == self.config.break_at:
            with torch.no_grad():
                self.model[1].weight[0, 0] = float("nan")
        self.done = self.samples = update
        return self.done % self.config.every == 0 or self.done >= self.total

    def measure(self) -> Row:
        if self.config.signal_in_measurement == self.done:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"step": self.done, "proficiency": -self.loss, "power": 1.0, "loss": self.loss}

    def evaluate(self) -> Evaluation:
        if self.config.signal_in_evaluation:
            os.kill(os.getpid(), signal.SIGINT)
        return Evaluation(float(self.model[1].weight.detach().sum()), 1.0, [1.0])

    def state_dict(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "loss": self.loss,
        }

    def load_state_dict(self, state: State) -> None:
        checkpoint.load_module(self.model, state["model"])
        checkpoint.load_optimizer(self.optimizer, state["optimizer"])
        self.done = self.samples = state["done"]
        self.loss = state["loss"]

    def close(self) -> None:
        self.closed = True


class ToyTask(Task):
    def build_network(self, config: ToyConfig) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))

    def build_trainer(self, config: ToyConfig, *, plain: bool = False) -> ToyTrainer:
        return ToyTrainer(config)


TOY = ToyTask(name="toy", title="Toy", metric="score", config=ToyConfig)
TOY_EXPERIMENT = Experiment(name="toy", length=10, seeds=1, hidden_sizes={"stpnr": 1})
