"""Proximal policy optimisation for recurrent agents.

A batch of B environments x T steps is cut into sequences of L steps. Each keeps the state that the
core had at its first step while acting, so it is replayed as it was lived; episodes that begin
inside a sequence are reset there by the mask. Several epochs go through all sequences in random
order, a few sequences per gradient step.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stpn.nn.state import rebuilt
from stpn.training.agent import State, concatenate
from stpn.training.algorithm import Algorithm
from stpn.training.algorithms import PPOSettings
from stpn.training.returns import generalised_advantages
from stpn.training.rl_config import line
from stpn.training.rollout import Rollout


class PPO(Algorithm):
    """Several epochs of gradient steps per rollout."""

    settings: PPOSettings
    clip_coef: float  # as it is now: it may change from update to update

    @property
    def sequence_length(self) -> int:
        return self.settings.sequence_length

    def schedule(self, progress: float) -> None:
        super().schedule(progress)
        settings = self.settings
        self.clip_coef = line(settings.clip_coef, settings.clip_coef_final, progress)

    def learn(self, rollout: Rollout, generator: torch.Generator, when: str) -> dict[str, float]:
        """All epochs, in an order that `generator` decides; means over the gradient steps."""
        settings = self.settings
        sequences = self.sequences(rollout)
        parts = max(1, min(len(sequences), round(rollout.valid.size / settings.minibatch_size)))
        sums: dict[str, float] = {}
        for _ in range(settings.update_epochs):
            order = torch.randperm(len(sequences), generator=generator).to(rollout.device)
            for minibatch in sequences.shuffled(order).split(parts):
                terms = self.terms(minibatch)
                terms["loss"] = self.step(terms, when)
                for name, term in terms.items():
                    sums[name] = sums.get(name, 0.0) + term.item()
        return {name: total / (settings.update_epochs * parts) for name, total in sums.items()}

    def terms(self, batch: Sequences) -> dict[str, Tensor]:
        """The parts of the loss, each a mean over the real steps of the sequences."""
        clip, advantages = self.clip_coef, batch.advantages
        if self.settings.standardize == "minibatch":
            advantages = standardized(advantages, batch.mask)
        output, _ = self.agent.outputs(batch.observations, batch.state, batch.reset)
        parameters, values = self.agent.read(output)
        policy = self.agent.policy.distribution(parameters)
        # Products with the mask cost less than selections; padding is finite, so they are safe.
        log_ratio = (policy.log_prob(batch.actions) - batch.log_probs) * batch.mask
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
        weight = batch.mask / batch.mask.sum().clamp(min=1)  # (S, L), sums to 1
        terms = {}
        if self.privileged is not None:
            assert batch.known is not None
            if self.privileged.critic is not None:
                values = self.privileged.value(output, batch.known)
            if self.privileged.heads is not None:
                errors = self.privileged.errors(output, batch.known)
                terms["auxiliary"] = (errors * weight).sum()
        return terms | {
            "policy_loss": -(gain * weight).sum(),
            "value_loss": (self.value_errors(values, batch) * weight).sum() / batch.unit**2,
            "entropy": (policy.entropy() * weight).sum(),
        }

    def value_errors(self, values: Tensor, batch: Sequences) -> Tensor:
        """What the value's loss is the mean of, (S, L)."""
        return (values - batch.returns).square()

    @torch.no_grad()
    def sequences(self, rollout: Rollout) -> Sequences:
        """The rollout in pieces."""
        config, settings = self.config, self.settings
        advantages = generalised_advantages(
            rollout.rewards,
            rollout.values,
            rollout.ended,
            rollout.bootstrap,
            discount=config.gamma,
            smoothing=settings.gae_lambda,
        )
        returns = advantages + rollout.values
        if settings.standardize == "batch":
            real = advantages[rollout.valid]
            advantages = (advantages - real.mean()) / (real.std() + 1e-8)

        policy = self.agent.policy.distribution(rollout.heads[..., :-1])

        def cut(tensor: Tensor) -> Tensor:
            return cut_into_sequences(tensor, rollout.chunk)

        return Sequences(
            observations=cut(rollout.observations),
            actions=cut(rollout.actions),
            log_probs=cut(policy.log_prob(rollout.actions)),
            advantages=cut(rollout.tensor(advantages)),
            returns=cut(rollout.tensor(returns)),
            reset=cut(rollout.reset),
            mask=cut(rollout.tensor(rollout.valid).float()),
            unit=float(returns[rollout.valid].std()) + 1e-8 if config.relative_value else 1.0,
            state=concatenate(rollout.states),
            known=None if rollout.known is None else cut(rollout.known),
        )


@dataclass
class Sequences:
    """S pieces of a rollout, L steps each."""

    observations: Tensor  # (S, L, ...)
    actions: Tensor  # (S, L, ...)
    log_probs: Tensor  # (S, L) of the actions when they were taken
    advantages: Tensor  # (S, L)
    returns: Tensor  # (S, L) targets of the value
    reset: Tensor  # (S, L) bool
    mask: Tensor  # (S, L) 1 for experience, 0 for padding and steps that only start an episode
    unit: float  # in which the value's error is measured
    state: State  # (S, ...) of the core before each sequence
    known: Tensor | None = None  # (S, L, K) what the environment knew

    def __len__(self) -> int:
        return len(self.mask)

    def shuffled(self, order: Tensor) -> Sequences:
        """A copy in another order."""
        return self._each(lambda tensor: tensor.index_select(0, order))

    def split(self, parts: int) -> Iterator[Sequences]:
        """Consecutive pieces of nearly equal length, as views."""
        bounds = [round(i * len(self) / parts) for i in range(parts + 1)]
        for piece in itertools.starmap(slice, itertools.pairwise(bounds)):
            yield self._each(operator.itemgetter(piece))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Sequences:
        tensors: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        state = tuple(rebuilt(layer, map(change, layer)) for layer in self.state)
        return dataclasses.replace(self, **tensors, state=state)


def standardized(numbers: Tensor, mask: Tensor) -> Tensor:
    """`numbers` (S, L) with mean 0 and deviation 1 over the steps where `mask` is 1."""
    real = numbers[mask.bool()]
    return (numbers - real.mean()) / (real.std(correction=0) + 1e-8)


def cut_into_sequences(tensor: Tensor, length: int) -> Tensor:
    """(B, T, ...) -> (S, L, ...): all environments' first pieces, then all second ones, and so on.

    That is the order of the states that acting kept. The last pieces are padded with zeros.
    """
    batch, steps = tensor.shape[:2]
    pieces = -(-steps // length)
    missing = pieces * length - steps
    if missing:
        tensor = functional.pad(tensor, [0, 0] * (tensor.dim() - 2) + [0, missing])
    split = tensor.reshape(batch, pieces, length, *tensor.shape[2:])
    return split.transpose(0, 1).flatten(0, 1)
