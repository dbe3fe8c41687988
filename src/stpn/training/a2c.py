"""Advantage actor-critic: act for one rollout, take one gradient step on it, forget it.

With a rollout as long as an episode and an environment that terminates, returns reach to the end of
the episode and nothing is bootstrapped (the maze). With shorter ones the core's state is carried
over, reset inside the rollout where an episode begins, and the value of the last state stands for
what comes after it (Pong).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.training.agent import State
from stpn.training.algorithm import Algorithm
from stpn.training.algorithms import A2CSettings
from stpn.training.returns import discounted_returns
from stpn.training.rollout import Rollout


class A2C(Algorithm):
    """One update per rollout."""

    settings: A2CSettings

    def learn(self, rollout: Rollout, generator: torch.Generator, when: str) -> dict[str, float]:
        """One gradient step. `generator` is not needed here; PPO shuffles with it."""
        terms = self.terms(rollout)
        weighted = dict(terms)
        if self.settings.concentration:
            weighted["extra"] = self.settings.concentration * terms["concentration"]
        loss = self.step(weighted, when)
        return {"loss": loss.item()} | {name: term.item() for name, term in terms.items()}

    def terms(self, rollout: Rollout) -> dict[str, Tensor]:
        """The parts of the loss, each a mean over all steps of all environments."""
        config = self.config
        returns = rollout.tensor(
            discounted_returns(
                rollout.rewards, rollout.ended, rollout.bootstrap, discount=config.gamma
            )
        )  # (B, T)
        output, _ = self.agent.outputs(rollout.observations, *starting_point(rollout))
        parameters, values = self.agent.read(output)
        if self.privileged is not None and self.privileged.critic is not None:
            assert rollout.known is not None
            values = self.privileged.value(output, rollout.known)
        if self.settings.shared_baseline:
            values = values[:1]  # (1, T): of all, by broadcasting
        error = returns - values
        policy = self.agent.policy.distribution(parameters)
        log_prob = policy.log_prob(rollout.actions)
        mean = Mean(rollout)
        unit = spread(returns, rollout) if config.relative_value else 1.0
        terms = {
            "policy_loss": mean(-log_prob * error.detach()),
            "value_loss": mean(error.square()) / unit**2,
        }
        with torch.set_grad_enabled(bool(self.ent_coef)):  # without a weight just to be told
            terms["entropy"] = mean(policy.entropy())
        if self.settings.concentration:
            terms["concentration"] = mean(policy.concentration())
        if self.privileged is not None and self.privileged.heads is not None:
            assert rollout.known is not None
            terms["auxiliary"] = mean(self.privileged.errors(output, rollout.known))
        return terms


class Mean:
    """Mean over the steps of a rollout that are experience."""

    def __init__(self, rollout: Rollout) -> None:
        self._valid = None if rollout.valid.all() else rollout.tensor(rollout.valid)

    def __call__(self, numbers: Tensor) -> Tensor:  # (B, T) -> ()
        return numbers.mean() if self._valid is None else numbers[self._valid].mean()


def spread(returns: Tensor, rollout: Rollout) -> float:
    """Standard deviation of the returns that are experience."""
    return float(returns.cpu().numpy()[rollout.valid].std()) + 1e-8


def starting_point(rollout: Rollout) -> tuple[State | None, Tensor | None]:
    """State and reset mask to replay the rollout with; None where there is nothing to carry or
    reset, which the cores need not work for."""
    state: State | None = rollout.states[0]
    reset = rollout.reset
    if reset[:, 0].all():
        state, reset = None, reset.clone()
        reset[:, 0] = False
    return state, reset if reset.any() else None
