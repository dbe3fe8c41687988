"""The example of a core of one's own, from outside the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_core.py"
TINY = ("--train-size", "256", "--validation-size", "64", "--test-size", "64", "--threads", "1")


def test_it_is_checked_trained_and_known_to_other_commands(
    python: Callable[..., str], tmp_path: Path
) -> None:
    said = python(EXAMPLE, "--epochs", "2", "--core", "use=0.25", *TINY)
    assert "tiring keeps what every core promises" in said
    path = tmp_path / "runs/art/tiring/seed0"
    config = json.loads((path / "config.json").read_bytes())
    assert config["core"] == ["use=0.25"]
    summary = json.loads((path / "summary.json").read_bytes())
    assert summary["done"] == 2
    assert summary["power"] > 0
    (tmp_path / "own_core.py").symlink_to(EXAMPLE)
    code = f"from stpn.cli import main; main(['list']); exit(main(['eval', {str(path)!r}]))"
    assert "\ntiring " in python("-c", code, STPN_PLUGINS="own_core")
