"""The example trains along the front between accuracy and power."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "energy_front.py"


@pytest.mark.parametrize("model", ["stpnr", "lstm"])
def test_power_falls_with_beta(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    front = runpy.run_path(str(EXAMPLE))["front"]
    points = front(model, 8, [0.0, 0.03, 0.3], first=40, more=60, lr=0.003, seed=0)
    assert [beta for beta, _, _ in points] == [0.0, 0.03, 0.3]
    powers = [power for _, _, power in points]
    assert powers[0] > powers[1] > powers[2] > 0
    assert capsys.readouterr().out.count("%") == 3
