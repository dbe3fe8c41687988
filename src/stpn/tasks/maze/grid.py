"""The maze's grid as look-up tables: where the walls are, what is seen, where a step leads.

A cell is one number, `row * size + column`. All tables are constants of a size; only the reward
cell changes from episode to episode. The constants below are those of the paper's maze.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

SIZE = 13
SMALLEST, LARGEST = 5, 51
ACTIONS = ("up", "down", "left", "right")
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # (4, 2) row and column of each action


class Plan:
    """A maze of `size` rows and columns: walls around it, a pillar at every (even, even) cell, and
    the centre open in any case."""

    def __init__(self, size: int) -> None:
        if not SMALLEST <= size <= LARGEST or size % 2 == 0:
            raise ValueError(
                f"size must be an odd number from {SMALLEST} to {LARGEST}, got {size!r}"
            )
        self.size = size
        self.cells = size * size
        self.centre = (size // 2) * size + size // 2
        self.walls = _walls(size)  # (size, size)
        self.view = _views(self.walls)  # (cells, 9)
        self.step = _steps(self.walls)  # (cells, 4)
        self.open = np.flatnonzero(~self.walls)  # (97 of the paper's maze,) in order
        self.rank = np.cumsum(~self.walls.ravel()) - 1  # (cells,) place of an open cell in `open`

    def random_open(self, rng: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
        """`size` open cells, all equally likely."""
        return self.open[rng.integers(len(self.open), size=size)]

    def random_open_except(
        self, rng: np.random.Generator, cells: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """For each of `cells` an open cell that is not it, all others equally likely."""
        rank = rng.integers(len(self.open) - 1, size=len(cells))
        return self.open[rank + (rank >= self.rank[cells])]

    @functools.cached_property
    def distances(self) -> npt.NDArray[np.int64]:
        """Steps of the shortest way between any two open cells, (cells, cells); -1 for walls."""
        table = np.full((self.cells, self.cells), -1)
        for goal in self.open:
            table[goal, goal] = 0
            frontier = np.array([goal])
            step = 0
            while len(frontier):  # breadth first: every cell first seen is at distance `step`
                step += 1
                reached = np.unique(self.step[frontier])  # two-way, so from the goal outwards
                frontier = reached[table[goal, reached] < 0]
                table[goal, frontier] = step
        table.setflags(write=False)
        return table


@functools.cache
def plan(size: int) -> Plan:
    """The tables of a size, made once."""
    return Plan(size)


def _walls(size: int) -> npt.NDArray[np.bool_]:
    walls = np.zeros((size, size), dtype=bool)
    walls[[0, -1], :] = True
    walls[:, [0, -1]] = True
    walls[2:-1:2, 2:-1:2] = True  # pillars
    walls[size // 2, size // 2] = False
    return walls


def _views(walls: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """What an agent sees from each cell: the 3 x 3 walls around it, row by row."""
    padded = np.pad(walls, 1, constant_values=True)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))  # (size, size, 3, 3)
    return np.ascontiguousarray(windows.reshape(walls.size, 9), dtype=np.float32)


def _steps(walls: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The cell that each action leads to; a wall keeps the agent where it is."""
    size = len(walls)
    steps = np.empty((walls.size, len(ACTIONS)), dtype=np.int64)
    for cell in range(walls.size):
        for action, (down, right) in enumerate(MOVES):
            row, column = cell // size + down, cell % size + right
            inside = 0 <= row < size and 0 <= column < size
            blocked = not inside or walls[row, column]
            steps[cell, action] = cell if blocked else row * size + column
    return steps


PAPER = plan(SIZE)
CELLS, CENTRE = PAPER.cells, PAPER.centre
WALLS, VIEW, STEP, OPEN, RANK = PAPER.walls, PAPER.view, PAPER.step, PAPER.open, PAPER.rank
random_open, random_open_except = PAPER.random_open, PAPER.random_open_except


def distances() -> npt.NDArray[np.int64]:
    """Those of the paper's maze."""
    return PAPER.distances
