"""What a core tells its power observer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from stpn.nn import STPNf, STPNl, STPNr, STPNrCell
from stpn.plasticity import trace

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 3
Told = dict[str, tuple[Tensor, Tensor | None]]


def observe(core, ignored=()) -> Told:
    told: Told = {}
    core.observe_power(
        lambda power, lengths, suffix: told.update({suffix: (power, lengths)}), ignored=ignored
    )
    return told


def test_observers_come_and_go() -> None:
    layer, x = STPNr(INPUTS, HIDDEN), torch.randn(STEPS, BATCH, INPUTS)
    first, second = [], []
    end_first = layer.observe_power(lambda *told: first.append(told), graph=False)
    assert not layer.power_graph
    end_second = layer.observe_power(lambda *told: second.append(told))
    assert layer.power_graph
    layer(x)
    with pytest.raises(ValueError, match=r"ignore_inputs: expected \[\] of this STPNr.* got \[1\]"):
        layer.observe_power(lambda *told: None, ignored=[1])
    end_second()
    layer(x)
    end_first()
    layer(x)
    assert (len(first), len(second)) == (2, 1)
    assert not {name for name in vars(layer) if "power" in name or "observ" in name}


@pytest.mark.parametrize("kind", [STPNf, STPNr, STPNl])
def test_power_of_every_layer_and_direction_in_time(kind) -> None:
    layer = kind(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(BATCH, STEPS, INPUTS)
    y, _ = layer(x)
    told = observe(layer)
    observed_y, _ = layer(x)
    assert torch.equal(observed_y, y)
    assert list(told) == ["_l0", "_l0_reverse", "_l1", "_l1_reverse"]
    for (power, lengths), traced in zip(told.values(), trace(layer, x).layers, strict=True):
        torch.testing.assert_close(power, traced.power)
        assert lengths is None
        assert power.requires_grad


def test_ignored_inputs_cost_nothing() -> None:
    layer, x = STPNr(INPUTS, HIDDEN, num_layers=2, batch_first=True), torch.randn(3, 5, INPUTS)
    told = observe(layer, ignored=(1, 3))
    layer(x)
    seen = trace(layer, x)
    u = torch.cat([x, previous(seen.layers[0].h)], -1)
    u[..., [1, 3]] = 0
    expected = (u.square().unsqueeze(-2) * seen.layers[0].g.abs()).sum((-2, -1))
    torch.testing.assert_close(told["_l0"][0], expected)
    torch.testing.assert_close(told["_l1"][0], seen.layers[1].power)  # of the first layer only


def previous(h: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)


def test_past_the_end_there_is_no_power() -> None:
    layer = STPNr(INPUTS, HIDDEN, bidirectional=True)
    x, lengths = torch.randn(BATCH, STEPS, INPUTS), [2, 5, 1]
    told = observe(layer)
    layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    for k, (power, told_lengths) in enumerate(told.values()):
        assert told_lengths.tolist() == lengths
        for b, n in enumerate(lengths):
            torch.testing.assert_close(power[b, :n], trace(layer, x[b, :n]).layers[k].power)
            assert not power[b, n:].any()


@pytest.mark.parametrize("grad", [True, False])
def test_power_of_a_step(grad) -> None:
    cell, layer = STPNrCell(INPUTS, HIDDEN), STPNr(INPUTS, HIDDEN, batch_first=True)
    cell.load_state_dict(
        {
            n.removesuffix("_l0").replace("lambda", "lambda_"): v
            for n, v in layer.state_dict().items()
        }
    )
    x = torch.randn(BATCH, STEPS, INPUTS)
    expected = trace(layer, x).power
    of_cell, of_layer = observe(cell), observe(layer)
    state, stack = None, None
    with torch.set_grad_enabled(grad):
        for t in range(STEPS):
            _, state = cell(x[:, t], state)
            _, stack = layer.step(x[:, t], stack)
            torch.testing.assert_close(of_cell[""][0], expected[:, t : t + 1])
            torch.testing.assert_close(of_layer["_l0"][0], expected[:, t : t + 1])
