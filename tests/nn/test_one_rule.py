"""A subclass that changes the rule of a core changes it everywhere, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stpn.nn import STPNr, STPNState
from stpn.nn.core import RecurrentCore
from stpn.nn.recurrence import Recurrence

HOOKS = ("_advance", "_run", "_step", "_bound_kernel")


@pytest.mark.parametrize(("hook", "stale"), [("_advance", "_run"), ("_run", "_step")])
def test_half_a_change_is_refused(hook: str, stale: str) -> None:
    with pytest.raises(TypeError, match=rf"^Half changes {hook}, but inherits {stale} of _Neurons"):
        type("Half", (STPNr,), {hook: lambda self, *args: None})


def test_a_mixin_that_changes_half_is_refused() -> None:
    class Mixin:
        def _run(self, *args: object) -> None: ...

    with pytest.raises(TypeError, match="inherits _step of _Neurons"):
        type("Half", (Mixin, STPNr), {})


def test_a_faster_form_alone_may_change() -> None:
    type("Faster", (STPNr,), {"_step": lambda self, *args: None, "_bound_kernel": lambda *a: None})
    type("Other", (STPNr,), {"_tensors": lambda self, suffix: None})


def test_what_follows_the_new_rule_is_taken() -> None:
    class Still(STPNr):
        """Answers its bias, whatever it sees."""

        def _advance(self, x: Tensor, state: STPNState, suffix: str) -> tuple[Tensor, STPNState]:
            h = self._parameter("bias", suffix).expand(len(x), -1)
            return h, STPNState(h, state.f)

        _run, _step, _bound_kernel = (
            Recurrence._run,
            Recurrence._step,
            Recurrence._bound_kernel,
        )

    core = Still(4, 3)
    assert isinstance(core, RecurrentCore)
    x = torch.randn(5, 2, 4)
    with torch.no_grad():
        for y in (core(x)[0][0], core.step(x[0])[0], core.step(x[0], inplace=True)[0]):
            assert torch.equal(y, core.bias_l0.expand(2, 3))
