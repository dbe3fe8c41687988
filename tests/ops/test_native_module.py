"""What the compiled module says of itself, and that it refuses what it cannot run."""

from __future__ import annotations

import pytest

_native = pytest.importorskip("stpn._native", reason="the kernels are not built")

Cell, Norm = _native.Cell, _native.Norm


@pytest.mark.parametrize(
    ("cell", "norm", "power", "expected"),
    [
        # A row has its norm and its pre-activation, with power its power; norm post also eff, F.u,
        # F.G and with power F.(sign(G) u^2).
        (Cell.plain, Norm.none, False, (0, 0)),
        (Cell.plain, Norm.none, True, (0, 0)),
        (Cell.plain, Norm.pre, False, (2, 0)),
        (Cell.plain, Norm.pre, True, (3, 0)),
        (Cell.plain, Norm.post, False, (5, 0)),
        (Cell.plain, Norm.post, True, (7, 0)),
        # Four rows a unit, and the gates with the cell state.
        (Cell.lstm, Norm.pre, False, (4 * 2 + 5, 0)),
        (Cell.lstm, Norm.post, True, (4 * 7 + 5, 0)),
        (Cell.modplast, Norm.none, True, (0, 1)),
        (Cell.fast_weights, Norm.none, False, (2, 0)),
    ],
)
def test_the_module_says_how_much_it_saves_of_a_step(cell, norm, power, expected) -> None:
    assert _native.record_size(cell, norm, power, is_double=False) == expected


@pytest.mark.parametrize("is_double", [0, 1])
@pytest.mark.parametrize("run", [_native.forward, _native.backward])
@pytest.mark.parametrize(
    ("name", "value"), [("cell", 4), ("cell", -1), ("norm", 3), ("norm", -1), ("activation", 3)]
)
def test_a_number_that_names_nothing_is_refused(run, name, value, is_double) -> None:
    call = _native.Call()
    call.T, call.is_double = 1, is_double
    setattr(call, name, value)
    with pytest.raises(ValueError, match=name):
        run(call)


@pytest.mark.parametrize("is_double", [0, 1])
@pytest.mark.parametrize("run", [_native.forward, _native.backward])
def test_records_that_are_too_small_are_refused(run, is_double) -> None:
    call = _native.Call()
    call.T, call.H, call.norm, call.is_double = 1, 4, Norm.post, is_double
    call.saved, call.saved_size = 64, 5 * 4 - 1  # an address that nothing may touch
    with pytest.raises(ValueError, match="saved"):
        run(call)
