"""What the policy head means: a distribution over the actions of a Gymnasium space.

Noise is drawn for a whole rollout at once, so that sampling an action costs two or three
small operations. The same class evaluates single steps (B, P) and rollouts (B, T, P).
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from stpn._extras import need
from stpn.errors import StpnError


class UnsupportedSpace(StpnError, TypeError):
    """An action or observation space that no agent here can serve."""


class Policy(Protocol):
    """A family of distributions, parametrised by `num_parameters` numbers."""

    num_parameters: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    def noise(self, *leading: int, generator: torch.Generator) -> Tensor:
        """Random numbers from which `sample` makes actions, (*leading, ...)."""

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """An action, (..., *action_shape)."""

    def mode(self, parameters: Tensor) -> Tensor:
        """The most likely action."""

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """(...)"""

    def entropy(self, parameters: Tensor) -> Tensor:
        """(...)"""

    def concentration(self, parameters: Tensor) -> Tensor:
        """(...) sum of the squared probabilities: 1 for a sure choice, 1/n for an even one."""

    def to_env(self, action: Tensor) -> npt.NDArray[Any]:
        """As the environment takes it."""


class Categorical:
    """One of n actions; the parameters are logits."""

    action_shape: tuple[int, ...] = ()
    action_dtype = torch.int64

    def __init__(self, n: int, start: int = 0) -> None:
        self.num_parameters = n
        self._start = start

    def noise(self, *leading: int, generator: torch.Generator) -> Tensor:
        """Gumbel noise: the largest of logits + noise is a draw from their softmax."""
        exponential = torch.empty(*leading, self.num_parameters).exponential_(generator=generator)
        return exponential.log_().neg_()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return (parameters + noise).argmax(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return F.log_softmax(parameters, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_p = F.log_softmax(parameters, -1)
        return -(log_p.exp() * log_p).sum(-1)

    def concentration(self, parameters: Tensor) -> Tensor:
        return F.softmax(parameters, -1).square().sum(-1)

    def to_env(self, action: Tensor) -> npt.NDArray[Any]:
        return action.numpy() + self._start if self._start else action.numpy()


class Gaussian:
    """Independent normal variables; the parameters are their means, then their scales before
    softplus. The environment gets actions clipped to its bounds, likelihoods are of the unclipped.
    """

    action_dtype = torch.float32

    def __init__(
        self, low: npt.NDArray[Any], high: npt.NDArray[Any], dtype: npt.DTypeLike = np.float32
    ) -> None:
        self.action_shape: tuple[int, ...] = (math.prod(low.shape),)
        self.num_parameters = 2 * self.action_shape[0]
        self._low, self._high = low, high
        self._dtype = np.dtype(dtype)
        self._entropy_of_unit = 0.5 + 0.5 * math.log(2 * math.pi)

    def noise(self, *leading: int, generator: torch.Generator) -> Tensor:
        return torch.empty(*leading, *self.action_shape).normal_(generator=generator)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, scale = self._split(parameters)
        return torch.addcmul(mean, scale, noise)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, scale = self._split(parameters)
        z = (action - mean) / scale
        density = -0.5 * z.square() - scale.log() - 0.5 * math.log(2 * math.pi)
        return density.sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        _, scale = self._split(parameters)
        return (scale.log() + self._entropy_of_unit).sum(-1)

    def concentration(self, parameters: Tensor) -> Tensor:
        raise UnsupportedSpace("the concentration penalty is defined for discrete actions only")

    def to_env(self, action: Tensor) -> npt.NDArray[Any]:
        array = action.numpy().reshape(-1, *self._low.shape)
        return np.clip(array, self._low, self._high).astype(self._dtype, copy=False)

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = parameters.chunk(2, -1)
        # Softplus of a very negative number is 0 in float32; a scale of 0 has no logarithm.
        return mean, F.softplus(raw) + 1e-6


def policy_for(space: Any) -> Policy:
    """The policy for one environment's action space."""
    spaces = need("gymnasium.spaces", extra="rl")
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space.low, space.high, space.dtype)
    raise UnsupportedSpace(
        f"A2C and PPO here serve Discrete and Box (float) action spaces, not {space}"
    )
