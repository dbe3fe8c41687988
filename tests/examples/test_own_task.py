"""The example of a task of one's own, from outside the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stpn.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"


@pytest.mark.slow
def test_it_learns_and_every_command_knows_it(
    python: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    python(EXAMPLE, "--iterations", "60", "--delay", "3")
    path = "runs/recall/stpnr/seed0"
    summary = json.loads((tmp_path / path / "summary.json").read_bytes())
    assert summary["proficiency"] > 90

    (tmp_path / "own_task.py").symlink_to(EXAMPLE)
    commands = [
        ["resume", path, "--total", "61"],
        ["eval", path],
        ["show", path],
        ["list"],
        ["sweep", "recall", "--models", "lstm", "--seeds", "1", "--iterations", "2"],
        ["list", "--runs", "runs"],
        ["report", "runs"],
    ]
    code = "from stpn.cli import main; " + "".join(f"assert main({c}) == 0; " for c in commands)
    said = python("-c", code + f"main(['watch', {path!r}])", STPN_PLUGINS="own_task")
    assert "recall  Delayed recall" in said
    assert said.count("finished") >= 2
    assert "recall has no episodes to watch" in said
    assert "recall" in (tmp_path / "report" / "index.html").read_text()

    assert main(["eval", str(tmp_path / path)]) == 2
    assert "unknown task 'recall'" in capsys.readouterr().err
