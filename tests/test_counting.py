"""`stpn.flops` beside counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stpn

INPUTS, HIDDEN = 3, 4
ROW = INPUTS + HIDDEN


def plastic(rows: int, columns: int) -> int:
    """W + F (1), its norm (2), division by it (1), times u (2); then h outer u (1), gamma (1),
    F / n (1), lambda (1), sum (1): 11 a synapse. For each row: + eps, + bias."""
    return 11 * rows * columns + 2 * rows


BY_HAND = {
    "stpnr": plastic(HIDDEN, ROW) + HIDDEN,  # tanh
    "stpnf": plastic(HIDDEN, INPUTS) + HIDDEN,
    # the gates; f * c + i * g, tanh of it, o times that
    "stpnl": plastic(4 * HIDDEN, ROW) + 4 * HIDDEN + 3 * HIDDEN + 2 * HIDDEN,
    # two products with bias, their sum, and the same
    "lstm": 2 * 4 * HIDDEN * ROW + 4 * HIDDEN + 4 * HIDDEN + 3 * HIDDEN + 2 * HIDDEN,
    # of r and z the sums and sigmoids; tanh(p + r * q); n + z * (h - n)
    "gru": 2 * 3 * HIDDEN * ROW + 4 * HIDDEN + 3 * HIDDEN + 3 * HIDDEN,
    "rnn": 2 * HIDDEN * ROW + 2 * HIDDEN,
    "mlp": 2 * HIDDEN * INPUTS + HIDDEN,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_step_is_what_one_counts_by_hand(name: str) -> None:
    core = stpn.build(name, INPUTS, HIDDEN, batch_first=True)
    count = stpn.flops(core, torch.randn(2, 5, INPUTS))
    assert count.steps == 10
    assert count.per_step == BY_HAND[name]


@pytest.mark.parametrize("name", stpn.models())
def test_every_core_is_counted_and_grows_with_its_steps(name: str) -> None:
    core = stpn.build(name, INPUTS, HIDDEN, batch_first=True, num_layers=2)
    few, more, most = (stpn.flops(core, torch.randn(2, t, INPUTS)).total for t in (2, 4, 6))
    assert most - more == more - few > 0
    assert stpn.flops(core, torch.randn(2, 4, INPUTS)).uncounted == ()


def test_the_plastic_update_is_included() -> None:
    core, x = stpn.STPNr(INPUTS, HIDDEN, batch_first=True), torch.randn(1, 1, INPUTS)
    whole = stpn.flops(core, x).total
    with stpn.frozen_plasticity(core):
        assert whole - stpn.flops(core, x).total == 5 * HIDDEN * ROW


def test_a_model_by_its_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(6, INPUTS), nn.ReLU())
            self.core = stpn.STPNf(INPUTS, HIDDEN, batch_first=True)
            self.norm = nn.LayerNorm(HIDDEN)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.core(self.encoder(x))[0])

    count = stpn.flops(Net(), torch.randn(2, 5, 6))
    assert count.steps == 10
    assert count.by_module["encoder.0"] == 10 * 2 * 6 * INPUTS
    assert count.by_module["encoder"] == count.by_module["encoder.0"] + 10 * INPUTS
    assert count.by_module["core"] == 10 * BY_HAND["stpnf"]
    parts = ("encoder", "core", "norm")
    assert count.by_module[""] == count.total == sum(count.by_module[name] for name in parts)
    assert count.by_module["norm"] > 5 * 10 * HIDDEN
    assert "FLOPs a step" in str(count)
    assert str(count).endswith(f"norm  {count.by_module['norm']:,}")


def test_an_operation_without_a_rule_is_named() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.qr(x)[1]

    count = stpn.flops(Spectrum(), torch.randn(3, 3))
    assert count.total == 0
    assert count.uncounted == ("aten.linalg_qr",)
    assert "not counted" in str(count)


def test_the_model_is_left_as_it_was() -> None:
    core = stpn.STPNr(INPUTS, HIDDEN)
    stpn.flops(core, torch.randn(2, 5, INPUTS))
    assert not core._forward_pre_hooks
    with pytest.raises(TypeError, match="expected a module"):
        stpn.flops(core.forward, torch.randn(2, 5, INPUTS))  # type: ignore[arg-type]
