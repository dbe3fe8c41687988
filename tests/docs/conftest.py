"""The site, built once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs/_sphinx"))  # the scripts of the site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of the build is an error."""
    for package in ("sphinx", "furo", "myst_parser", "gymnasium"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(out)]
    built = subprocess.run(
        [*command, "-d", str(tmp_path_factory.mktemp("doctrees"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return out
