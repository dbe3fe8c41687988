"""Playing whole episodes to measure an agent: reward, length, power at each step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stpn.energy.watched import WatchedLayer
from stpn.training.agent import Agent, State
from stpn.training.environments import Environments, Flags

Numbers = npt.NDArray[np.float64]

LONGEST_EPISODE = 27_000
"""Steps after which a measured episode is cut: the half hour of play (108,000 frames) that the
field gives an Atari game. None of the paper's tasks has longer episodes."""
PROGRESS_SECONDS = 0.2

_logger = logging.getLogger("stpn")


@dataclass(frozen=True)
class Played:
    """Episodes of an agent."""

    rewards: Numbers  # (N,) sum of each episode
    lengths: npt.NDArray[np.int64]  # (N,)
    power: float  # of the core, mean over all steps of all episodes
    power_per_step: Numbers  # (longest,) mean over the episodes that got that far
    cut: int = 0  # episodes that did not end within LONGEST_EPISODE steps


class Player(AbstractContextManager["Player"]):
    """Plays one step after another and reads the power of each; a context, as a meter is."""

    def __init__(self, agent: Agent, env: Any, *, greedy: bool, generator: torch.Generator) -> None:
        self.agent = agent
        self.envs = Environments(env)
        self._greedy = greedy
        self._generator = generator
        self._state: State = agent.core.initial_state(self.envs.count)
        self._readings: list[Tensor] = []  # (B, 1) of each layer, in the present step
        self.action: npt.NDArray[Any] = np.zeros(0)
        """What was done in the last step, as the environment got it."""

    def __enter__(self) -> Player:
        # The meter itself keeps means over the batch; here some of it may not count.
        self._stop_watching = WatchedLayer("core", self.agent.core).watch(
            lambda name, reading: self._readings.append(reading.power),
            ignored=(),
            keeps_graph=lambda: False,
            batch_first=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_watching()

    @torch.no_grad()
    def step(self) -> tuple[npt.NDArray[Any], tuple[Any, Flags, Flags, dict[str, Any]]]:
        """The core's power (B,) and what `Environments.step` returned."""
        envs, policy = self.envs, self.agent.policy
        device = self.agent.heads.weight.device
        reset = torch.from_numpy(envs.first).to(device) if envs.any_first else None
        self._readings.clear()
        observation = envs.observation.to(device)
        heads, self._state = self.agent.step(observation, self._state, reset, inplace=True)
        power = torch.cat(self._readings, dim=1).sum(1).cpu().numpy()
        parameters = heads[:, :-1].cpu().numpy()
        if self._greedy:
            action = policy.mode(parameters)
        else:
            action = policy.sample(parameters, policy.noise(envs.count, generator=self._generator))
        self.action = policy.to_env(action)
        return power, envs.step(self.action)


def play(
    agent: Agent,
    env: Any,
    episodes: int,
    *,
    seed: int,
    generator: torch.Generator,
    greedy: bool,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Played:
    """At least `episodes` whole episodes, the same number in each environment (so that short ones
    do not count more often than long ones).

    One that does not end within LONGEST_EPISODE steps counts with what it has earned by then, and
    is the last of its environment. `on_progress` is told the share of all episodes that is over.
    """
    with Player(agent, env, greedy=greedy, generator=generator) as player:
        player.envs.start(seed)
        played = _play(player, episodes, on_progress)
    if played.cut:
        _logger.warning(
            "%d of %d measured episodes did not end within %s steps and were cut there; a time "
            "limit ends them sooner, as in --env-args max_episode_steps=1000",
            played.cut,
            len(played.rewards),
            f"{LONGEST_EPISODE:,}",
        )
    return played


def _play(player: Player, episodes: int, on_progress: Callable[[float], None]) -> Played:
    envs = player.envs
    left = np.full(envs.count, -(-episodes // envs.count))
    reward_so_far, length = np.zeros(envs.count), np.zeros(envs.count, dtype=np.int64)
    rewards: list[float] = []
    lengths: list[int] = []
    power_sum, power_count = np.zeros(1024), np.zeros(1024)
    cut = 0
    total, told = left.sum(), time.monotonic()
    while left.any():
        counts = (left > 0) & ~envs.starting
        power, (reward, terminated, truncated, _) = player.step()
        if length.max() >= len(power_sum):
            power_sum, power_count = (np.pad(a, (0, len(a))) for a in (power_sum, power_count))
        np.add.at(power_sum, length[counts], power[counts])
        np.add.at(power_count, length[counts], 1)
        reward_so_far[counts] += reward[counts]
        length[counts] += 1
        ended = (terminated | truncated) & counts
        too_long = counts & ~ended & (length >= LONGEST_EPISODE)
        if too_long.any():
            cut += int(too_long.sum())
            left[too_long] = 1
            ended |= too_long
        if ended.any():
            rewards += reward_so_far[ended].tolist()
            lengths += length[ended].tolist()
            reward_so_far[ended] = 0.0
            length[ended] = 0
            left[ended] -= 1
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            on_progress(1.0 - float(left.sum() / total))
    longest = max(lengths)
    return Played(
        rewards=np.array(rewards),
        lengths=np.array(lengths),
        power=float(power_sum.sum() / power_count.sum()),
        power_per_step=power_sum[:longest] / power_count[:longest],
        cut=cut,
    )
