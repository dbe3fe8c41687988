"""States are plain values: what works with those of `nn.LSTM` works with these."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import stpn

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 3


def repackaged(state: Tensor | tuple) -> Tensor | tuple:
    """The usual way to cut a state from its graph: it makes plain tuples of any state."""
    if isinstance(state, Tensor):
        return state.detach()
    return tuple(repackaged(part) for part in state)


@pytest.mark.parametrize("name", stpn.models())
def test_plain_sequences_are_states(name: str) -> None:
    core = stpn.build(name, INPUTS, HIDDEN, num_layers=2, batch_first=True)
    x = torch.randn(BATCH, STEPS, INPUTS)
    _, state = core(x)
    expected, after = core(x, state)
    for plain in (repackaged(state), [list(layer) for layer in state]):
        y, new = core(x, plain)
        assert torch.equal(y, expected)
        assert [type(layer) for layer in new] == [type(layer) for layer in state]
        torch.testing.assert_close(new, after, rtol=0, atol=0)
        y, _ = core.step(x[:, 0], plain)
        torch.testing.assert_close(y, expected[:, 0])


def test_cells_take_plain_sequences() -> None:
    cell = stpn.STPNlCell(INPUTS, HIDDEN)
    x = torch.randn(BATCH, INPUTS)
    _, state = cell(x)
    torch.testing.assert_close(cell(x, tuple(state)), cell(x, state))


def test_a_plain_state_is_updated_in_place() -> None:
    core = stpn.STPNr(INPUTS, HIDDEN)
    x = torch.randn(BATCH, INPUTS)
    state, plain = core.initial_state(BATCH), [list(core.initial_state(BATCH)[0])]
    bound = core.bound_step(x, plain)
    with torch.no_grad():
        for _ in range(2):
            core.step(x, state, inplace=True)
        core.step(x, plain, inplace=True)
    bound()
    torch.testing.assert_close(tuple(plain[0]), tuple(state[0]))


@pytest.mark.parametrize("name", stpn.models())
def test_states_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    core = stpn.build(name, INPUTS, HIDDEN, batch_first=True)
    _, state = core(torch.randn(BATCH, STEPS, INPUTS))
    torch.save({"state": state, "weights": core.state_dict()}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)["state"]
    assert [type(layer) for layer in loaded] == [type(layer) for layer in state]
    torch.testing.assert_close(loaded, state)


@pytest.mark.parametrize("name", stpn.models())
def test_code_written_for_an_lstm(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = stpn.build(name, INPUTS, HIDDEN)

        def forward(self, x: Tensor, hidden: tuple | None = None) -> tuple:
            self.rnn.flatten_parameters()
            return self.rnn(x, hidden)

    model = Model()
    _, hidden = model(torch.randn(STEPS, BATCH, INPUTS))
    y, _ = model(torch.randn(STEPS, BATCH, INPUTS), repackaged(hidden))
    assert y.shape == (STEPS, BATCH, HIDDEN)
