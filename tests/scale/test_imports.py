"""Ray stays in its package, and out of the way until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stpn
from stpn.cli import COMMANDS

SOURCE = Path(stpn.__file__).parent
OUTSIDE = [path for path in SOURCE.rglob("*.py") if "scale" not in path.relative_to(SOURCE).parts]


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_else_imports_ray(path):
    """Nor the package around it, except inside a function."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        assert not any(name.split(".")[0] == "ray" for name in imported(node))
    for node in tree.body:
        assert not any(name.startswith("stpn.scale") for name in imported(node))


def test_commands_load_no_ray_and_what_finds_it_needs_none():
    """What parses flags and finds clusters must say that Ray is missing, so it cannot need it."""
    modules = ", ".join(home for home, _ in COMMANDS.values())
    code = f"import sys; import {modules}, stpn.training.session, stpn.training.reinforcement"
    code += "; assert not any(name.split('.')[0] == 'ray' for name in sys.modules)"
    code += "; sys.modules['ray'] = None; import stpn.scale.cluster, stpn.scale.space, "
    code += "stpn.scale.sweep, stpn.scale.worker, stpn.scale.data_parallel, stpn.scale.costs"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
