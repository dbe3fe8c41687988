"""Pictures of the maze: as text, and as an image with the agent's path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stpn.tasks.maze.grid import PAPER, Plan

Image = npt.NDArray[np.uint8]  # (height, width, 3)

_FLOOR = (246, 246, 242)
_WALL = (58, 63, 71)
_REWARD = (240, 180, 41)
_AGENT = (29, 78, 216)
_PATH_OLD, _PATH_NEW = np.array([219, 231, 251]), np.array([125, 165, 240])


def text(cell: int, reward_cell: int, plan: Plan = PAPER) -> str:
    """`#` wall, `*` reward cell, `@` agent, one line per row."""
    grid = np.where(plan.walls, "#", ".")
    grid.flat[reward_cell] = "*"
    grid.flat[cell] = "@"
    return "\n".join("".join(row) for row in grid)


def frame(
    cell: int, reward_cell: int, path: Sequence[int] = (), plan: Plan = PAPER, *, scale: int = 24
) -> Image:
    """The maze with the agent (disc), the reward cell (diamond) and the cells of `path`, which
    grow darker towards the present. `scale` pixels per cell."""
    colours = np.empty((plan.size, plan.size, 3), dtype=np.uint8)
    colours[:] = _FLOOR
    for age, visited in enumerate(path):
        share = (age + 1) / len(path)
        colours.reshape(-1, 3)[visited] = (1 - share) * _PATH_OLD + share * _PATH_NEW
    colours[plan.walls] = _WALL
    image = colours.repeat(scale, axis=0).repeat(scale, axis=1)
    y, x = np.mgrid[:scale, :scale] - (scale - 1) / 2
    _stamp(image, reward_cell, np.abs(x) + np.abs(y) <= 0.45 * scale, _REWARD)
    _stamp(image, cell, x**2 + y**2 <= (0.36 * scale) ** 2, _AGENT)
    return image


def _stamp(
    image: Image, cell: int, shape: npt.NDArray[np.bool_], colour: tuple[int, int, int]
) -> None:
    scale = len(shape)
    row, column = divmod(cell, image.shape[1] // scale)
    tile = image[row * scale : (row + 1) * scale, column * scale : (column + 1) * scale]
    tile[shape] = colour
