"""Frozen synapses, and traces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stpn.nn import STPNf, STPNl, STPNr, STPNrCell
from stpn.plasticity import frozen_plasticity, trace

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 2, 5, 4, 3
LAYERS = [STPNf, STPNr, STPNl]


def sequence() -> torch.Tensor:
    return torch.randn(BATCH, STEPS, INPUTS)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = STPNr(INPUTS, HIDDEN, batch_first=True, num_layers=2)
        self.inner = nn.ModuleDict({"cell": STPNrCell(HIDDEN, HIDDEN)})
        self.readout = nn.Linear(HIDDEN, 2)


def test_frozen_synapses_keep_their_state() -> None:
    model, x = Model(), sequence()
    with torch.no_grad():
        _, state = model.core(x)
        cell_state = model.inner["cell"].initial_state(BATCH)
        cell_state.f.normal_()
        before = cell_state.clone()
        with frozen_plasticity(model):
            y, after = model.core(x, state)
            h, cell_state = model.inner["cell"](y[:, 0], cell_state)
        assert all(torch.equal(a.f, b.f) for a, b in zip(after, state, strict=True))
        assert torch.equal(cell_state.f, before.f)
        assert not torch.equal(after[0].h, state[0].h)
        assert torch.equal(cell_state.h, h)
        assert not torch.equal(model.core(x, state)[1][0].f, state[0].f)


def test_frozen_answers_are_those_of_fixed_efficacies() -> None:
    layer, x = STPNf(INPUTS, HIDDEN, batch_first=True), sequence()
    _, (state,) = layer(x)
    with frozen_plasticity(layer):
        y, _ = layer(x, (state,))
    g = nn.functional.normalize(layer.weight_l0 + state.f, dim=-1)
    torch.testing.assert_close(y, torch.tanh(x @ g.mT + layer.bias_l0))


def test_a_reset_empties_frozen_synapses() -> None:
    layer, x = STPNr(INPUTS, HIDDEN, batch_first=True), sequence()
    _, state = layer(x)
    reset = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    reset[0, 2] = True
    with frozen_plasticity(layer):
        _, (after,) = layer(x, state, reset)
    assert not after.f[0].any()
    assert torch.equal(after.f[1], state[0].f[1])


def test_frozen_contexts_nest_and_survive_exceptions() -> None:
    model, x = Model(), sequence()

    def frozen(core: STPNr) -> bool:
        return not core(x)[1][0].f.any()

    with frozen_plasticity(model):
        with frozen_plasticity(model.core):
            assert frozen(model.core)
        assert frozen(model.core)
    assert not frozen(model.core)
    with pytest.raises(RuntimeError, match="inside"), frozen_plasticity(model):
        raise RuntimeError("inside")
    assert not frozen(model.core)


def test_frozen_weights_still_learn() -> None:
    layer = STPNr(INPUTS, HIDDEN, batch_first=True)
    with frozen_plasticity(layer):
        layer(sequence())[0].sum().backward()
    assert layer.weight_l0.grad.abs().max() > 0


@pytest.mark.usefixtures("fresh_compiler")
def test_frozen_plasticity_is_seen_by_a_compiled_layer() -> None:
    layer, x = STPNr(INPUTS, HIDDEN, batch_first=True), sequence()[:, :2]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(x)[1][0].f.any()
    with frozen_plasticity(layer):
        assert not compiled(x)[1][0].f.any()
    assert compiled(x)[1][0].f.any()


@pytest.mark.parametrize("norm", ["pre", "post", None])
@pytest.mark.parametrize("kind", LAYERS)
def test_trace_is_the_run_with_every_step(kind, norm) -> None:
    layer, x = kind(INPUTS, HIDDEN, batch_first=True, norm=norm), sequence()
    with torch.no_grad():
        layer.gamma_l0.mul_(1000)
        _, state = layer(sequence())
        y, final = layer(x, state)
    seen = trace(layer, x, state)
    torch.testing.assert_close((seen.y, seen.h, seen.state), (y, y, final))
    rows, columns = layer.weight_l0.shape
    assert seen.f.shape == seen.g.shape == (BATCH, STEPS, rows, columns)
    assert torch.equal(seen.f[:, 0], state[0].f)
    for t in range(STEPS):
        _, (part,) = layer(x[:, : t + 1], state)
        if t + 1 < STEPS:
            torch.testing.assert_close(seen.f[:, t + 1], part.f)
    total = layer.weight_l0 + seen.f
    g = total if norm is None else nn.functional.normalize(total, dim=-1)
    torch.testing.assert_close(seen.g, g)
    previous = torch.cat([state[0].h.unsqueeze(1), y[:, :-1]], 1)
    u = x if kind is STPNf else torch.cat([x, previous], -1)
    power = (u.square().unsqueeze(-2) * g.abs()).sum((-2, -1))
    torch.testing.assert_close(seen.power, power)
    assert not seen.f.requires_grad


def test_trace_shows_the_learnt_scale() -> None:
    layer = STPNf(INPUTS, HIDDEN, norm_scale=True)
    with torch.no_grad():
        layer.norm_scale_l0.copy_(torch.tensor([1.0, 2.0, -3.0]))
    g = trace(layer, torch.randn(STEPS, INPUTS)).g
    torch.testing.assert_close(g.norm(dim=-1), torch.tensor([1.0, 2.0, 3.0]).expand(STEPS, HIDDEN))


def test_trace_unbatched_and_time_first() -> None:
    layer, x = STPNr(INPUTS, HIDDEN), sequence()
    seen = trace(layer, x.transpose(0, 1))
    assert seen.y.shape == (STEPS, BATCH, HIDDEN)
    assert seen.f.shape == (BATCH, STEPS, HIDDEN, INPUTS + HIDDEN)
    alone = trace(layer, x[1])
    assert alone.y.shape == (STEPS, HIDDEN)
    torch.testing.assert_close(
        (alone.h, alone.f, alone.g, alone.power),
        (seen.h[1], seen.f[1], seen.g[1], seen.power[1]),
    )


def test_trace_of_several_layers_and_directions() -> None:
    layer, x = STPNr(INPUTS, HIDDEN, 2, batch_first=True, bidirectional=True), sequence()
    y, final = layer(x)
    seen = trace(layer, x)
    torch.testing.assert_close((seen.y, seen.state), (y.detach(), final))
    torch.testing.assert_close(torch.cat([seen.layers[2].h, seen.layers[3].h], -1), y)
    assert not seen.layers[1].f[:, -1].any()  # backwards: the last step is the first
    assert seen.layers[1].f[:, 0].any()
    with pytest.raises(ValueError, match=r"4 layers and directions: use trace.layers"):
        _ = seen.f


def test_trace_of_frozen_synapses_stands_still() -> None:
    layer, x = STPNr(INPUTS, HIDDEN, batch_first=True), sequence()
    _, state = layer(x)
    with frozen_plasticity(layer):
        seen = trace(layer, x, state)
    assert all(torch.equal(seen.f[:, t], state[0].f) for t in range(STEPS))


def test_trace_rejects_what_it_cannot_read() -> None:
    with pytest.raises(TypeError, match="layer: expected a recurrent core, got Linear"):
        trace(nn.Linear(2, 2), torch.zeros(3, 2))
    with pytest.raises(TypeError, match="x: expected a Tensor, got list"):
        trace(STPNr(2, 2), [1.0])


def test_a_trace_prints_its_shapes() -> None:
    layer = STPNr(4, 3, num_layers=2, batch_first=True)
    seen = trace(layer, torch.randn(2, 5, 4))
    assert repr(seen.layers[0]) == (
        "LayerTrace(h (2, 5, 3), f (2, 5, 3, 7), g (2, 5, 3, 7), power (2, 5))"
    )
    assert repr(seen).startswith("Trace(y (2, 5, 3), layers (LayerTrace(h (2, 5, 3), ")
    assert len(repr(seen)) < 250
