"""Cores of today: what their layers add to their recurrences, and what they cost."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import stpn
from stpn.nn.fast_weight_programmer import dpfp

NAMES = ("deltanet", "gateddeltanet", "fwp", "gla")


def test_a_deltanet_is_what_the_paper_says() -> None:
    """One head, step by step, from the parameters."""
    torch.manual_seed(0)
    core = stpn.build("deltanet", 6, 3, heads=1, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    y, _ = core(x)
    p = core.layer_parameters("_l0")
    raw = x[0] @ p["weight"].t()  # (T, 10): 3 q, 3 k, 3 v, beta
    memory = torch.zeros(3, 3, dtype=torch.float64)
    for t in range(9):
        mixed = sum(p["conv"][:, 3 - back] * raw[t - back, :9] for back in range(min(t, 3) + 1))
        q, k, v = functional.silu(mixed).chunk(3)
        q, k = q / (q.norm() ** 2 + 1e-6).sqrt(), k / (k.norm() ** 2 + 1e-6).sqrt()
        memory = memory + torch.sigmoid(raw[t, 9]) * torch.outer(v - memory @ k, k)
        o = functional.rms_norm(memory @ q, (3,), p["norm_weight"], eps=1e-6)
        torch.testing.assert_close(y[0, t], p["weight_out"] @ o + p["bias"])


def test_dpfp_is_products_of_rectified_neighbours_that_sum_to_one() -> None:
    found = dpfp(torch.tensor([2.0, 3.0, -1.0]), nu=2)
    r = [2.0, 3.0, 0.0, 0.0, 0.0, 1.0]
    raw = torch.tensor([r[i] * r[i - shift] for shift in (1, 2) for i in range(6)])
    torch.testing.assert_close(found, raw / (raw.sum() + 1e-6))


def test_gates_forget_and_frozen_memories_do_not_change() -> None:
    for name in NAMES:
        core = stpn.build(name, 5, 4, batch_first=True)
        _, (state,) = core(torch.randn(2, 6, 5))
        with stpn.frozen_plasticity(core):
            _, (after,) = core(torch.randn(2, 40, 5), (state,))
        assert torch.equal(after.s, state.s), name
        _, (after,) = core(torch.randn(2, 40, 5), (state,))
        assert not torch.allclose(after.s, state.s), name


@pytest.mark.parametrize("name", NAMES)
def test_power_is_that_of_every_synapse_that_transmits(name: str) -> None:
    """Without a convolution, one step: the projections see x and o, the memory sees q."""
    core = stpn.build(name, 5, 4, conv=1, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, 1, 5, dtype=torch.float64)
    seen = {}
    operands, rule = core.operands, core.rule

    def watched_operands(*arguments):
        seen["further"] = arguments[3]
        return operands(*arguments)

    def watched_rule(*arguments, **options):
        o, s, seen["read"] = rule(*arguments, **options)
        return o, s, seen["read"]

    core.operands, core.rule = watched_operands, watched_rule
    powers = []
    with torch.no_grad():
        core.weight_out_l0.fill_(0)  # what it costs is checked by its absence
        end = core.observe_power(lambda power, lengths, suffix: powers.append(power))
        core(x)
        end()
    expected = (x[0, 0].square() * core.weight_l0.abs()).sum() + seen["read"].sum()
    if name == "gla":
        expected = expected + (seen["further"].square() @ core.weight_gate_l0.abs().t()).sum()
    torch.testing.assert_close(powers[0].sum(), expected.detach())
    assert seen["read"] > 0


def test_the_size_of_a_state_is_what_one_sequence_keeps() -> None:
    for name in stpn.models():
        core = stpn.build(name, 5, 4, num_layers=2, bidirectional=True)
        state = core.initial_state(3)
        assert 3 * core.state_size == sum(value.numel() for layer in state for value in layer)
    assert stpn.build("lstm", 37, 9).state_size == 18
    assert stpn.build("stpnr", 37, 11).state_size == 11 + 11 * 48
    assert stpn.STPNrCell(37, 11).state_size == 11 + 11 * 48


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("deltanet", {"heads": 0}, "heads"),
        ("deltanet", {"head_size": 1}, "head_size"),
        ("gla", {"conv": 0}, "conv"),
        ("fwp", {"nu": 0}, "nu"),
        ("gradplast", {"clip": 0.0}, "clip"),
    ],
)
def test_options_that_cannot_work_are_named(name, options, said) -> None:
    with pytest.raises(ValueError, match=said):
        stpn.build(name, 5, 4, **options)
