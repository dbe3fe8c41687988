"""One episode of a trained agent as a moving picture, with the power of its core at each step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stpn import zoo
from stpn._extras import need
from stpn._files import explain_os_errors
from stpn.errors import ConfigError
from stpn.scenes import Image, Scene
from stpn.tasks import registry
from stpn.training.evaluation import Player
from stpn.training.reinforcement import ReinforcementTrainer
from stpn.training.trainer import stream

FORMATS = (".gif", ".mp4")


@dataclass(frozen=True)
class Watched:
    """What was recorded."""

    path: str
    steps: int  # that are shown
    reward: float  # of the episode up to the last of them
    power: float  # mean over the steps that are shown
    whole: bool  # the episode ended; False: it was broken off at the limit


def record(
    source: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    start: int = 1,
    steps: int = 1000,
    fps: float | None = None,
    greedy: bool | None = None,
    env: str | None = None,
) -> Watched:
    """Let the network of a run, or one of the package, play, and write what is seen to `out`.

    `start` is the first step that is shown, `steps` the longest part from there on, `fps` the speed
    (None: the task's own), `greedy` whether the most likely actions are taken (None: as the task
    measures). `env` repeats the environment of a run that plays in "module:Name", whose module is
    imported.
    """
    out = Path(out)
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"a recording ends in {' or '.join(FORMATS)}, not {out.name!r}")
    for name, value in (("start", start), ("steps", steps)):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, not {value}")
    if seed < 0:
        raise ConfigError(f"seed must be >= 0, not {seed}")
    with zoo.opened(source, env=env) as trainer:
        scene = registry.get(trainer.config.task).scene(trainer.config)
        assert isinstance(trainer, ReinforcementTrainer)  # else there is no scene
        try:
            with Film(out, scene.fps if fps is None else fps) as film:
                return _play(trainer, scene, film, seed, range(start, start + steps), greedy)
        finally:
            scene.close()


def _play(
    trainer: ReinforcementTrainer,
    scene: Scene,
    film: Film,
    seed: int,
    shown: range,
    greedy: bool | None,
) -> Watched:
    config = trainer.config
    powers: list[float] = []
    total, step, ended = 0.0, 0, False

    def show(picture: Image) -> None:
        caption = f"{config.model}   step {step}   reward {total:g}   power {powers[-1]:.4g}"
        film.add(with_power(picture, caption, powers, len(shown)))

    player = Player(
        trainer.model,
        scene.env,
        greedy=config.greedy if greedy is None else greedy,
        generator=stream(seed, "watch"),
    )
    with player:
        player.envs.start(seed)
        scene.started(seed)
        while step + 1 < shown.stop and not ended:
            step += 1
            picture = scene.picture() if step in shown else None
            power, (reward, terminated, truncated, _) = player.step()
            scene.stepped(player.action, bool(reward[0]))
            if picture is not None:
                powers.append(float(power[0]))
                show(picture)
            total += float(reward[0])
            ended = bool(terminated[0] or truncated[0])
        if not powers:
            raise ConfigError(f"start: the episode ended after {step} steps, before {shown.start}")
        if ended and scene.shows_the_end:
            for _ in range(round(film.fps)):  # a second, to read it
                show(scene.picture())
    return Watched(str(film.path), len(powers), total, float(np.mean(powers)), ended)


class Film:
    """A GIF or MP4 that grows frame by frame, and appears under its name when it is complete."""

    def __init__(self, path: Path, fps: float) -> None:
        if not 0 < fps <= 1000:
            raise ConfigError(f"fps must be between 0 and 1000, not {fps}")
        imageio = need("imageio.v2", extra="rl")
        self.path = path
        self.fps = fps
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
