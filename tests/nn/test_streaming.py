"""One step at a time: cells and `layer.step`, as values and in place."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

from stpn.nn import STPNf, STPNfCell, STPNl, STPNlCell, STPNr, STPNrCell

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 3
PAIRS = [(STPNf, STPNfCell), (STPNr, STPNrCell), (STPNl, STPNlCell)]
OPTIONS = [
    {},
    {"norm": "post", "clamp": 0.5, "plastic": "input"},
    {"norm": None, "clamp": 0.1, "stp": "neuron"},
    {"norm_scale": True, "norm_over": "layer", "rule": "oja", "stp": "uniform"},
]


def twins(layer_type: type, cell_type: type, **options):
    layer = layer_type(INPUTS, HIDDEN, batch_first=True, **options)
    with torch.no_grad():
        layer.gamma_l0.mul_(1000)
    cell = cell_type(INPUTS, HIDDEN, **options)
    weights = {name.removesuffix("_l0"): value for name, value in layer.state_dict().items()}
    weights["lambda_"] = weights.pop("lambda")
    cell.load_state_dict(weights)
    return layer, cell


@pytest.mark.parametrize(("grad", "inplace"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("layer_type", "cell_type"), PAIRS)
def test_steps_are_the_sequence(layer_type, cell_type, options, grad, inplace) -> None:
    layer, cell = twins(layer_type, cell_type, **options)
    x, reset = torch.randn(BATCH, STEPS, INPUTS), torch.rand(BATCH, STEPS) > 0.6
    with torch.set_grad_enabled(grad):
        y, (final,) = layer(x, None, reset)
        cell_state, layer_state = None, None
        for t in range(STEPS):
            h, cell_state = cell(x[:, t], cell_state, reset[:, t], inplace=inplace)
            y_t, layer_state = layer.step(x[:, t], layer_state, reset[:, t], inplace=inplace)
            torch.testing.assert_close(h, y[:, t])
            torch.testing.assert_close(y_t, y[:, t])
            assert h.requires_grad == y_t.requires_grad == grad
        torch.testing.assert_close(cell_state, final)
        torch.testing.assert_close(layer_state, (final,))


@pytest.mark.parametrize(("grad", "inplace"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize(("layer_type", "cell_type"), PAIRS)
def test_unbatched_steps(layer_type, cell_type, grad, inplace) -> None:
    layer, cell = twins(layer_type, cell_type)
    x, reset = torch.randn(STEPS, INPUTS), torch.rand(STEPS) > 0.6
    with torch.set_grad_enabled(grad):
        y, (final,) = layer(x, None, reset)
        state, stack = cell.initial_state(None), layer.initial_state(None)
        for t in range(STEPS):
            h, state = cell(x[t], state, reset[t], inplace=inplace)
            y_t, stack = layer.step(x[t], stack, reset[t], inplace=inplace)
            assert h.shape == y_t.shape == (HIDDEN,)
            torch.testing.assert_close((h, y_t), (y[t], y[t]))
        torch.testing.assert_close((state, *stack), (final, final))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("layer_type", "cell_type"), PAIRS)
def test_the_state_can_be_updated_in_place(layer_type, cell_type, options, dtype) -> None:
    layer = layer_type(INPUTS, HIDDEN, num_layers=2, **options).to(dtype)
    cell = cell_type(INPUTS, HIDDEN, **options).to(dtype)
    x = torch.randn(STEPS, BATCH, INPUTS).to(dtype)
    reset = torch.rand(STEPS, BATCH) > 0.6
    with torch.no_grad():
        for step, state in (
            (layer.step, layer.initial_state(BATCH)),
            (cell, cell.initial_state(BATCH)),
        ):
            states = state if isinstance(state[0], tuple) else (state,)
            tensors = list(itertools.chain(*states))
            addresses = [value.data_ptr() for value in tensors]
            outputs = []
            for t in range(STEPS):
                h, state = step(x[t], state, reset[t], inplace=True)
                outputs.append((h, h.clone()))
            after = state if isinstance(state[0], tuple) else (state,)
            assert all(a is b for a, b in zip(tensors, itertools.chain(*after), strict=True))
            assert [value.data_ptr() for value in tensors] == addresses
            torch.testing.assert_close(after[-1].h, outputs[-1][0])
            for h, then in outputs:  # an output is not overwritten by later steps
                assert torch.equal(h, then)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("layer_type", "cell_type"), PAIRS)
def test_a_look_ahead_leaves_the_state_alone(layer_type, cell_type, options, grad) -> None:
    """Such as a bootstrap value: the caller goes on from the state that it had."""
    layer, cell = twins(layer_type, cell_type, **options)
    x = torch.randn(BATCH, INPUTS)
    reset = torch.tensor([False, True, False])
    _, state = cell(torch.randn(BATCH, INPUTS))
    state = state.detach()
    before = state.clone()
    with torch.set_grad_enabled(grad):
        _, ahead = cell(x, state, reset)
        _, (stack,) = layer.step(x, (state,), reset)
    assert all(map(torch.equal, state, before))
    torch.testing.assert_close(stack, ahead)
    for new in (ahead, stack):
        new.f.detach().fill_(torch.nan)  # shares no memory with what was given
    assert all(map(torch.equal, state, before))


@pytest.mark.parametrize(("layer_type", "cell_type"), PAIRS)
def test_a_state_in_training_cannot_be_overwritten(layer_type, cell_type) -> None:
    """A learnt initial state, or one that a backward pass still needs."""
    layer, cell = twins(layer_type, cell_type)
    x, state = torch.randn(BATCH, INPUTS), cell.initial_state(BATCH)
    for step, given in ((cell, state), (layer.step, (state,))):
        with pytest.raises(RuntimeError, match=r"inplace: .* under torch.no_grad"):
            step(x, given, inplace=True)
    learnt = state._replace(h=state.h.requires_grad_())
    with torch.no_grad():
        for step, given in ((cell, learnt), (layer.step, (learnt,))):
            with pytest.raises(ValueError, match="inplace: expected a state without gradients"):
                step(x, given, inplace=True)
        with pytest.raises(ValueError, match="inplace: expected a state without gradients"):
            layer.bound_step(x, (learnt,))


def test_with_gradients_the_state_is_a_value() -> None:
    cell = STPNrCell(INPUTS, HIDDEN)
    x, state = torch.randn(BATCH, INPUTS), cell.initial_state(BATCH)
    h, new = cell(x, state)
    assert not state.f.any()
    assert new.f.data_ptr() != state.f.data_ptr()
    h2, _ = cell(x, new)
    (h + h2).sum().backward()
    assert cell.gamma.grad.abs().max() > 0


def test_a_nan_row_is_gone_after_reset() -> None:
    cell = STPNrCell(INPUTS, HIDDEN)
    x, state = torch.randn(BATCH, INPUTS), cell.initial_state(BATCH)
    with torch.no_grad():
        expected, _ = cell(x)
        for value in state:
            value[1] = torch.nan
        h, state = cell(x, state, torch.tensor([False, True, False]))
    torch.testing.assert_close(h, expected)
    assert all(value.isfinite().all() for value in state)


def test_a_strided_state_is_updated_where_it_lives() -> None:
    """A state that is a view of a larger buffer, as in replay buffers."""
    cell = STPNrCell(INPUTS, HIDDEN)
    x = torch.randn(BATCH, INPUTS)
    buffer = torch.zeros(BATCH, HIDDEN, INPUTS + HIDDEN, 2)
    with torch.no_grad():
        expected_h, expected = cell(x)
        state = cell.initial_state(BATCH)._replace(f=buffer[..., 1])
        h, state = cell(x, state, inplace=True)
    torch.testing.assert_close((h, buffer[..., 1]), (expected_h, expected.f))
    assert not buffer[..., 0].any()


def test_a_long_stream_keeps_its_memory() -> None:
    cell = STPNrCell(INPUTS, HIDDEN)
    x, state = torch.randn(BATCH, INPUTS), cell.initial_state(BATCH)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    with torch.no_grad():
        h, state = cell(x, state, inplace=True)
        before = tensors()
        for _ in range(300):
            h, state = cell(x, state, inplace=True)
        assert tensors() <= before
    assert h.isfinite().all()


@pytest.mark.parametrize("cell_type", [cell for _, cell in PAIRS])
def test_cell_parameters_and_repr(cell_type) -> None:
    cell = cell_type(INPUTS, HIDDEN)
    assert list(cell.state_dict()) == ["weight", "bias", "lambda_", "gamma"]
    assert repr(cell) == f"{cell_type.__name__}(4, 3)"
    plain = cell_type(INPUTS, HIDDEN, bias=False, norm_scale=True, dtype=torch.float64)
    assert list(plain.state_dict()) == ["weight", "lambda_", "gamma", "norm_scale"]
    assert repr(plain) == f"{cell_type.__name__}(4, 3, bias=False, norm_scale=True)"
    assert plain(torch.randn(BATCH, INPUTS, dtype=torch.float64))[0].dtype == torch.float64


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("cell_type", [cell for _, cell in PAIRS])
def test_cells_compile_without_graph_breaks(cell_type) -> None:
    cell = cell_type(INPUTS, HIDDEN)
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager")
    x, reset = torch.randn(BATCH, INPUTS), torch.tensor([False, True, False])
    state = cell(x)[1].detach()
    torch.testing.assert_close(compiled(x, state, reset), cell(x, state, reset))
    with torch.no_grad():
        expected = cell(x, state, reset)
        torch.testing.assert_close(compiled(x, state, reset), expected)
        torch.testing.assert_close(compiled(x, state, reset, inplace=True), expected)
        torch.testing.assert_close(state, expected[1])
