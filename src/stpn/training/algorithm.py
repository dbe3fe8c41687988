"""What an algorithm of reinforcement learning does: learn from one rollout after another.

`ReinforcementTrainer` acts, measures and saves; an algorithm says what a rollout teaches. To add
one, derive from `Algorithm` and register its settings (`stpn.training.algorithms`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from stpn.training.agent import Agent
from stpn.training.finite import check_loss
from stpn.training.gradients import Gradients
from stpn.training.privileged import Privileged
from stpn.training.rl_config import AgentConfig, line
from stpn.training.rollout import Rollout


class Algorithm(ABC):
    """On-policy learning: each rollout is made by the agent as it is, learnt from, forgotten."""

    def __init__(
        self,
        agent: Agent,
        gradients: Gradients,
        config: AgentConfig,
        privileged: Privileged | None = None,
    ) -> None:
        self.agent = agent
        self.gradients = gradients
        self.config = config
        self.settings: Any = config.algorithm
        """Its own group of settings; what all algorithms share is in `config`."""
        self.privileged = privileged
        self.schedule(0.0)

    ent_coef: float
    """As it is now: it may change from update to update."""

    @property
    def sequence_length(self) -> int | None:
        """Steps between two states of the core that acting keeps, for algorithms that learn from
        shorter sequences than a rollout. None: the first one is enough."""
        return None

    def schedule(self, progress: float) -> None:
        """Called before each rollout with the share of the run that is done."""
        config = self.config
        self.ent_coef = line(config.ent_coef, config.ent_coef_final, progress)

    @abstractmethod
    def learn(self, rollout: Rollout, generator: torch.Generator, when: str) -> dict[str, float]:
        """Learn from a rollout; return numbers for the metrics, "loss" among them.

        Randomness comes from `generator`; `when` names the update in errors. The rollout's buffers
        are used again by the next one.
        """

    def step(self, terms: dict[str, Tensor], when: str) -> Tensor:
        """One gradient step on the weighted sum of the usual terms: policy_loss, value_loss,
        entropy and, if there, auxiliary and extra. Returns the loss, ()."""
        loss = (
            terms["policy_loss"]
            + self.config.vf_coef * terms["value_loss"]
            - self.ent_coef * terms["entropy"]
        )
        if "extra" in terms:
            loss = loss + terms["extra"]
        if "auxiliary" in terms:
            loss = loss + self.config.auxiliary * terms["auxiliary"]
        check_loss(loss, self.agent, when)
        self.gradients.step(loss, when)
        return loss
