"""A subclass that changes the rule of a core changes it everywhere, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stpn.nn import RecurrentCore, STPNr, STPNState
from stpn.nn.base import Parameters


@pytest.mark.parametrize(("hook", "stale"), [("advance", "run"), ("run", "run_in_place")])
def test_half_a_change_is_refused(hook: str, stale: str) -> None:
    with pytest.raises(TypeError, match=rf"^Half changes {hook}, but inherits {stale} of _Neurons"):
        type("Half", (STPNr,), {hook: lambda self, *args: None})


def test_a_mixin_that_changes_half_is_refused() -> None:
    class Mixin:
        def run(self, *args: object) -> None: ...

    with pytest.raises(TypeError, match="inherits run_in_place of _Neurons"):
        type("Half", (Mixin, STPNr), {})


def test_a_faster_form_alone_may_change() -> None:
    type("Faster", (STPNr,), {"run_in_place": lambda *a: None, "bind": lambda *a: None})
    type("Other", (STPNr,), {"operands": lambda self, p: None})


def test_what_follows_the_new_rule_is_taken() -> None:
    class Still(STPNr):
        """Answers its bias, whatever it sees."""

        def advance(self, x: Tensor, state: STPNState, p: Parameters) -> tuple[Tensor, STPNState]:
            h = p["bias"].expand(len(x), -1)
            return h, STPNState(h, state.f)

        run = RecurrentCore.run
        run_in_place = RecurrentCore.run_in_place
        bind = RecurrentCore.bind

    core = Still(4, 3)
    x = torch.randn(5, 2, 4)
    with torch.no_grad():
        for y in (core(x)[0][0], core.step(x[0])[0], core.step(x[0], inplace=True)[0]):
            assert torch.equal(y, core.bias_l0.expand(2, 3))
