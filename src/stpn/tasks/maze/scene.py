"""The maze as it is looked at."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from stpn.scenes import Image, Scene
from stpn.tasks.maze import render
from stpn.tasks.maze.environment import MazeVectorEnv


class MazeScene(Scene):
    """The grid with the reward cell and the path since the start or the last reward."""

    fps = 8
    env: MazeVectorEnv

    def __init__(self, env: MazeVectorEnv) -> None:
        self.env = env
        self._path: list[int] = []

    def started(self, seed: int) -> None:
        self._path = [int(self.env.cell[0])]

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:
        if rewarded:
            self._path.clear()
        self._path.append(int(self.env.cell[0]))

    def picture(self) -> Image:
        cell, reward_cell = int(self.env.cell[0]), int(self.env.reward_cell[0])
        return render.frame(cell, reward_cell, self._path, self.env.plan, scale=32)
