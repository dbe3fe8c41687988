"""Environments that can be looked at, for `stpn watch`."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from stpn.errors import StpnError

Image = npt.NDArray[np.uint8]  # (height, width, 3)


class CannotDraw(StpnError):
    """The environment has no picture, or this machine cannot make it."""


class Scene(ABC):
    """One environment that can be looked at. The picture shows what the agent acts on."""

    fps: float
    env: Any  # a vector environment of one
    shows_the_end: bool = False
    """Whether after the last step `picture` is how the episode ended, and not a new one."""

    @abstractmethod
    def picture(self) -> Image: ...

    def started(self, seed: int) -> None:  # noqa: B027  (most scenes keep no account)
        """A new episode begins."""

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:  # noqa: B027
        """The environment made one step."""

    def close(self) -> None:
        self.env.close()


class RenderedScene(Scene):
    """What the environment itself draws; `hint` goes to whoever cannot have that."""

    def __init__(self, name: str, options: dict[str, Any] | None = None, hint: str = "") -> None:
        # Without a window system MuJoCo draws through EGL, if it is told so before it begins.
        if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("MUJOCO_GL", "egl")
        from stpn.training import environments

        self._name, self._hint = name, hint
        self.env = environments.make(name, 1, **{**(options or {}), "render_mode": "rgb_array"})
        self.fps = float(self.env.metadata.get("render_fps", 30))

    def picture(self) -> Image:
        try:
            (image,) = self.env.render()
        except Exception as error:
            raise CannotDraw(f"{self._name} cannot be drawn here: {error!r}{self._hint}") from error
        if image is None:
            raise CannotDraw(f"{self._name} draws no pictures (render_mode rgb_array)")
        return np.asarray(image, dtype=np.uint8)
