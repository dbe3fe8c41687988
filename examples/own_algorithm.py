"""An algorithm of one's own in one file: REINFORCE.

    python examples/own_algorithm.py --env CartPole-v1
    python examples/own_algorithm.py maze --model lstm --baseline-weight 0.5

Every task of reinforcement learning can learn by it, `stpn` commands know it with
STPN_PLUGINS=own_algorithm in this directory, and runs are kept and resumed like others. A package
names it in the entry points, group "stpn.algorithms".
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

import stpn
from stpn.cli import main
from stpn.errors import require
from stpn.training.a2c import Mean, spread, starting_point
from stpn.training.algorithm import Algorithm
from stpn.training.algorithms import AlgorithmSettings
from stpn.training.returns import discounted_returns
from stpn.training.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(AlgorithmSettings):
    """These fields are flags of `stpn train ... --algo reinforce`."""

    baseline_weight: float = 1.0
    """How much of the rollout's mean return is taken off the returns."""

    def check(self) -> None:
        require(self.baseline_weight >= 0, "baseline_weight", ">= 0", self.baseline_weight)

    def build(self, *parts: Any) -> Reinforce:
        return Reinforce(*parts)


class Reinforce(Algorithm):
    """One step along the gradient of log p(action) * (return - mean return) per rollout."""

    settings: ReinforceSettings

    def learn(self, rollout: Rollout, generator: torch.Generator, when: str) -> dict[str, float]:
        mean = Mean(rollout)  # over steps that are experience
        returns = rollout.tensor(
            discounted_returns(
                rollout.rewards, rollout.ended, rollout.bootstrap, discount=self.config.gamma
            )
        )  # (B, T)
        unit = spread(returns, rollout)  # so that rewards of any size serve
        advantages = (returns - self.settings.baseline_weight * mean(returns)) / unit
        parameters, values, _ = self.agent(rollout.observations, *starting_point(rollout))
        policy = self.agent.policy.distribution(parameters)
        terms = {
            "policy_loss": mean(-policy.log_prob(rollout.actions) * advantages),
            # the value stands for what lies beyond the rollout
            "value_loss": mean((returns - values).square()) / unit**2,
            "entropy": mean(policy.entropy()),
        }
        loss = self.step(terms, when)
        return {"loss": loss.item(), **{name: term.item() for name, term in terms.items()}}


stpn.register_algorithm("reinforce", ReinforceSettings)

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:], "--algo", "reinforce"]))
