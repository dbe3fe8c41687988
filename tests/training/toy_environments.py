"""Environments small enough to know everything about, which remember what they did."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Recorder(gym.Env):
    """Random observations and rewards, whatever is done; keeps every episode for comparison.

    Each episode's length is drawn when it begins; even episodes terminate, odd ones are truncated.
    """

    def __init__(self, seed: int, discrete: bool = True, longest: int = 7) -> None:
        self.observation_space = gym.spaces.Box(-5, 5, (3,), dtype=np.float64)
        self.action_space = (
            gym.spaces.Discrete(3, start=2) if discrete else gym.spaces.Box(-1, 1, (2,))
        )
        self._rng = np.random.default_rng(seed)
        self._longest = longest
        self.episodes: list[dict[str, Any]] = []

    def _observe(self) -> np.ndarray:
        return self._rng.normal(size=3).clip(-5, 5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        first = self._observe()
        self.episodes.append(
            {
                "length": int(self._rng.integers(1, self._longest + 1)),
                "terminates": len(self.episodes) % 2 == 0,
                "observations": [first],
                "actions": [],
                "rewards": [],
            }
        )
        return first, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        episode = self.episodes[-1]
        observation, reward = self._observe(), float(self._rng.normal())
        episode["observations"].append(observation)
        episode["actions"].append(action)
        episode["rewards"].append(reward)
        over = len(episode["rewards"]) == episode["length"]
        terminated = over and episode["terminates"]
        return observation, reward, terminated, over and not terminated, {}


def recorders(count: int, mode: AutoresetMode, **options: Any) -> SyncVectorEnv:
    makers = [lambda seed=seed: Recorder(seed, **options) for seed in range(count)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


class Recall(gym.Env):
    """A cue at the first step, silence, and at the last a reward for naming the cue."""

    def __init__(self, delay: int = 2) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._delay = delay

    def _observe(self) -> np.ndarray:
        cue = (2 * self._cue - 1) if self._step == 0 else 0
        return np.array([cue, self._step == self._delay, 1], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        asked = self._step == self._delay
        reward = float(asked and action == self._cue)
        self._step += 1
        return self._observe(), reward, bool(asked), False, {}


class Broken(gym.Env):
    """Goes wrong at its n-th step: "raise", "nan reward" or "nan observation"."""

    def __init__(self, how: str, after: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), dtype=np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._how, self._left = how, after

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        observation, reward = np.zeros(2, dtype=np.float32), 0.0
        if self._left < 0:
            if self._how == "raise":
                raise OSError("the simulator is gone")
            if self._how == "nan reward":
                reward = float("nan")
            else:
                observation[1] = np.nan
        return observation, reward, False, False, {}


class Endless(Recall):
    """Goes on for ever, with a reward of 1 at each step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._observe(), 1.0, False, False, {}
