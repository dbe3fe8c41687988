"""What several files of the project say of the same thing: versions of Python, torch and tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

if not (ROOT / ".github").is_dir():
    pytest.skip("tests without the repository around them", allow_module_level=True)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def found(pattern: str, text: str) -> list[str]:
    matches = re.findall(pattern, text, re.MULTILINE)
    assert matches, pattern
    return matches


def test_pre_commit_has_the_versions_of_the_check() -> None:
    hooks = dict(found(r"repo: \S+/(\S+)\n +rev: v(\S+)", read(".pre-commit-config.yaml")))
    pinned = dict(found(r'^  "(ruff|clang-format)==(\S+)"', PROJECT))
    assert hooks["ruff-pre-commit"] == pinned["ruff"]
    assert hooks["mirrors-clang-format"] == pinned["clang-format"]


def test_pythons_are_the_same_everywhere() -> None:
    classified = found(r"Python :: (3\.\d+)", PROJECT)
    (oldest,) = found(r'requires-python = ">=(\S+)"', PROJECT)
    built = [f"3.{minor}" for minor in found(r'"cp3(\d+)-\*"', PROJECT)]
    assert classified == built
    assert classified[0] == oldest
    # the project's own check runs on the one that the matrix leaves out
    tested = set(found(r'"(3\.\d+)"', read(".github/workflows/ci.yml")))
    assert tested == set(classified)


def test_the_oldest_torch_and_the_pinned_one_are_tested() -> None:
    (oldest,) = found(r'"torch>=(\S+)"', PROJECT)
    (pinned,) = found(r"^torch==(\S+)", read("constraints.txt"))
    tested = set(found(r"torch: \[?\"(\S+?)\"", read(".github/workflows/ci.yml")))
    assert tested == {f"{oldest}.0", pinned}
    assert numbers(oldest) < numbers(pinned)


def test_a_wheel_is_tried_with_its_kernels() -> None:
    """Where they do not compile the build goes on without them, for users; a release must not."""
    (command,) = found(r"^test-command = (.*)", PROJECT)
    assert "stpn._native" in command
