"""The trainer of all reinforcement learning: environments, agent, algorithm, measurement.

A task (`stpn.tasks.agents.AgentTask`) says which environments its agents play in. Resuming
is bit-identical where the environments can be saved (the maze). Emulators and simulators cannot: a
resumed run goes on with the saved network, optimizer and random streams in new episodes, whose
seed follows from the run's seed and the update at which it was resumed.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from stpn import devices
from stpn.errors import ConfigError
from stpn.tasks import registry
from stpn.tasks.agents import AgentTask
from stpn.training import checkpoint, optim
from stpn.training.agent import Agent
from stpn.training.evaluation import Played, play
from stpn.training.gradients import Gradients
from stpn.training.policies import Categorical
from stpn.training.privileged import Privileged
from stpn.training.returns import RewardScale
from stpn.training.rl_config import AgentConfig, line
from stpn.training.rollout import Actor
from stpn.training.trainer import POWER_POINTS, Evaluation, Row, State, Trainer, stream

Module = TypeVar("Module", bound=nn.Module)

MEASURED_AT_ONCE = 512
"""Environments that are played at once to measure an agent, at most."""


class ReinforcementTrainer(Trainer):
    """Acts and learns in turn: one rollout and what the algorithm makes of it is an update."""

    config: AgentConfig
    model: Agent
    proficiency_name = "reward"
    sample_unit = "steps"

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        task = registry.get(config.task)
        if not isinstance(task, AgentTask):
            raise ConfigError(f"{config.task} is no task of reinforcement learning")
        self.task = task
        self.device = devices.find(config.device)
        env = self.make_env(config.num_envs)
        # Acts, on the CPU, where a step takes microseconds; on another device a copy learns.
        self._agent = task.build_network(config, env)
        self.learner = self._learning(self._agent)
        core, policy = self._agent.core, self._agent.policy
        penalised = getattr(config.algorithm, "concentration", 0.0)
        if penalised and not isinstance(policy, Categorical):
            raise ConfigError("concentration is defined for discrete actions only: set it to 0")
        self.config = dataclasses.replace(config, hidden_size=core.hidden_size)
        # What is measured, saved and used: the average of the learner, or the learner itself.
        self.model = self._agent if config.average is None else copy.deepcopy(self._agent)
        privileged = learning = None
        if config.privileged_critic or config.auxiliary:
            privileged = Privileged(
                env,
                core.hidden_size,
                critic=config.privileged_critic,
                auxiliary=bool(config.auxiliary),
            )
            learning = self._learning(privileged)
        self._privileged = learning
        # Whose weights follow whose.
        self._copies: list[tuple[nn.Module, nn.Module]] = [(self._agent, self.learner)]
        if privileged is not None and learning is not None:
            self._copies.append((privileged, learning))
        self._reward_scale = RewardScale(config.num_envs, config.gamma)
        eps = {"eps": config.eps} if optim.has_option(config.optimizer, "eps") else {}
        parameters = optim.groups(self.learner, config.lr_plasticity)
        if learning is not None:
            parameters[0]["params"] += learning.parameters()
        self.optimizer = optim.build(config.optimizer, parameters, lr=config.lr, **eps)
        self.gradients = Gradients(self.learner, self.optimizer, config.max_grad_norm)
        self.algorithm = config.algorithm.build(self.learner, self.gradients, config, learning)
        chunk = self.algorithm.sequence_length
        self.actor = Actor(self._agent, env, config.num_steps, chunk, privileged)
        self.actor.start(self._seed("environment", 0))

        self.updates = 0
        self._reached_at: int | None = None  # where the target score ended the run
        self._past_target = False  # it ended once, and was then told to go on
        self.loss = float("nan")
        self.seconds = {"environment": 0.0, "acting": 0.0, "learning": 0.0}
        """Where the time of this process went."""
        self._sums: dict[str, float] = {}  # since the last row
        self._counts: dict[str, int] = {}

    def _learning(self, module: Module) -> Module:
        """The module itself, or a copy on the device of the learner."""
        if self.device.type == "cpu":
            return module
        return copy.deepcopy(module).to(self.device)

    @torch.no_grad()
    def _synchronise(self) -> None:
        """Let what acts have the weights and statistics of what learns."""
        for acting, learning in self._copies:
            if acting is learning:
                continue
            for own, learnt in zip(_tensors(acting), _tensors(learning), strict=True):
                own.copy_(learnt)

    def make_env(self, count: int) -> Any:
        """A vector environment of the task."""
        return self.task.make_env(self.config, count)

    @property
    def steps(self) -> int:
        """Steps of all environments together."""
        return self.updates * self.config.num_envs * self.config.num_steps

    @property
    def units(self) -> int:
        """What the task counts."""
        return self.steps // self.config.steps_per_unit

    @property
    def total(self) -> int:
        return self.config.total if self._reached_at is None else self._reached_at

    @property
    def done(self) -> int:  # type: ignore[override]
        # The last rollout may reach beyond the end.
        return min(self.units, self.total)

    @property
    def samples(self) -> int:  # type: ignore[override]
        return self.steps

    @property
    def beyond_total(self) -> bool:
        per_update = self.units // self.updates if self.updates else 0
        return self.units - per_update >= self.total

    def pass_target(self) -> bool:
        ended, self._reached_at = self._reached_at is not None, None
        self._past_target = self._past_target or ended
        return ended

    def update(self) -> bool:
        config, before = self.config, self.done
        self._schedule()
        in_environment = self.actor.environment_seconds
        clock = time.perf_counter()
        rollout = self.actor.collect(stream(config.seed, "actions", self.updates))
        if config.normalize_rewards:
            self._reward_scale.apply(rollout.rewards, rollout.ended)
        acted = time.perf_counter()
        order = stream(config.seed, "order", self.updates)
        rollout = rollout.to(self.device)
        numbers = self.algorithm.learn(rollout, order, f"update {self.updates + 1}")
        self.learner.encoder.observe(rollout.observations.flatten(0, 1))
        self._synchronise()
        learnt = time.perf_counter()

        in_environment = self.actor.environment_seconds - in_environment
        self.seconds["environment"] += in_environment
        self.seconds["acting"] += acted - clock - in_environment
        self.seconds["learning"] += learnt - acted
        self.updates += 1
        self._average()
        self.loss = numbers["loss"]
        for name, number in numbers.items():
            self._note(name, number)
        for reward in rollout.episode_rewards:
            self._note("train_reward", reward)
        due = self.done // config.eval_every > before // config.eval_every
        return due or self.done >= self.total

    def _schedule(self) -> None:
        """What falls or rises in the course of the run."""
        config = self.config
        progress = self.units / config.total
        if config.lr_final is not None:
            rate = line(config.lr, config.lr_final, progress)
            self.gradients.decay(rate / config.lr if config.lr else 0.0)
        elif config.lr_decay is not None:
            self.gradients.decay(max(0.0, 1.0 - self.units / config.lr_decay))
        self.algorithm.schedule(progress)

    @torch.no_grad()
    def _average(self) -> None:
        """Move the measured network towards the learner; the first updates count less than they
        would, for they are far from where it ends."""
        if self.config.average is None:
            return
        decay = min(self.config.average, self.updates / (10 + self.updates))
        for mean, weight in zip(self.model.parameters(), self._agent.parameters(), strict=True):
            mean.lerp_(weight, 1 - decay)
        for statistic, now in zip(self.model.buffers(), self._agent.buffers(), strict=True):
            statistic.copy_(now)

    def evaluate(self) -> Evaluation:
        played = self.play(self.config.final_episodes, "evaluation")
        greedy = not self.config.greedy
        episodes = min(self.config.final_episodes, MEASURED_AT_ONCE)
        otherwise = self.play(episodes, "other evaluation", greedy=greedy)
        kind = "greedy" if greedy else "sampled"
        return Evaluation(
            proficiency=float(played.rewards.mean()),
            power=played.power,
            power_per_step=stretches(played.power_per_step, POWER_POINTS),
            extras={
                "episodes": len(played.rewards),
                "reward_std": float(played.rewards.std()),
                "reward_quartiles": np.quantile(played.rewards, [0.25, 0.75]).tolist(),
                "episode_length": float(played.lengths.mean()),
                f"{kind}_reward": float(otherwise.rewards.mean()),
                f"{kind}_power": otherwise.power,
                "power_stretch": max(1.0, len(played.power_per_step) / POWER_POINTS),
                **({"episodes_cut": played.cut} if played.cut else {}),
            },
        )

    def measure(self) -> Row:
        played = self.play(self.config.eval_episodes, "measurement", self.updates)
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        return {
            "step": self.done,
            "proficiency": float(played.rewards.mean()),
            "power": played.power,
            **means,
            "lr": self.optimizer.param_groups[0]["lr"],
        }

    def keep(self, row: Row) -> None:
        self._sums, self._counts = {}, {}
        target = None if self._past_target else self.config.target
        if target is not None and row["proficiency"] >= target:
            self._reached_at = self.done

    def play(self, episodes: int, *name: str | int, greedy: bool | None = None) -> Played:
        """Episodes in environments of their own, which leave no trace in the training: the same
        ones for the same `name`. With the most likely or with sampled actions, None: as the config
        says."""
        env = self.make_env(min(episodes, MEASURED_AT_ONCE))
        try:
            return play(
                self.model,
                env,
                episodes,
                seed=self._seed(*name, "environment"),
                generator=stream(self.config.seed, *name, "actions"),
                greedy=self.config.greedy if greedy is None else greedy,
                on_progress=self.on_measuring,
            )
        finally:
            env.close()

    def _note(self, name: str, number: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + number
        self._counts[name] = self._counts.get(name, 0) + 1

    def _seed(self, *names: str | int) -> int:
        return int(torch.randint(2**31, (), generator=stream(self.config.seed, *names)))

    def state_dict(self) -> State:
        extras: State = {}
        if self.model is not self._agent:
            extras["learner"] = self.learner.state_dict()
        if self._privileged is not None:
            extras["privileged"] = self._privileged.state_dict()
        if self.config.normalize_rewards:
            extras["reward_scale"] = self._reward_scale.state_dict()
        if self._reached_at is not None:
            extras["reached_at"] = self._reached_at
        if self._past_target:
            extras["past_target"] = True
        return {
            **extras,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "sums": self._sums,
            "counts": self._counts,
            "actor": self.actor.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        checkpoint.load_module(self.model, state["model"])
        averaged = self.model is not self._agent
        if averaged or self.learner is not self._agent:
            checkpoint.load_module(self.learner, state["learner" if averaged else "model"])
        if self._privileged is not None:
            checkpoint.load_module(self._privileged, state["privileged"], "privileged critic")
        if self.config.normalize_rewards:
            self._reward_scale.load_state_dict(state["reward_scale"])
        self._synchronise()
        self._reached_at = state.get("reached_at")
        self._past_target = state.get("past_target", False)
        checkpoint.load_optimizer(self.optimizer, state["optimizer"])
        self.updates = state["updates"]
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
        if state["actor"]:
            self.actor.load_state_dict(state["actor"])
        else:
            self.actor.start(self._seed("environment", self.updates))

    def close(self) -> None:
        self.actor.envs.close()


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def stretches(curve: Any, points: int) -> list[float]:
    """The curve as it is, or, if longer, means over `points` stretches of nearly equal length."""
    if len(curve) <= points:
        return [float(value) for value in curve]
    return [float(piece.mean()) for piece in np.array_split(curve, points)]
