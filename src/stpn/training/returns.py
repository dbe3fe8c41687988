"""Returns and advantages of a rollout.

A rollout is cut at each episode's end and at its own last step. What would have come after a cut is
estimated by `bootstrap`: 0 where the episode *terminated* (nothing comes after), the value of the
state that followed where it was *truncated* or merely goes on in the next rollout.

Notation: B environments, T steps; all arrays (B, T).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def cuts(ended: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The steps after which the rollout knows no more of the episode."""
    cut = ended.copy()
    cut[:, -1] = True
    return cut


def discounted_returns(
    rewards: Array, ended: npt.NDArray[np.bool_], bootstrap: Array, *, discount: float
) -> Array:
    """R_t = r_t + discount * (R_{t+1}, or the bootstrap value at a cut)."""
    cut = cuts(ended)
    returns = np.empty_like(rewards)
    following = bootstrap[:, -1]
    for t in reversed(range(rewards.shape[1])):
        following = np.where(cut[:, t], bootstrap[:, t], following)
        following = rewards[:, t] + discount * following
        returns[:, t] = following
    return returns


class RewardScale:
    """Divides rewards by the deviation that discounted returns have had so far.

    Whatever the environment pays, a critic then learns numbers near 1. Returns are followed
    forward, as sums of past rewards, whose deviation is the same.
    """

    def __init__(self, batch: int, discount: float) -> None:
        self._discount = discount
        self._following = np.zeros(batch)
        self._count, self._mean, self._variance = 0.0, 0.0, 0.0

    def apply(self, rewards: Array, ended: npt.NDArray[np.bool_]) -> None:
        """Take a rollout's rewards into account, then scale them in place."""
        seen = np.empty(rewards.shape)
        for t in range(rewards.shape[1]):
            self._following = rewards[:, t] + self._discount * self._following
            seen[:, t] = self._following
            self._following[ended[:, t]] = 0.0
        share = seen.size / (self._count + seen.size)
        shift = seen.mean() - self._mean
        self._variance += share * (seen.var() + (1 - share) * shift**2 - self._variance)
        self._mean += share * shift
        self._count += seen.size
        rewards /= np.sqrt(self._variance + 1e-8)

    def state_dict(self) -> dict[str, Any]:
        return {
            "following": self._following,
            "count": float(self._count),
            "mean": float(self._mean),
            "variance": float(self._variance),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._following = saved["following"].copy()
        self._count, self._mean = saved["count"], saved["mean"]
        self._variance = saved["variance"]


def generalised_advantages(
    rewards: Array,
    values: Array,
    ended: npt.NDArray[np.bool_],
    bootstrap: Array,
    *,
    discount: float,
    smoothing: float,
) -> Array:
    """A_t = sum_k (discount * smoothing)^k delta_{t+k} up to the cut (GAE).

    delta_t = r_t + discount * V_{t+1} - V_t, with the bootstrap value for V_{t+1} at a cut. With
    smoothing 1 this is `discounted_returns - values`, with 0 the one-step error.
    """
    cut = cuts(ended)
    next_values = np.concatenate([values[:, 1:], bootstrap[:, -1:]], axis=1)
    np.copyto(next_values, bootstrap, where=cut)
    advantages: Array = rewards + discount * next_values - values  # delta
    keep = np.where(cut, 0, discount * smoothing).astype(rewards.dtype)
    for t in reversed(range(rewards.shape[1] - 1)):
        advantages[:, t] += keep[:, t] * advantages[:, t + 1]
    return advantages
