"""The task of all recipes, `Recall-v0`: see a cue once, answer with it to the end of the episode.

Without memory one answer in four is right after the first step, and so it is with memory that is
not cleared between episodes, or cleared within them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

CUES = 4
SHORTEST, LONGEST = 4, 8
"""Steps of an episode: their number varies, so that ends of parallel episodes do not coincide."""


class Recall(gym.Env[Any, Any]):
    """The cue as one of four at the first step, zeros afterwards; each right answer is worth 1."""

    observation_space = gym.spaces.Box(0.0, 1.0, (CUES,), np.float32)
    action_space = gym.spaces.Discrete(CUES)

    def __init__(self, config: Any = None) -> None:  # RLlib gives one
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(CUES))
        self.left = int(self.np_random.integers(SHORTEST, LONGEST + 1))
        return np.eye(CUES, dtype=np.float32)[self.cue], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(CUES, np.float32), float(action == self.cue), self.left == 0, False, {}


gym.register("Recall-v0", Recall)


def stream(
    batch: int, steps: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as data: x (B, T, 4), the cue to answer with (B, T), where episodes begin (B, T)."""
    lengths = torch.randint(SHORTEST, LONGEST + 1, (batch, steps), generator=generator)
    begins = torch.zeros(batch, steps, dtype=torch.bool)
    for row, ends in enumerate(lengths.cumsum(1)):
        begins[row, 0] = True
        begins[row, ends[ends < steps]] = True
    drawn = torch.randint(CUES, (batch, steps), generator=generator)
    episode = begins.cumsum(1) - 1  # (B, T)
    cues = drawn.gather(1, episode)
    x = torch.nn.functional.one_hot(cues, CUES).float() * begins.unsqueeze(2)
    return x, cues, begins
