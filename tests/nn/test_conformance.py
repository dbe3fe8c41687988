"""Every core of the list keeps the promises that `stpn.testing` checks, and they can be broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stpn
from stpn.nn import STPNr, STPNState
from stpn.nn.base import Parameters
from stpn.testing import CHECKS, check_core

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dropout acts between layers"),
]


@pytest.mark.parametrize(
    "check",
    [pytest.param(c, marks=pytest.mark.slow) if c == "compile" else c for c in CHECKS],
)
@pytest.mark.parametrize("name", stpn.models())
def test_core(name: str, check: str) -> None:
    check_core(name, only=[check])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stpnr", {"norm": "post", "clamp": 0.5, "plastic": "input"}),
        ("stpnl", {"norm": None, "stp": "neuron", "plastic": "hidden"}),
        ("stpnf", {"norm_scale": True, "norm_over": "layer", "rule": "oja", "bias": False}),
        ("fastweights", {"steps": 2}),
        ("hebbff", {"constraint": "clipped", "bias": False}),
        ("rnn", {"nonlinearity": "relu", "bias": False}),
        ("stpnr", {"associate": "new", "decay": "after", "train_lambda": False}),
        ("stpnl", {"associate": "new", "plastic_bias": True, "norm": "post"}),
        ("stpnf", {"plastic_bias": True, "plastic": "input", "train_gamma": False}),
        ("stpnr", {"layer_norm": True, "norm": "f"}),
        ("stpnl", {"layer_norm": True}),
        ("rnn", {"normalize": True}),
        ("rnn", {"layer_norm": True}),
        ("lstm", {"normalize": True, "layer_norm": True}),
        ("gru", {"normalize": True}),
        ("gru", {"layer_norm": True, "bias": False}),
        ("mlp", {"normalize": True}),
        ("modplast", {"normalize": True}),
        ("fastweights", {"normalize": True}),
        ("hebbff", {"normalize": True, "constraint": "hebbian"}),
    ],
)
def test_core_with_options(name: str, options: dict[str, Any]) -> None:
    check_core(name, skip=["compile"], **options)


class Own(STPNr):
    """STPNr in plain PyTorch."""

    def advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
        u = torch.cat([x, state.h], 1)  # (B, D)
        n = (p["weight"] + state.f).norm(dim=2, keepdim=True) + 1e-16
        g = (p["weight"] + state.f) / n  # (B, H, D)
        h = torch.tanh(torch.einsum("bij,bj->bi", g, u) + p["bias"])
        f = p["gamma"] * torch.einsum("bi,bj->bij", h, u) + p["lambda"] * state.f / n
        return h, STPNState(h, state.f if self.frozen else f)

    run = stpn.nn.RecurrentCore.run
    run_in_place = stpn.nn.RecurrentCore.run_in_place
    bind = stpn.nn.RecurrentCore.bind


def test_a_core_by_one_step_is_a_core() -> None:
    check_core(Own, skip=["compile"])
    own, usual = Own(5, 4, batch_first=True), STPNr(5, 4, batch_first=True)
    usual.load_state_dict(own.state_dict())
    x = torch.randn(3, 6, 5)
    torch.testing.assert_close(own(x), usual(x))


@pytest.mark.slow
def test_a_core_by_one_step_compiles() -> None:
    check_core(Own, only=["compile"])


class LeaksState(Own):
    def run(self, x: Tensor, state: Any, p: Parameters, reset: Any, *rest: Any) -> Any:
        return super().run(x, state, p, None, *rest)

    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


class IgnoresLengths(Own):
    def run(self, x: Tensor, state: Any, p: Parameters, reset: Any, lengths: Any, w: Any) -> Any:
        return super().run(x, state, p, reset, None, w)

    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


class NeverFrozen(Own):
    frozen = property(lambda self: False)


class StepsTwice(Own):
    def run_in_place(self, x: Tensor, state: Any, p: Parameters, w: Any) -> Any:
        super().run_in_place(x, state, p, w)
        return super().run_in_place(x, state, p, w)

    bind = stpn.nn.RecurrentCore.bind


class CountsTwice(Own):
    def run(self, *call: Any) -> Any:
        y, state, power = super().run(*call)
        return y, state, None if power is None else 2 * power

    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


class OverwritesState(Own):
    def run(self, x: Tensor, state: Any, *call: Any) -> Any:
        y, new, power = super().run(x, state, *call)
        with torch.no_grad():
            state.f.set_(new.f.detach().clone()) if state.f.is_contiguous() else None
        return y, new, power

    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


class DeadParameter(Own):
    def advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
        return super().advance(x, state, {**p, "bias": p["bias"].detach()})

    run = stpn.nn.RecurrentCore.run
    run_in_place, bind = stpn.nn.RecurrentCore.run_in_place, stpn.nn.RecurrentCore.bind


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (LeaksState, "resets", "a new sequence begins"),
        (IgnoresLengths, "lengths", "each of its sequences alone"),
        (NeverFrozen, "frozen", "holds the short-term weights still"),
        (StepsTwice, "stream", "Steps, steps in place and bound steps are the sequence"),
        (CountsTwice, "power", "the sum of"),
        (OverwritesState, "state", "stays as it was"),
        (DeadParameter, "gradients", "no gradient reaches bias_l0"),
    ],
)
def test_a_broken_promise_is_named(broken: type, check: str, words: str) -> None:
    with pytest.raises(AssertionError, match=rf"{broken.__name__}, {check}: (.|\n)*{words}"):
        check_core(broken, only=[check])


def test_unknown_checks_are_named() -> None:
    with pytest.raises(ValueError, match=r"check: expected one of shapes, state.* got 'speed'"):
        check_core(STPNr, only=["speed"])
