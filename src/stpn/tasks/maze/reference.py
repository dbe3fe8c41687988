"""Reference points of the maze: what is earned by chance, by good use of all that is seen, and by
knowing the reward cell.

A policy here is a table of action probabilities that may depend on the cell and on the reward
cell: (reward cell, cell, action). Its expected reward follows exactly from the Markov chain of an
episode, without playing. Size, wall penalty and random start are those of the environments; the
agent that keeps account of where it may be plays the paper's maze alone.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from stpn.tasks.maze.belief import belief_reward
from stpn.tasks.maze.grid import ACTIONS, PAPER, SIZE, Plan, plan

Policy = npt.NDArray[np.float64]  # (cells, cells, 4): reward cell, cell, action


def random_policy(maze: Plan = PAPER) -> Policy:
    """Every action equally likely."""
    return np.full((maze.cells, maze.cells, len(ACTIONS)), 1 / len(ACTIONS))


@functools.cache
def _oracle_table(maze: Plan) -> npt.NDArray[np.int64]:
    to_goal = maze.distances[:, maze.step]  # (reward cell, cell, action) distance after the action
    return np.where(_stays(maze) | (to_goal < 0), maze.cells, to_goal).argmin(axis=2)


def _stays(maze: Plan) -> npt.NDArray[np.bool_]:
    """(cells, 4): whether an action runs into a wall."""
    found: npt.NDArray[np.bool_] = np.arange(maze.cells)[:, None] == maze.step
    return found


def oracle_actions(
    cell: npt.NDArray[np.int64], reward_cell: npt.NDArray[np.int64], maze: Plan = PAPER
) -> npt.NDArray[np.int64]:
    """A step on the shortest way to the reward cell, for each agent.

    On the reward cell itself (only an episode's first step can be there) it steps off, to return.
    """
    return _oracle_table(maze)[reward_cell, cell]


def oracle_policy(maze: Plan = PAPER) -> Policy:
    """`oracle_actions` as a table of probabilities."""
    return np.eye(len(ACTIONS))[_oracle_table(maze)]


def expected_reward(
    policy: Policy,
    maze: Plan = PAPER,
    *,
    wall_penalty: float = 0.0,
    random_start: bool = False,
    steps: int = 200,
    reward: float = 10.0,
) -> float:
    """Expected sum of rewards of an episode under `policy`, exact up to rounding."""
    cells, opened = maze.cells, maze.open
    if policy.shape != (cells, cells, len(ACTIONS)):
        raise ValueError(
            f"policy must have shape ({cells}, {cells}, {len(ACTIONS)}), "
            "reward cell by cell by action; "
            f"got {policy.shape}"
        )
    stays = _stays(maze)
    hits, bumps = 0.0, 0.0  # of all reward cells together
    for goal in opened:
        move = np.zeros((cells, cells))  # (from, to)
        for action in range(len(ACTIONS)):
            # One action leads from a cell to one cell, so this assigns no index twice.
            move[np.arange(cells), maze.step[:, action]] += policy[goal, :, action]
        bump = (policy[goal] * stays).sum(1)  # (cells,): chance of running into a wall
        elsewhere = np.zeros(cells)  # where a rewarded agent is put
        elsewhere[opened] = 1 / (len(opened) - 1)
        elsewhere[goal] = 0.0
        where = np.zeros(cells)  # probability of being in a cell
        where[maze.centre] = 1.0
        if random_start:
            where = elsewhere.copy()
        for _ in range(steps):
            bumps += where @ bump
            where = where @ move
            hit = where[goal]
            hits += hit
            where[goal] = 0.0
            where += hit * elsewhere
    return float(reward * hits - wall_penalty * bumps) / len(opened)


@functools.cache
def reference_points(
    size: int = SIZE, wall_penalty: float = 0.0, random_start: bool = False
) -> dict[str, float]:
    """Expected reward of the random policy, of an agent that makes the most of what agents see
    (the mean of episodes that it plays; of the paper's maze alone), and of the oracle."""
    maze = plan(size)
    paid = functools.partial(
        expected_reward, maze=maze, wall_penalty=wall_penalty, random_start=random_start
    )
    points = {"random policy": paid(random_policy(maze))}
    if maze is PAPER and not wall_penalty and not random_start:
        points["agent that keeps account of where it may be"] = belief_reward()
    points["oracle that knows the reward cell"] = paid(oracle_policy(maze))
    return points
