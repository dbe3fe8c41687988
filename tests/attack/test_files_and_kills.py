"""Damaged files and kills, with few cases."""

from __future__ import annotations

import pytest

from . import files, kills, run

__all__ = ["files", "kills"]  # imported for the attacks that they enter


@pytest.mark.slow
def test_no_damaged_file_ends_in_an_error_of_another_kind() -> None:
    report = run("files", cases=150, seed=0)
    assert not report.failures, str(report)
    assert report.outcomes["refused in a sentence"] > 50


@pytest.mark.slow
def test_killed_runs_end_as_if_nothing_had_happened() -> None:
    report = run("kills", cases=3, seed=0)
    assert not report.failures, str(report)
