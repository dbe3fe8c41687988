"""The maze's grid as look-up tables: where the walls are, what is seen, where a step leads.

A cell is one number, `row * SIZE + column`. All tables are constants of the task; only the reward
cell changes from episode to episode.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

SIZE = 13
CELLS = SIZE * SIZE
CENTRE = (SIZE // 2) * SIZE + SIZE // 2
ACTIONS = ("up", "down", "left", "right")
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # (4, 2) row and column of each action


def _walls() -> npt.NDArray[np.bool_]:
    walls = np.zeros((SIZE, SIZE), dtype=bool)
    walls[[0, -1], :] = True
    walls[:, [0, -1]] = True
    walls[2:-1:2, 2:-1:2] = True  # pillars
    walls[SIZE // 2, SIZE // 2] = False
    return walls


def _views(walls: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """What an agent sees from each cell: the 3 x 3 walls around it, row by row."""
    padded = np.pad(walls, 1, constant_values=True)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))  # (SIZE, SIZE, 3, 3)
    return np.ascontiguousarray(windows.reshape(CELLS, 9), dtype=np.float32)


def _steps(walls: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The cell that each action leads to; a wall keeps the agent where it is."""
    steps = np.empty((CELLS, len(ACTIONS)), dtype=np.int64)
    for cell in range(CELLS):
        for action, (down, right) in enumerate(MOVES):
            row, column = cell // SIZE + down, cell % SIZE + right
            inside = 0 <= row < SIZE and 0 <= column < SIZE
            blocked = not inside or walls[row, column]
            steps[cell, action] = cell if blocked else row * SIZE + column
    return steps


WALLS = _walls()  # (SIZE, SIZE)
VIEW = _views(WALLS)  # (CELLS, 9)
STEP = _steps(WALLS)  # (CELLS, 4)
OPEN = np.flatnonzero(~WALLS)  # (97,) the open cells, in order
RANK = np.cumsum(~WALLS.ravel()) - 1  # (CELLS,) place of an open cell in OPEN


def random_open(rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
    """`size` open cells, all equally likely."""
    return OPEN[rng.integers(len(OPEN), size=size)]


def random_open_except(
    rng: np.random.Generator, cells: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each of `cells` an open cell that is not it, all others equally likely."""
    rank = rng.integers(len(OPEN) - 1, size=len(cells))
    return OPEN[rank + (rank >= RANK[cells])]


@functools.cache
def distances() -> npt.NDArray[np.int64]:
    """Steps of the shortest way between any two open cells, (CELLS, CELLS); -1 for walls."""
    table = np.full((CELLS, CELLS), -1)
    for goal in OPEN:
        table[goal, goal] = 0
        frontier = np.array([goal])
        step = 0
        while len(frontier):  # breadth first: every cell first seen is at distance `step`
            step += 1
            reached = np.unique(STEP[frontier])  # ways are two-way, so from the goal outwards
            frontier = reached[table[goal, reached] < 0]
            table[goal, frontier] = step
    table.setflags(write=False)
    return table
