"""The example that changes the STPN in one respect trains each of its variants."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from stpn import STPNr
from stpn.energy import EnergyMeter
from stpn.testing import check_core

EXAMPLE = Path(__file__).parents[2] / "examples" / "art_variants.py"
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


def test_new_h_keeps_its_rule_in_streams(example: dict[str, Any]) -> None:
    """Sequences, steps, steps in place and bound steps, with resets and lengths."""
    core = example["NewAssociation"](5, 4, batch_first=True)
    with torch.no_grad():
        core.gamma_l0.fill_(0.5)
        x, reset = torch.randn(3, 6, 5), torch.rand(3, 6) > 0.6
        y, (final,) = core(x, None, reset)
        state, streamed, now = None, core.initial_state(3), torch.zeros(3, 5)
        bound_state = core.initial_state(3)
        bound = core.bound_step(now, bound_state)
        for t in range(6):
            h, state = core.step(x[:, t], state, reset[:, t])
            torch.testing.assert_close(h, y[:, t])
            h, _ = core.step(x[:, t], streamed, reset[:, t], inplace=True)
            torch.testing.assert_close(h, y[:, t])
            now.copy_(x[:, t])
            torch.testing.assert_close(bound(reset[:, t]), y[:, t])
        for last in (state, streamed, bound_state):
            torch.testing.assert_close(last, (final,))
        lengths = [2, 6, 1]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_y, (ends,) = core(packed)
        padded, _ = pad_packed_sequence(packed_y, batch_first=True)
        for b, n in enumerate(lengths):
            alone, (end,) = core(x[b, :n])
            torch.testing.assert_close(padded[b, :n], alone)
            torch.testing.assert_close((ends.h[b], ends.f[b]), (end.h, end.f))


def test_new_h_keeps_what_every_core_promises(example: dict[str, Any]) -> None:
    check_core(example["NewAssociation"], skip=["compile"])
