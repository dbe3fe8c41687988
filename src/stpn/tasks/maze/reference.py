"""Reference points of the maze: what is earned by chance, by good use of all that is seen, and by
knowing the reward cell.

A policy here is a table of action probabilities that may depend on the cell and on the reward
cell: (reward cell, cell, action). Its expected reward follows exactly from the Markov chain of an
episode, without playing.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from stpn.tasks.maze.belief import belief_reward
from stpn.tasks.maze.grid import ACTIONS, CELLS, CENTRE, OPEN, STEP, distances

Policy = npt.NDArray[np.float64]  # (CELLS, CELLS, 4): reward cell, cell, action


def random_policy() -> Policy:
    """Every action equally likely."""
    return np.full((CELLS, CELLS, len(ACTIONS)), 1 / len(ACTIONS))


@functools.cache
def _oracle_table() -> npt.NDArray[np.int64]:
    to_goal = distances()[:, STEP]  # (reward cell, cell, action) distance after the action
    stays = np.arange(CELLS)[:, None] == STEP  # bumping into a wall
    return np.where(stays | (to_goal < 0), CELLS, to_goal).argmin(axis=2)


def oracle_actions(
    cell: npt.NDArray[np.int64], reward_cell: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """A step on the shortest way to the reward cell, for each agent.

    On the reward cell itself (only an episode's first step can be there) it steps off, to return.
    """
    return _oracle_table()[reward_cell, cell]


def oracle_policy() -> Policy:
    """`oracle_actions` as a table of probabilities."""
    return np.eye(len(ACTIONS))[_oracle_table()]


def expected_reward(policy: Policy, *, steps: int = 200, reward: float = 10.0) -> float:
    """Expected sum of rewards of an episode under `policy`, exact up to rounding."""
    if policy.shape != (CELLS, CELLS, len(ACTIONS)):
        raise ValueError(
            f"policy must have shape ({CELLS}, {CELLS}, {len(ACTIONS)}), "
            "reward cell by cell by action; "
            f"got {policy.shape}"
        )
    goals = np.arange(len(OPEN))
    move = np.zeros((len(OPEN), CELLS, CELLS))  # (goal, from, to)
    for action in range(len(ACTIONS)):
        # One action leads from a cell to one cell, so this assigns no index twice.
        move[:, np.arange(CELLS), STEP[:, action]] += policy[OPEN, :, action]
    elsewhere = np.zeros((len(OPEN), CELLS))  # where a rewarded agent is put
    elsewhere[:, OPEN] = 1 / (len(OPEN) - 1)
    elsewhere[goals, OPEN] = 0.0

    where = np.zeros((len(OPEN), CELLS))  # probability of being in a cell, per reward cell
    where[:, CENTRE] = 1.0
    hits = np.zeros(len(OPEN))
    for _ in range(steps):
        where = np.matmul(where[:, None, :], move)[:, 0]
        hit = where[goals, OPEN]
        hits += hit
        where[goals, OPEN] = 0.0
        where += hit[:, None] * elsewhere
    return float(reward * hits.mean())


@functools.cache
def reference_points() -> dict[str, float]:
    """Expected reward of the random policy, of an agent that makes the most of what agents see
    (the mean of episodes that it plays), and of the oracle."""
    return {
        "random policy": expected_reward(random_policy()),
        "agent that keeps account of where it may be": belief_reward(),
        "oracle that knows the reward cell": expected_reward(oracle_policy()),
    }
