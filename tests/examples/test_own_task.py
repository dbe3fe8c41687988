"""The example of a task of one's own, from outside the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(directory: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
    )


def test_it_learns_and_every_command_knows_it(tmp_path: Path) -> None:
    done = run(tmp_path, str(EXAMPLES / "own_task.py"), "--iterations", "60", "--delay", "3")
    assert done.returncode == 0, done.stderr
    path = "runs/recall/stpnr/seed0"
    summary = json.loads((tmp_path / path / "summary.json").read_bytes())
    assert summary["proficiency"] > 90

    (tmp_path / "own_task.py").symlink_to(EXAMPLES / "own_task.py")
    known = {"STPN_PLUGINS": "own_task"}
    commands = [
        ["resume", path, "--total", "61"],
        ["eval", path],
        ["show", path],
        ["list"],
        ["list", "--runs", "runs"],
        ["sweep", "recall", "--models", "lstm", "--seeds", "1", "--iterations", "2"],
    ]
    code = "from stpn.cli import main; " + "".join(f"assert main({c}) == 0; " for c in commands)
    done = run(tmp_path, "-c", code + f"main(['watch', {path!r}])", **known)
    assert done.returncode == 0, done.stderr
    assert "recall  Delayed recall" in done.stdout
    assert "recall has no episodes to watch" in done.stderr
    done = run(tmp_path, "-m", "stpn", "eval", path)
    assert "unknown task 'recall'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_report_shows_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(tmp_path, str(EXAMPLES / "own_task.py"), "--iterations", "2")
    assert done.returncode == 0, done.stderr
    (tmp_path / "own_task.py").symlink_to(EXAMPLES / "own_task.py")
    done = run(tmp_path, "-m", "stpn", "report", "runs", STPN_PLUGINS="own_task")
    assert done.returncode == 0, done.stderr
    assert "recall" in (tmp_path / "report" / "index.html").read_text()
