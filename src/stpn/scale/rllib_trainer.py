"""A trainer whose agent learns in RLlib: `stpn train TASK --rllib`.

To everything around it a trainer like any other, with the run directories, measurements and final
evaluation of one. Checkpoints hold the agent and the optimizer under the names that the plain
trainer of the task gives them, so either can go on where the other stopped. A resumed run starts
new episodes: RLlib does not save environments, and is not bit-identical from one time to the next.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import torch

from stpn.scale.cluster import Resources, connected, require_room
from stpn.scale.rllib import MODULE_ID, POWER, agent_from, agent_into
from stpn.scale.rllib_algorithms import algorithm_config
from stpn.training import checkpoint
from stpn.training.agent import Agent
from stpn.training.evaluation import play
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.rl_config import AgentConfig
from stpn.training.trainer import Evaluation, Row, State, Trainer, stream

OPTIMIZER = f"{MODULE_ID}_default_optimizer"


class RLlibTrainer(Trainer):
    """One iteration of an RLlib algorithm is an update."""

    config: AgentConfig
    model: Agent
    proficiency_name = "reward"
    sample_unit = "steps"

    def __init__(self, config: AgentConfig) -> None:
        self.plain = ReinforcementTrainer(config)
        """The task's own trainer: network, environments and final evaluation are as it has them."""
        self.config, self.model = self.plain.config, self.plain.model
        with ExitStack() as stack:
            stack.callback(self.plain.close)
            ray = stack.enter_context(connected())
            if config.env_runners:
                require_room(ray, Resources(cpus=1))
            self._before = 0  # the steps of earlier sessions
            self.algorithm = self._built()
            stack.callback(lambda: self.algorithm.stop())
            agent_into(self.algorithm, self.model)
            self._open = stack.pop_all()
        self.loss = math.nan
        self.samples = 0
        """Steps of all environments together."""
        self._results: dict[str, float] = {}

    @property
    def done(self) -> int:  # type: ignore[override]
        return min(self.samples // self.config.steps_per_unit, self.total)

    @property
    def beyond_total(self) -> bool:
        per_update = self.config.num_envs * self.config.num_steps
        return self.samples - per_update >= self.total * self.config.steps_per_unit

    def update(self) -> bool:
        before = self.done
        result = self.algorithm.train()
        self.samples = self._before + int(result["num_env_steps_sampled_lifetime"])
        self._note(result)
        every = self.config.eval_every
        due = self.done // every > before // every
        return due or self.done >= self.total

    def evaluate(self) -> Evaluation:
        self._fetch()
        return self.plain.evaluate()

    def state_dict(self) -> State:
        self._fetch()
        numbers = {**self._results, "loss": self.loss} if math.isfinite(self.loss) else {}
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer_state(),
            "updates": self.samples // (self.config.num_envs * self.config.num_steps),
            "sums": numbers,
            "counts": dict.fromkeys(numbers, 1),
            "actor": {},
            "steps": self.samples,
        }

    def load_state_dict(self, state: State) -> None:
        checkpoint.load_module(self.model, state["model"])
        steps = state["updates"] * self.config.num_envs * self.config.num_steps
        self.samples = self._before = state.get("steps", steps)
        found = {name: total / state["counts"][name] for name, total in state["sums"].items()}
        self.loss = found.get("loss", math.nan)
        self._results = {k: v for k, v in found.items() if k in ("train_reward", "train_power")}
        if self.config.lr_decay is not None:  # which goes on where it was
            self.algorithm.stop()
            self.algorithm = self._built()
        agent_into(self.algorithm, self.model)
        self._load_optimizer(state["optimizer"])

    def close(self) -> None:
        self._open.close()

    def _built(self) -> Any:
        size = self.plain.model.core.hidden_size
        config = algorithm_config(self.config, hidden_size=size, steps_before=self._before)
        return config.build_algo()

    def _fetch(self) -> None:
        """The learner's weights into `model`."""
        self.model.load_state_dict(agent_from(self.algorithm).state_dict())

    def _note(self, result: dict[str, Any]) -> None:
        learner = result.get("learners", {}).get(MODULE_ID, {})
        loss = float(learner.get("total_loss", math.nan))
        if math.isfinite(loss):  # NaN: no update in this iteration
            self.loss = loss
        players = result["env_runners"]
        found = {
            "train_reward": players.get("episode_return_mean"),
            "train_power": players.get(POWER),
        }
        self._results |= {
            name: float(value)
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }

    def measure(self) -> Row:
        self._fetch()
        episodes = self.config.eval_episodes
        env = self.plain.make_env(min(episodes, self.config.num_envs))
        seed = int(
            torch.randint(
                2**31, (), generator=stream(self.config.seed, "measurement", self.samples)
            )
        )
        try:
            played = play(
                self.model,
                env,
                episodes,
                seed=seed,
                generator=stream(self.config.seed, "measurement", self.samples, "actions"),
                greedy=self.config.greedy,
                on_progress=self.on_measuring,
            )
        finally:
            env.close()
        return {
            "step": self.done,
            "proficiency": float(played.rewards.mean()),
            "power": played.power,
            "loss": self.loss,
            **self._results,
        }

    def _optimizer_state(self) -> dict[str, Any]:
        """Adam's, in the form and under the numbers that torch gives it."""
        learner = self.algorithm.learner_group.get_state(components="learner")["learner"]
        state = dict(learner["optimizer"][OPTIMIZER]["state"])
        moments = {
            int(index): {name: torch.as_tensor(value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        return {**self.plain.optimizer.state_dict(), "state": moments}

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        checkpoint.load_optimizer(self.plain.optimizer, saved)  # does it fit?
        learner = self.algorithm.learner_group.get_state(components="learner")["learner"]
        own = learner["optimizer"][OPTIMIZER]
        state = {**own["state"], "state": saved["state"]}
        optimizer = {OPTIMIZER: {**own, "state": state}}
        self.algorithm.set_state({"learner_group": {"learner": {"optimizer": optimizer}}})
