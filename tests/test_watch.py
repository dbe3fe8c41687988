"""Recordings: the right file with the right frames, and what cannot be recorded."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("imageio")

import imageio.v3 as iio

from stpn import experiments, scenes, watch
from stpn._extras import MissingExtra
from stpn.cli import main
from stpn.errors import ConfigError, RunError
from stpn.tasks import pong
from stpn.tasks.agents import AgentTask
from stpn.tasks.maze import Maze, MazeVectorEnv
from stpn.tasks.maze.scene import MazeScene
from stpn.training import session
from stpn.training.evaluation import play
from stpn.training.trainer import stream


def train(root: Path, task: str, **settings: Any) -> Path:
    """A run of one update."""
    config = experiments.default_config(task, hidden_size=5, num_envs=2, **settings)
    return session.start(config, root).run.path


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    return train(root, "maze", iterations=1, eval_episodes=2, final_episodes=2)


def test_a_whole_episode_of_the_maze(maze: Path, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    watched = watch.record(maze, tmp_path / "episode.mp4", seed=3)
    assert (watched.steps, watched.whole) == (200, True)
    assert ffmpeg.count_frames_and_secs(watched.path)[0] == 200
    assert list(tmp_path.iterdir()) == [tmp_path / "episode.mp4"]  # nothing is left over
    with session.restored(maze) as trainer:
        played = play(
            trainer.model,
            trainer.make_env(1),
            1,
            seed=3,
            generator=stream(3, "watch"),
            greedy=False,
        )
    assert watched.reward == played.rewards[0]
    assert watched.power == pytest.approx(played.power, rel=1e-5)


def test_the_path_follows_the_agent_and_starts_again_at_a_reward() -> None:
    scene = MazeScene(MazeVectorEnv(1))
    scene.env.reset(seed=0)
    scene.started(0)
    rng = np.random.default_rng(0)
    rewards = 0
    for _ in range(600):
        action = rng.integers(4, size=1)
        _, reward, *_ = scene.env.step(action)
        scene.stepped(action, bool(reward[0]))
        assert scene._path[-1] == scene.env.cell[0]
        if reward[0]:
            rewards += 1
            assert len(scene._path) == 1
    assert rewards > 0


def test_the_chart_grows_and_marks_the_present() -> None:
    picture = np.zeros((100, 400, 3), dtype=np.uint8)
    frames = [
        watch.with_power(picture, "text", [1.0, 3.0, 2.0][:count], steps=10) for count in (1, 2, 3)
    ]
    chart = [frame[-70:] for frame in frames]
    present = [(part == watch._NOW).all(-1).sum() for part in chart]
    past = [(part == watch._BARS).all(-1).sum() for part in chart]
    assert present[1] > present[2] > 0  # 3 is taller than 2
    assert past[0] == 0
    assert past[2] > past[1] > 0
    assert np.array_equal(frames[0][26:126, :400], picture)


def test_only_the_first_steps(maze: Path, tmp_path: Path) -> None:
    watched = watch.record(maze, tmp_path / "short.gif", steps=12, greedy=True)
    assert (watched.steps, watched.whole) == (12, False)
    # 13 cells of 32 pixels, a line of text, the chart
    assert iio.imread(watched.path).shape == (12, 518, 416, 3)


def unlike(a: Any, b: Any) -> float:
    """Part of the field's pixels that differ."""
    field = slice(120, 430)
    return (np.abs(a[field].astype(int) - b[field]) > 30).any(-1).mean()


