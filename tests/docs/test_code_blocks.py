"""Every block of Python in README and docs runs, page by page; commands in them exist.

A block below `<!-- not run: why -->` is only compiled, and what it imports from here is looked up.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pages import NAMES, ROOT, Block, blocks

from stpn import cores, experiments
from stpn.cli import COMMANDS
from stpn.tasks import registry

WITH_CODE = [
    pytest.param(page, marks=pytest.mark.slow) if page == "docs/exports.md" else page
    for page in NAMES
    if blocks(page, "python")
]
NEEDS = {
    "docs/exports.md": ("onnx", "onnxscript", "onnxruntime"),
    "docs/scaling.md": ("ray",),
    "docs/tutorials/agent.md": ("gymnasium",),
}


@pytest.mark.parametrize("page", WITH_CODE)
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(page, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cores, "_cores", dict(cores._cores))  # what a page registers goes
    torch.manual_seed(0)
    module = ModuleType("page")  # as a file of its own would be, so that its classes can be pickled
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python"):
        code = compile("\n" * (block.line - 1) + block.code, page, "exec", dont_inherit=True)
        if block.why is None:
            exec(code, vars(module))
        else:
            assert_imports_exist(block)


def assert_imports_exist(block: Block) -> None:
    """What it imports from here is defined there; without importing what that needs."""
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stpn":
            file = ROOT / "src" / f"{(node.module or '').replace('.', '/')}.py"
            text = file.read_text(encoding="utf-8")
            for alias in node.names:
                defined = rf"^(?:def|class) {alias.name}\b"
                assert re.search(defined, text, re.MULTILINE), f"{block}: {alias.name}"


def test_the_blocks_of_the_readme_run_each_by_itself() -> None:
    for block in blocks("README.md", "python"):
        exec(compile(block.code, str(block), "exec", dont_inherit=True), {})


def test_little_is_left_out() -> None:
    """A mark is for what needs hours or another machine, not for what broke."""
    skipped = [b for page in NAMES for b in blocks(page, "python") if b.why is not None]
    assert len(skipped) <= 6, [str(block) for block in skipped]


def commands() -> list[tuple[str, str]]:
    """Every `stpn ...` that a page tells to type, with its place."""
    found = []
    for page in NAMES:
        if page == "CHANGELOG.md":  # names of the past stay as they were
            continue
        for block in blocks(page, "sh"):
            joined = block.code.replace("\\\n", " ")
            found += [
                (str(block), line) for line in re.findall(r"(?:^|[ /])stpn ([a-z].*)", joined)
            ]
        text = (ROOT / page).read_text(encoding="utf-8")
        found += [(page, command) for command in re.findall(r"`stpn ([a-z][^`\n]*)`", text)]
    return found


def test_commands_exist() -> None:
    assert len(commands()) > 50
    for place, text in commands():
        assert shlex.split(text.partition("#")[0])[0] in COMMANDS, f"{place}: stpn {text}"


def test_each_line_of_the_papers_grid_is_a_sweep_of_so_many_runs() -> None:
    text = (ROOT / "docs/tutorials/reproduce.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.+\| `stpn sweep (.+)` \| (\d+) \|", text, re.MULTILINE)
    assert len(rows) == 7
    covered = set()
    for command, runs in rows:
        parser = argparse.ArgumentParser()
        parser.add_argument("tasks", nargs="+")
        parser.add_argument("--models", nargs="+", default=[])
        parser.add_argument("--seeds", type=int)
        parser.add_argument("--jobs", type=int)
        parser.add_argument("--preset")
        asked = parser.parse_args(shlex.split(command))
        count = 0
        for name in asked.tasks:
            task = experiments.get(name)
            models = asked.models or task.models
            assert set(models) <= set(task.models), command
            assert asked.seeds == task.seeds, command
            assert asked.preset is None or asked.preset in registry.get(name).presets, command
            count += len(models) * asked.seeds
            covered |= {(name, model) for model in models}
        assert count == int(runs), command
    tasks = [experiments.get(name) for name in {name for name, _ in covered}]
    assert covered == {(task.name, model) for task in tasks for model in task.models}
