"""One episode of a trained agent as a moving picture, with the power of its core at each step."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stpn import zoo
from stpn._extras import need
from stpn._files import explain_os_errors
from stpn.errors import ConfigError, StpnError
from stpn.tasks import pendulum, pong
from stpn.training import environments
from stpn.training.evaluation import Player
from stpn.training.reinforcement import (
    GymTrainer,
    MazeTrainer,
    PendulumTrainer,
    PongTrainer,
    ReinforcementTrainer,
)
from stpn.training.trainer import stream

Image = npt.NDArray[np.uint8]  # (height, width, 3)

FORMATS = (".gif", ".mp4")


class CannotDraw(StpnError):
    """The environment has no picture, or this machine cannot make it."""


@dataclass(frozen=True)
class Watched:
    """What was recorded."""

    path: str
    steps: int
    reward: float
    power: float  # mean over the steps
    whole: bool  # the episode ended; False: it was broken off at the limit


def record(
    source: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    steps: int = 1000,
    fps: float | None = None,
    greedy: bool | None = None,
    env: str | None = None,
) -> Watched:
    """Let the network of a run, or one of the package, play, and write what is seen to `out`.

    `steps` is the longest that is shown, `fps` the speed (None: the task's own), `greedy` whether
    the most likely actions are taken (None: as the task measures). `env` repeats the environment
    of a run that plays in "module:Name", whose module is imported.
    """
    out = Path(out)
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"a recording ends in {' or '.join(FORMATS)}, not {out.name!r}")
    if steps < 1:
        raise ConfigError(f"steps must be >= 1, not {steps}")
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, not {seed}")
    need("imageio", extra="rl")
    with zoo.opened(source, env=env) as trainer:
        if not isinstance(trainer, ReinforcementTrainer):
            raise ConfigError(f"{trainer.config.task} has no episodes to watch, only sequences")
        scene = _scene(trainer)
        try:
            with Film(out, scene.fps if fps is None else fps) as film:
                return _play(trainer, scene, film, seed, steps, greedy)
        finally:
            scene.close()


def _play(
    trainer: ReinforcementTrainer[Any],
    scene: Scene,
    film: Film,
    seed: int,
    steps: int,
    greedy: bool | None,
) -> Watched:
    config = trainer.config
    powers: list[float] = []
    total, ended = 0.0, False
    player = Player(
        trainer.model,
        scene.env,
        greedy=config.greedy if greedy is None else greedy,
        generator=stream(seed, "watch"),
    )
    with player:
        player.worlds.start(seed)
        scene.started(seed)
        while len(powers) < steps and not ended:
            picture = scene.picture()
            power, (reward, terminated, truncated, _) = player.step()
            scene.stepped(player.action, bool(reward[0]))
            powers.append(float(power[0]))
            caption = f"step {len(powers)}   reward {total:g}   power {powers[-1]:.4g}"
            film.add(with_power(picture, f"{config.model}   {caption}", powers, steps))
            total += float(reward[0])
            ended = bool(terminated[0] or truncated[0])
    return Watched(str(film.path), len(powers), total, float(np.mean(powers)), ended)


class Scene(ABC):
    """One environment that can be looked at. The picture shows what the agent acts on."""

    fps: float
    env: Any  # a vector environment of one

    @abstractmethod
    def picture(self) -> Image: ...

    def started(self, seed: int) -> None:  # noqa: B027  (most scenes keep no account)
        """A new episode begins."""

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:  # noqa: B027
        """The environment made one step."""

    def close(self) -> None:
        self.env.close()


class MazeScene(Scene):
    """The grid with the reward cell and the path since the start or the last reward."""

    fps = 8

    def __init__(self, env: Any) -> None:
        self.env = env
        self._path: list[int] = []

    def started(self, seed: int) -> None:
        self._path = [int(self.env.cell[0])]

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:
        if rewarded:
            self._path.clear()
        self._path.append(int(self.env.cell[0]))

    def picture(self) -> Image:
        from stpn.tasks import maze_render

        cell, reward_cell = int(self.env.cell[0]), int(self.env.reward_cell[0])
        return maze_render.frame(cell, reward_cell, self._path, scale=32)


class PongScene(Scene):
    """The screen in colour, from a second emulator that is given the same actions."""

    fps = 15

    def __init__(self, env: Any, *, three_actions: bool) -> None:
        self.env = env
        self._screen = pong.screen_env(1, three_actions=three_actions)
        self._frame: Image = np.zeros((*pong.SCREEN, 3), dtype=np.uint8)

    def started(self, seed: int) -> None:
        observation, _ = self._screen.reset(seed=seed)
        self._frame = observation[0, 0]

    def stepped(self, action: npt.NDArray[Any], rewarded: bool) -> None:
        observation, *_ = self._screen.step(action)
        self._frame = observation[0, 0]

    def picture(self) -> Image:
        return self._frame.repeat(2, axis=0).repeat(2, axis=1)

    def close(self) -> None:
        super().close()
        self._screen.close()


class RenderedScene(Scene):
    """What the environment itself draws."""

    def __init__(self, name: str, **options: Any) -> None:
        # Without a window system MuJoCo draws through EGL, if it is told so before it begins.
        if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            os.environ.setdefault("MUJOCO_GL", "egl")
        self._name = name
        self.env = environments.make(name, 1, **{**options, "render_mode": "rgb_array"})
        self.fps = float(self.env.metadata.get("render_fps", 30))

    def picture(self) -> Image:
        try:
            (image,) = self.env.render()
        except Exception as error:
            hint = ""
            if self._name == pendulum.NAME:
                hint = (
                    "; MuJoCo draws without a screen through EGL (apt-get install libegl1 "
                    "libgl1-mesa-dri, MUJOCO_GL=egl) or OSMesa (libosmesa6, MUJOCO_GL=osmesa)"
                )
            raise CannotDraw(f"{self._name} cannot be drawn here: {error!r}{hint}") from error
        if image is None:
            raise CannotDraw(f"{self._name} draws no pictures (render_mode rgb_array)")
        return np.asarray(image, dtype=np.uint8)


def _scene(trainer: ReinforcementTrainer[Any]) -> Scene:
    if isinstance(trainer, MazeTrainer):
        return MazeScene(trainer.make_env(1))
    if isinstance(trainer, PongTrainer):
        return PongScene(trainer.make_env(1), three_actions=trainer.config.three_actions)
    if isinstance(trainer, PendulumTrainer):
        return RenderedScene(pendulum.NAME)
    if isinstance(trainer, GymTrainer):
        return RenderedScene(trainer.config.env, **trainer.config.env_options)
    raise CannotDraw(f"nobody has said how {trainer.config.task} is drawn")


class Film:
    """A GIF or MP4 that grows frame by frame, and appears under its name when it is complete."""

    def __init__(self, path: Path, fps: float) -> None:
        if not 0 < fps <= 1000:
            raise ConfigError(f"fps must be between 0 and 1000, not {fps}")
        imageio = need("imageio.v2", extra="rl")
        self.path = path
        self._unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
        options: dict[str, Any] = {"fps": fps, "macro_block_size": 1}
        if path.suffix.lower() == ".gif":
            options = {"duration": 1000 / fps, "loop": 0}
        with explain_os_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.touch()
            self._writer = imageio.get_writer(self._unfinished, **options)

    def add(self, frame: Image) -> None:
        with explain_os_errors(f"write {self.path}"):
            self._writer.append_data(_even(frame))

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with explain_os_errors(f"write {self.path}"):
            self._writer.close()
            if kind is None:
                os.replace(self._unfinished, self.path)
            else:
                self._unfinished.unlink(missing_ok=True)


def _even(frame: Image) -> Image:
    """Video codecs want an even number of rows and columns."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


_BACKGROUND, _INK, _BARS, _NOW = (255, 255, 255), (38, 42, 48), (168, 187, 222), (29, 78, 216)
_LINE, _CHART, _MARGIN = 26, 64, 6  # pixels


def with_power(picture: Image, caption: str, powers: list[float], steps: int) -> Image:
    """The picture with a line of text above, and below it a bar for the power of each step so far.

    The chart has room for an episode of 200 steps; a longer one, up to `steps`, is squeezed.
    """
    pil = need("PIL.Image", extra="rl")
    draw_module = need("PIL.ImageDraw", extra="rl")
    fonts = need("PIL.ImageFont", extra="rl")
    width = max(picture.shape[1], 360)
    height = _LINE + picture.shape[0] + _CHART + 2 * _MARGIN
    canvas = pil.new("RGB", (width, height), _BACKGROUND)
    canvas.paste(pil.fromarray(picture), ((width - picture.shape[1]) // 2, _LINE))
    draw = draw_module.Draw(canvas)
    draw.text((_MARGIN, _LINE // 2), caption, fill=_INK, anchor="lm", font=fonts.load_default(14))

    room = width - 2 * _MARGIN
    slots = max(min(200, steps), len(powers))
    bottom, top = height - _MARGIN, max(powers) or 1.0
    for step, power in enumerate(powers):
        left = _MARGIN + step * room // slots
        right = max(left, _MARGIN + (step + 1) * room // slots - 1)
        level = bottom - round(_CHART * power / top)
        colour = _NOW if step + 1 == len(powers) else _BARS
        draw.rectangle((left, min(level, bottom), right, bottom), fill=colour)
    return np.asarray(canvas)