def test_pong_in_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    short = functools.partial(pong.vector_env, max_num_frames_per_episode=400)
    monkeypatch.setattr(pong, "vector_env", short)  # 100 steps
    path = train(tmp_path, "pong", num_steps=4, steps=8, eval_episodes=1, final_episodes=1)
    watched = watch.record(path, tmp_path / "pong.gif", steps=40, fps=10)
    frames = iio.imread(watched.path)
    assert len(frames) == 40
    assert frames.shape[1] > 2 * pong.SCREEN[0]
    game = frames[:, 40:400]
    assert (game.max(-1) > game.min(-1) + 30).any()  # not grey
    assert not np.array_equal(game[0], game[-1])

    end = watch.record(path, tmp_path / "end.gif", start=31, fps=10)
    assert (end.steps, end.whole) == (70, True)
    last = iio.imread(end.path)
    assert np.array_equal(last[:10, 40:400], game[30:40])
    # A second of how it ended, which GIF keeps as one picture: not of the game that would begin.
    assert len(last) == 71
    assert unlike(last[-1], last[-2]) < unlike(last[-1], frames[0])
    with pytest.raises(ConfigError, match="ended after 100 steps"):
        watch.record(path, tmp_path / "none.gif", start=1000)


def test_pendulum_drawn_by_mujoco(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    path = train(tmp_path, "pendulum", num_steps=16, steps=32, eval_episodes=1, final_episodes=1)
    try:
        watched = watch.record(path, tmp_path / "pendulum.gif", steps=5)
    except scenes.CannotDraw as error:
        assert not (tmp_path / "pendulum.gif").exists()
        pytest.skip(str(error))
    frames = iio.imread(watched.path)
    assert len(frames) == 5
    assert frames[:, 40:480].std() > 5


def test_a_picture_that_fails_is_explained(maze: Path, tmp_path: Path) -> None:
    class Blind(scenes.RenderedScene):
        def __init__(self) -> None:
            self._name, self._hint = "InvertedPendulum-v5", "; try EGL"
            self.env = self

        def render(self) -> None:
            raise RuntimeError("no OpenGL")

    with pytest.raises(scenes.CannotDraw, match=r"no OpenGL.*try EGL"):
        Blind().picture()


def test_misuse(maze: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.gif or \.mp4"):
        watch.record(maze, tmp_path / "episode.png")
    with pytest.raises(ConfigError, match="steps"):
        watch.record(maze, tmp_path / "episode.gif", steps=0)
    with pytest.raises(ConfigError, match="fps"):
        watch.record(maze, tmp_path / "episode.gif", fps=0)
    with pytest.raises(RunError, match="is not a run"):
        watch.record(tmp_path, tmp_path / "episode.gif")
    art = experiments.default_config(
        "art", epochs=1, train_size=8, validation_size=8, test_size=8, batch_size=8
    )
    path = session.start(art, tmp_path / "runs").run.path
    with pytest.raises(ConfigError, match="art has no episodes"):
        watch.record(path, tmp_path / "episode.gif")
    assert not list(tmp_path.glob("*.gif"))


def test_missing_extra(maze: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio.v2", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[rl\]'"):
        watch.record(maze, tmp_path / "episode.gif")


def test_command(maze: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(maze), "--steps", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(maze / "episode.gif")
    assert told["steps"] == 5
    assert (maze / "episode.gif").exists()
    assert main(["watch", str(maze), "--steps", "5"]) == 0
    assert "5 steps (the episode went on), reward" in capsys.readouterr().out
    assert main(["watch", str(maze), "--steps", "5", "--greedy"]) == 0
    assert main(["watch", str(maze), "--steps", "5", "--no-greedy"]) == 0


def test_a_task_without_a_picture_is_told(maze: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maze, "scene", AgentTask.scene)
    with pytest.raises(ConfigError, match="maze does not say how it is drawn"):
        watch.record(maze, maze / "episode.gif")


def test_a_network_of_the_package_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "maze-stpnr", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == "maze-stpnr.gif"
    assert told["reward"] >= 50  # untrained, nine episodes of ten earn less than 20
    assert (tmp_path / "maze-stpnr.gif").exists()
    assert main(["watch", "maze-stpn"]) == 1
    assert "has that name (did you mean maze-stpnr?); `stpn list`" in capsys.readouterr().err
