"""An agent for the maze that is told nothing it could not see, and makes good use of it.

It knows the plan of the maze and keeps account of where it may be. Until the first reward that is
certain, for it starts at the centre, and it walks a tour of all cells. From then on it knows the
reward cell; moved somewhere else, it may be in any cell that looks like what it sees, and takes the
step that promises most, thinking of what it will see in the next ones. A network that earns as
much has learnt to search, to remember and to find out where it is.
"""

from __future__ import annotations

import functools

import numpy as np

from stpn.tasks.maze.grid import (
    ACTIONS,
    CENTRE,
    OPEN,
    RANK,
    STEP,
    VIEW,
    distances,
    random_open,
    random_open_except,
)

TOURS = 300
"""Random tours of which the best is walked."""
AHEAD = 4
"""Steps that are thought through."""
DISCOUNT = 0.8
"""What a reward is worth one step later."""

# Cells are ranks here: places in OPEN.
_NEXT = RANK[STEP[OPEN]]  # (97, 4) where an action leads
_DISTANCE = distances()[np.ix_(OPEN, OPEN)]  # (97, 97)
_, _LOOK = np.unique(VIEW[OPEN], axis=0, return_inverse=True)  # (97,) which of 24 views is seen

Belief = frozenset[int]  # cells, all equally likely


@functools.cache
def best_tour() -> list[int]:
    """The cells after each step of a walk from the centre through all, soon on average."""
    rng = np.random.default_rng(0)
    tours = [_tour(rng) for _ in range(TOURS)]
    return min(tours, key=lambda walk: sum(map(walk.index, range(len(OPEN)))))


def _tour(rng: np.random.Generator) -> list[int]:
    """Always on to a nearest new cell, any among equals."""
    here, walk = int(RANK[CENTRE]), list[int]()
    new = np.ones(len(OPEN), dtype=bool)  # the centre too: whoever starts on the goal must return
    while new.any():
        cost = _DISTANCE[here] + 0.5 * rng.random(len(OPEN))
        cost[~new] = np.inf
        cost[here] = 1e6  # itself at last, by way of a neighbour
        goal = int(cost.argmin())
        while not walk or here != goal or new[goal]:
            here = int(_NEXT[here, _DISTANCE[_NEXT[here], goal].argmin()])
            walk.append(here)
            new[here] = False
    return walk


@functools.cache
def _arrivals(goal: int, belief: Belief, action: int) -> tuple[int, tuple[Belief, ...]]:
    """How many of the cells lead to the goal, and what the others leave possible, by the view."""
    cells = [int(_NEXT[cell, action]) for cell in belief]
    views: dict[int, set[int]] = {}
    for cell in cells:
        if cell != goal:
            views.setdefault(int(_LOOK[cell]), set()).add(cell)
    return cells.count(goal), tuple(map(frozenset, views.values()))


@functools.cache
def _worth(goal: int, belief: Belief, ahead: int) -> float:
    """Discounted chance of the next reward, times the number of cells."""
    if ahead == 0 or len(belief) == 1:
        return float(sum(DISCOUNT ** (_DISTANCE[goal, cell] - 1) for cell in belief))
    return max(_promise(goal, belief, action, ahead) for action in range(len(ACTIONS)))


def _promise(goal: int, belief: Belief, action: int, ahead: int) -> float:
    hits, rest = _arrivals(goal, belief, action)
    return hits + DISCOUNT * sum(_worth(goal, part, ahead - 1) for part in rest)


@functools.cache
def decide(goal: int, belief: Belief) -> int:
    """The action that promises most to an agent that knows the goal and may be anywhere in
    `belief`."""
    return max(range(len(ACTIONS)), key=lambda a: _promise(goal, belief, a, AHEAD))


@functools.cache
def looks_like(view: tuple[float, ...], other_than: int) -> Belief:
    """All cells that look so, except one."""
    same = (VIEW[OPEN] == np.array(view)).all(1).nonzero()[0]
    return frozenset(same.tolist()) - {other_than}


class BeliefAgent:
    """Plays one episode."""

    def __init__(self) -> None:
        self.goal: int | None = None
        self.belief: Belief = frozenset({int(RANK[CENTRE])})
        self._tour = iter(best_tour())
        self._action = 0
        self._begun = False

    def act(self, view: tuple[float, ...], rewarded: bool) -> int:
        """What is seen (9 numbers) and whether the last step earned a reward -> the action."""
        moved = frozenset(int(_NEXT[cell, self._action]) for cell in self.belief)
        if not self._begun:
            self._begun = True
        elif rewarded:
            if self.goal is None:
                (self.goal,) = moved
            self.belief = looks_like(view, self.goal)
        else:
            self.belief = moved if self.goal is None else moved & looks_like(view, self.goal)
        if self.goal is None:
            (here,) = self.belief
            self._action = int((_NEXT[here] == next(self._tour)).argmax())
        else:
            self._action = decide(self.goal, self.belief)
        return self._action


@functools.cache
def belief_reward(episodes: int = 1000, *, steps: int = 200, reward: float = 10.0) -> float:
    """Mean reward of episodes that the agent plays; on the grid itself, which needs no extra."""
    rng = np.random.default_rng(0)
    agents = [BeliefAgent() for _ in range(episodes)]
    goals, cells = random_open(rng, episodes), np.full(episodes, CENTRE)
    hit, hits = np.zeros(episodes, dtype=bool), 0
    for _ in range(steps):
        views = map(tuple, VIEW[cells].tolist())
        actions = [agent.act(*seen) for agent, *seen in zip(agents, views, hit, strict=True)]
        cells = STEP[cells, actions]
        hit = cells == goals
        hits += int(hit.sum())
        cells[hit] = random_open_except(rng, goals[hit])
    return reward * hits / episodes
