"""The public names, and what an import costs and says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stpn
from stpn.ops import backends


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", stpn.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(stpn, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(stpn.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body for alias in getattr(node, "names", ())}
    assert seen == set(stpn._HOME_OF)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="STPNx"):
        _ = stpn.STPNx


def test_import_alone_loads_no_torch() -> None:
    assert run("import sys, stpn; assert 'torch' not in sys.modules").returncode == 0


WITHOUT_THE_KERNELS = """
import sys, warnings
sys.modules["stpn._native"] = None  # as if it had not been built
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, stpn
    y, state = stpn.STPNr(3, 4)(torch.zeros(2, 1, 3))
    stpn.LSTM(3, 4)(torch.zeros(2, 1, 3))
assert y.shape == (2, 1, 4)
said = [str(w.message) for w in caught if "stpn" in str(w.message)]
assert len(said) == 1 and "plain PyTorch" in said[0], said
native, *_, reference = stpn.backends()
assert not native.usable and "compiler" in native.unusable() and reference.usable
try:
    stpn.use_backend("native")
except ValueError as error:
    assert "not usable" in str(error)
else:
    raise AssertionError
"""


def test_without_the_compiled_module_everything_runs_with_one_warning() -> None:
    result = run(WITHOUT_THE_KERNELS)
    assert result.returncode == 0, result.stderr


def test_the_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch, stpn; from stpn.ops import backends; print(backends.chosen())"
    assert run(code + "; stpn.STPNr(2, 2)", STPN_BACKEND="reference").stdout.strip() == "reference"
    monkeypatch.setenv("STPN_BACKEND", "cuda")
    with pytest.raises(ValueError, match="STPN_BACKEND: expected one of auto, native, triton, chu"):
        backends.choose_by_environment()
