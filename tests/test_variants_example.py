"""The example that changes the STPN in one respect trains each of its variants."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from stpn import STPNr
from stpn.energy import EnergyMeter

EXAMPLE = Path(__file__).parents[1] / "examples" / "art_variants.py"
TINY = {"train_size": 256, "validation_size": 64, "test_size": 10}


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@pytest.mark.parametrize(
    ("variant", "model", "clamp"),
    [
        ("no-bias", "stpnf", None),
        ("new-h", "stpnr", None),
        ("new-h", "ustpnr", None),
        ("none", "ustpnr", None),
        ("post", "stpnr", 1.0),
    ],
)
def test_trains(example: dict[str, Any], variant: str, model: str, clamp: float | None) -> None:
    rows = example["train"](variant, model, 2, clamp, **TINY)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["power"] > 0


def test_new_h_differs_from_the_second_association_on(example: dict[str, Any]) -> None:
    """The first step has no previous h to associate, the new one shows in the second."""
    changed = example["NewAssociation"](5, 4, batch_first=True)
    usual = STPNr(5, 4, batch_first=True)
    usual.load_state_dict(changed.state_dict())
    with torch.no_grad():
        for core in (changed, usual):
            core.gamma_l0.fill_(0.5)
        x = torch.randn(3, 4, 5)
        with EnergyMeter(changed) as ours, EnergyMeter(usual) as theirs:
            y, expected = changed(x)[0], usual(x)[0]
    torch.testing.assert_close(y[:, 0], expected[:, 0])
    assert not torch.allclose(y[:, 1], expected[:, 1])
    (power,), (usual_power,) = ours.per_step.values(), theirs.per_step.values()
    torch.testing.assert_close(power[0], usual_power[0])
