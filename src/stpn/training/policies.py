"""What the policy head means: a distribution over the actions of a Gymnasium space.

Acting happens on NumPy arrays, which for a handful of numbers cost a fraction of what tensors do;
its noise is drawn for a whole rollout at once. Learning happens on tensors:
`distribution(parameters)`.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from stpn._extras import need
from stpn.errors import StpnError

Numbers = npt.NDArray[np.float32]
SMALLEST_SCALE = 1e-6
"""Softplus of a very negative number is 0 in float32, and a scale of 0 has no logarithm."""


class UnsupportedSpace(StpnError, TypeError):
    """An action or observation space that no agent here can serve."""


class Distribution(Protocol):
    """Of parameters (..., P), differentiable."""

    def log_prob(self, action: Tensor) -> Tensor:
        """(..., *action_shape) -> (...)"""

    def entropy(self) -> Tensor:
        """(...)"""

    def concentration(self) -> Tensor:
        """(...) sum of the squared probabilities: 1 for a sure choice, 1/n for an even one."""


class Policy(Protocol):
    """A family of distributions with `num_parameters` parameters each."""

    num_parameters: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    def distribution(self, parameters: Tensor) -> Distribution: ...

    def noise(self, *leading: int, generator: torch.Generator) -> Numbers:
        """Random numbers from which `sample` makes actions, (*leading, ...)."""

    def sample(self, parameters: Numbers, noise: Numbers) -> npt.NDArray[Any]:
        """An action, (B, P) -> (B, *action_shape)."""

    def mode(self, parameters: Numbers) -> npt.NDArray[Any]:
        """The most likely action, (B, P) -> (B, *action_shape)."""

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As the environment takes it."""


class Categorical:
    """One of n actions; the parameters are logits."""

    action_shape: tuple[int, ...] = ()
    action_dtype = torch.int64

    def __init__(self, n: int, start: int = 0) -> None:
        self.num_parameters = n
        self._start = start

    def distribution(self, parameters: Tensor) -> Distribution:
        return _CategoricalDistribution(functional.log_softmax(parameters, -1))

    def noise(self, *leading: int, generator: torch.Generator) -> Numbers:
        """Gumbel noise: the largest of logits + noise is a draw from their softmax."""
        exponential = torch.empty(*leading, self.num_parameters).exponential_(generator=generator)
        return exponential.log_().neg_().numpy()

    def sample(self, parameters: Numbers, noise: Numbers) -> npt.NDArray[Any]:
        return (parameters + noise).argmax(-1)

    def mode(self, parameters: Numbers) -> npt.NDArray[Any]:
        return parameters.argmax(-1)

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return action + self._start if self._start else action


class _CategoricalDistribution:
    def __init__(self, log_p: Tensor) -> None:
        self._log_p = log_p  # (..., n)

    def log_prob(self, action: Tensor) -> Tensor:
        return self._log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self._log_p.exp() * self._log_p).sum(-1)

    def concentration(self) -> Tensor:
        return (2 * self._log_p).exp().sum(-1)


class Gaussian:
    """Independent normal variables; the parameters are their means, then their scales before
    softplus. The environment gets actions clipped to its bounds, likelihoods are of the unclipped.
    """

    action_dtype = torch.float32

    def __init__(
        self, low: npt.NDArray[Any], high: npt.NDArray[Any], dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._size = math.prod(low.shape)
        self.action_shape: tuple[int, ...] = (self._size,)
        self.num_parameters = 2 * self._size
        self._low, self._high = low, high
        self._dtype = np.dtype(dtype)

    def distribution(self, parameters: Tensor) -> Distribution:
        mean, raw = parameters.split(self._size, -1)
        return _GaussianDistribution(mean, functional.softplus(raw) + SMALLEST_SCALE)

    def noise(self, *leading: int, generator: torch.Generator) -> Numbers:
        return torch.empty(*leading, *self.action_shape).normal_(generator=generator).numpy()

    def sample(self, parameters: Numbers, noise: Numbers) -> npt.NDArray[Any]:
        scale = np.logaddexp(np.float32(0.0), parameters[:, self._size :])  # softplus
        scale *= noise
        scale += parameters[:, : self._size]
        return scale

    def mode(self, parameters: Numbers) -> npt.NDArray[Any]:
        return parameters[:, : self._size]

    def to_env(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        clipped = np.minimum(
            np.maximum(action.reshape(-1, *self._low.shape), self._low), self._high
        )
        return clipped.astype(self._dtype, copy=False)


class _GaussianDistribution:
    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        self._mean, self._scale = mean, scale  # (..., n)
        self._log_scale = scale.log()

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self._mean) / self._scale
        density = -0.5 * z.square() - self._log_scale
        return density.sum(-1) - 0.5 * math.log(2 * math.pi) * self._mean.shape[-1]

    def entropy(self) -> Tensor:
        of_unit = 0.5 + 0.5 * math.log(2 * math.pi)
        return self._log_scale.sum(-1) + of_unit * self._mean.shape[-1]

    def concentration(self) -> Tensor:
        raise UnsupportedSpace("the concentration penalty is defined for discrete actions only")


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
