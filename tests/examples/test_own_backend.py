"""The example of a backend from outside the package."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stpn
from stpn.ops import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_backend.py"


@pytest.fixture
def example() -> Iterator[dict[str, Any]]:
    before = {backend.name: backend for backend in stpn.backends()}
    order = registry._order
    yield runpy.run_path(str(EXAMPLE))
    registry._backends.clear()
    registry._backends.update(before)
    registry._order = order


def test_it_is_tried_before_the_specification_and_more_precise(example: dict[str, Any]) -> None:
    assert [backend.name for backend in stpn.backends()][-2:] == ["precise", "reference"]
    errors = example["errors"](steps=60)
    assert errors["precise"] < errors["reference"] / 3
    assert errors["precise"] < 1e-6


def test_what_it_cannot_do_is_an_error_when_it_is_asked_for(example: dict[str, Any]) -> None:
    layer = stpn.STPNr(3, 4, dtype=torch.float64)
    with stpn.use_backend("precise"):
        with pytest.raises(ValueError, match="'precise' cannot run this: float64 gains nothing"):
            layer(torch.zeros(2, 1, 3, dtype=torch.float64))
        with pytest.raises(ValueError, match="'precise' has no modplast"):
            stpn.ModPlast(3, 4)(torch.zeros(2, 1, 3))
