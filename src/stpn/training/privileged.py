"""What an environment knows and its agent does not see, used while training and at no other time.

A vector environment may offer it: `privileged_space`, a Gymnasium Dict of Discrete and Box spaces
with one axis, and `privileged()`, a dict of arrays with one row per environment, which says how
things stand now. One that breaks episodes off in the step that starts the next one adds it to that
step's infos as "final_privileged".

Two things can be made of it. A critic that sees it beside the core's output knows better how well
the agent is doing, and leaves the policy's gradient unbiased (Baisero & Amato 2021). Auxiliary
heads have the core's output tell it, so that the core learns to find out.

Notation: N leading dimensions in any number, H hidden units, K numbers of knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn._extras import need
from stpn.errors import ConfigError

WIDTH = 128
"""Hidden units of the critic."""


@dataclass(frozen=True)
class Entry:
    """One thing that is known."""

    name: str
    size: int  # among how many symbols it is one, or how many numbers it has
    symbol: bool

    @property
    def columns(self) -> int:
        return 1 if self.symbol else self.size

    def encoded(self, known: Tensor) -> Tensor:
        """(N, columns) -> (N, size): as a network sees it."""
        if not self.symbol:
            return known
        return functional.one_hot(known.squeeze(-1).long(), self.size).to(known.dtype)

    def error(self, told: Tensor, known: Tensor) -> Tensor:
        """(N, size), (N, columns) -> (N): cross-entropy of a symbol, squared error of numbers."""
        if not self.symbol:
            return (told - known).square().mean(-1)
        return -functional.log_softmax(told, -1).gather(-1, known.long()).squeeze(-1)


class Privileged(nn.Module):
    """The critic, the auxiliary heads, or both; no part of the agent, which acts without them."""

    def __init__(self, env: Any, hidden_size: int, *, critic: bool, auxiliary: bool) -> None:
        super().__init__()
        self.entries = entries_of(env)
        self.columns = sum(entry.columns for entry in self.entries)  # K
        size = sum(entry.size for entry in self.entries)
        self.critic = self.heads = None
        if critic:
            self.critic = nn.Sequential(
                nn.Linear(hidden_size + size, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
            )
        if auxiliary:
            self.heads = nn.Linear(hidden_size, size)

    def table(self, knowledge: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """What `privileged()` returned, side by side: (B, K)."""
        columns = [np.asarray(knowledge[entry.name], np.float32) for entry in self.entries]
        return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)

    def value(self, output: Tensor, known: Tensor) -> Tensor:
        """Output of the core (N, H), knowledge (N, K) -> values (N)."""
        assert self.critic is not None
        encoded = [entry.encoded(piece) for entry, piece in self._pieces(known)]
        value: Tensor = self.critic(torch.cat([output, *encoded], -1))
        return value.squeeze(-1)

    def errors(self, output: Tensor, known: Tensor) -> Tensor:
        """How badly the heads tell the knowledge (N, K) from the core's output (N, H): (N)."""
        assert self.heads is not None
        told = self.heads(output).split([entry.size for entry in self.entries], -1)
        pieces = zip(told, self._pieces(known), strict=True)
        return torch.stack([entry.error(guess, piece) for guess, (entry, piece) in pieces]).mean(0)

    def _pieces(self, known: Tensor) -> list[tuple[Entry, Tensor]]:
        widths = [entry.columns for entry in self.entries]
        return list(zip(self.entries, known.split(widths, -1), strict=True))


def entries_of(env: Any) -> list[Entry]:
    """What the environment offers; ConfigError if that is nothing."""
    spaces = need("gymnasium.spaces", extra="rl")
    space = getattr(env, "privileged_space", None)
    if space is None:
        raise ConfigError(
            "this environment tells nothing that its agents do not see: leave out "
            "privileged_critic and auxiliary"
        )
    entries = []
    for name, entry in space.items():
        if isinstance(entry, spaces.Discrete) and entry.start == 0:
            entries.append(Entry(name, int(entry.n), symbol=True))
        elif isinstance(entry, spaces.Box) and len(entry.shape) == 1:
            entries.append(Entry(name, int(entry.shape[0]), symbol=False))
        else:
            raise ConfigError(
                f"privileged {name!r} must be a Discrete space from 0 on or a Box with one axis, "
                f"not {entry}"
            )
    return entries
