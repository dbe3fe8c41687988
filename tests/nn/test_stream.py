"""Streams in pieces: the values of one call, the gradients of a loop that detaches by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import stpn
from stpn.errors import CheckpointError

NAMES = [name for name in stpn.models() if name != "mlp"]


def made(name: str, **options: bool) -> tuple[stpn.nn.RecurrentCore, Tensor, Tensor]:
    core = stpn.build(name, 4, 5, num_layers=2, batch_first=True, dtype=torch.float64, **options)
    reset = torch.zeros(3, 11, dtype=torch.bool)
    reset[0, 2] = reset[1, 8] = reset[2, 4] = True
    return core, torch.randn(3, 11, 4, dtype=torch.float64), reset


@pytest.mark.parametrize("name", NAMES)
def test_pieces_give_what_one_call_gives(name: str) -> None:
    core, x, reset = made(name)
    stream, ys, seen = stpn.Stream(core), [], []
    for y, piece in stream.pieces(x, 4, reset):
        ys.append(y)
        seen.append((piece.start, piece.stop))
    assert seen == [(0, 4), (4, 8), (8, 11)]
    whole, state = core(x, None, reset)
    torch.testing.assert_close(torch.cat(ys, 1), whole)
    torch.testing.assert_close(stream.state, state)


@pytest.mark.parametrize("name", ["stpnr", "modplast", "lstm"])
def test_gradients_end_where_a_piece_begins(name: str) -> None:
    core, x, reset = made(name)

    def gradients() -> list[Tensor]:
        found = [parameter.grad.clone() for parameter in core.parameters()]
        core.zero_grad()
        return found

    for y, _ in stpn.Stream(core).pieces(x, 4, reset):
        y.square().sum().backward()
    truncated = gradients()
    state = core.initial_state(3)
    for t in range(11):  # one step at a time, the tie cut by hand before steps 0, 4 and 8
        if t % 4 == 0:
            loss, state = torch.zeros((), dtype=x.dtype), tuple(s.detach() for s in state)
        y, state = core.step(x[:, t], state, reset[:, t])
        loss = loss + y.square().sum()
        if t % 4 == 3 or t == 10:
            loss.backward()
    torch.testing.assert_close(truncated, gradients())
    core(x, None, reset)[0].square().sum().backward()
    full = gradients()
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(truncated, full, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_stream_goes_on(name: str, tmp_path: Path) -> None:
    core, x, _ = made(name)
    stream, path = stpn.Stream(core), tmp_path / "state.safetensors"
    stream(x[:, :6])
    stream.save(path)
    again = stpn.Stream(core).restore(path)
    torch.testing.assert_close(again.state, stream.state, rtol=0, atol=0)
    torch.testing.assert_close(again(x[:, 6:]), core(x)[0][:, 6:])


def test_time_first_and_unbatched(tmp_path: Path) -> None:
    core, x = stpn.STPNr(4, 5), torch.randn(7, 4)
    stream, path = stpn.Stream(core), tmp_path / "state.safetensors"
    ys = [y for y, _ in stream.pieces(x, 3)]
    torch.testing.assert_close(torch.cat(ys), core(x)[0])
    stream.save(path)
    torch.testing.assert_close(stpn.Stream(core).restore(path).state, stream.state)
    batch = x.unsqueeze(1).expand(7, 2, 4)
    ys = [y for y, _ in stpn.Stream(core).pieces(batch, 3)]
    torch.testing.assert_close(torch.cat(ys), core(batch)[0])


def test_mistakes_are_named(tmp_path: Path) -> None:
    core, path = stpn.STPNr(4, 5), tmp_path / "state.safetensors"
    with pytest.raises(ValueError, match="nothing to save"):
        stpn.Stream(core).save(path)
    with pytest.raises(ValueError, match="one direction"):
        stpn.Stream(stpn.STPNr(4, 5, bidirectional=True))
    with pytest.raises(TypeError, match="expected a layer"):
        stpn.Stream(torch.nn.LSTM(4, 5))
    stream = stpn.Stream(core)
    stream(torch.randn(3, 2, 4))
    stream.save(path)
    with pytest.raises(CheckpointError, match="expected h_l0, c_l0, got f_l0, h_l0"):
        stpn.Stream(stpn.LSTM(4, 5)).restore(path)
    with pytest.raises(CheckpointError, match="does not fit this STPNr"):
        stpn.Stream(stpn.STPNr(4, 6)).restore(path)
    path.write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        stpn.Stream(core).restore(path)
