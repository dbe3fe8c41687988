"""Association of cues with rewards, as in Duan et al. (2023).

Every sequence has five cues of its own, random vectors, and a reward between -1 and 1 for each. For
the first half of its steps a cue comes with its reward, for the second half without: the reward has
to be given. Cues are noisy each time. Proficiency is the explained variance of the rewards of the
second half, in percent. (The published code also trains on the first half, where the answer is seen
with the question.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stpn.config import require
from stpn.tasks.memory import MODEL_SETTINGS, SETTINGS, MemoryConfig, MemoryTask

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CueRewardConfig(MemoryConfig):
    """Cue-reward association: see cues with rewards, then give the rewards of cues."""

    cues: int = 5
    """Different cues in a sequence."""
    cue_size: int = 14
    """Entries of a cue."""
    length: int = 20
    """T, steps of a sequence; the first half shows rewards."""
    noise: float = 0.1
    """Deviation of what is added to a cue each time."""

    def check(self) -> None:
        super().check()
        for name in ("cues", "cue_size"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        require(self.length >= 2, "length", ">= 2", self.length)
        require(self.noise >= 0, "noise", ">= 0", self.noise)

    @property
    def inputs(self) -> int:
        return self.cue_size + 2  # the cue, its reward, the mark of asking

    @property
    def outputs(self) -> int:
        return 1

    @property
    def symbols(self) -> bool:
        return False

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        import torch

        cues = torch.rand(count, self.cues, self.cue_size, generator=generator)
        rewards = 2 * torch.rand(count, self.cues, generator=generator) - 1
        shown = torch.randint(self.cues, (count, self.length), generator=generator)
        rows, half = torch.arange(count).unsqueeze(1), self.length // 2
        x = torch.zeros(count, self.length, self.inputs)
        clean = cues[rows, shown]  # (N, T, cue_size)
        x[..., :-2] = clean + self.noise * torch.randn(clean.shape, generator=generator)
        given = rewards[rows, shown]  # (N, T)
        x[:, :half, -2] = given[:, :half]
        x[:, half:, -1] = 1
        target = torch.full((count, self.length, 1), torch.nan)
        target[:, half:, 0] = given[:, half:]
        return x, target


TASKS = (
    MemoryTask(
        name="cue-reward",
        title="Cue-reward association",
        metric="explained_variance",
        config=CueRewardConfig,
        settings={**SETTINGS, "iterations": 4000},
        model_settings=MODEL_SETTINGS,
    ),
)
