"""RNN, LSTM and GRU are those of PyTorch; resets are what a loop of cells with resets gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from stpn.nn.state import LSTMState, RNNState
from stpn.nn.torch_cores import GRU, LSTM, MLP, RNN, GRUCell, LSTMCell, RNNCell
from stpn.ops import aten

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 4, 9, 5, 6
TWINS = [
    (RNN, nn.RNN, {}),
    (RNN, nn.RNN, {"nonlinearity": "relu"}),
    (LSTM, nn.LSTM, {}),
    (GRU, nn.GRU, {}),
]


def twins(ours: type, theirs: type, **options):
    core = ours(INPUTS, HIDDEN, batch_first=True, **options)
    torch_core = theirs(INPUTS, HIDDEN, batch_first=True, **options)
    torch_core.load_state_dict(core.state_dict())
    return core, torch_core


def states(core, torch_core) -> tuple[tuple, Tensor | tuple[Tensor, ...]]:
    count = core.num_layers * core.num_directions
    kind = LSTMState if isinstance(core, LSTM) else RNNState
    parts = [torch.randn(count, BATCH, HIDDEN) for _ in kind._fields]
    ours = tuple(kind(*(part[k] for part in parts)) for k in range(count))
    return ours, tuple(parts) if kind is LSTMState else parts[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize(("ours", "theirs", "options"), TWINS)
def test_twins_of_pytorch(ours, theirs, options, num_layers, bidirectional, bias) -> None:
    core, torch_core = twins(
        ours, theirs, num_layers=num_layers, bidirectional=bidirectional, bias=bias, **options
    )
    state, torch_state = states(core, torch_core)
    x = torch.randn(BATCH, STEPS, INPUTS)
    packed = pack_padded_sequence(x, [3, 9, 1, 5], batch_first=True, enforce_sorted=False)
    for given in (x, packed):
        y, final = core(given, state)
        expected, expected_final = torch_core(given, torch_state)
        torch.testing.assert_close(y, expected)
        stacked = [torch.stack(values) for values in zip(*final, strict=True)]
        if ours is not LSTM:
            expected_final = (expected_final,)
        torch.testing.assert_close(stacked, list(expected_final))
        gradients, expected_gradients = (
            torch.autograd.grad(_data(value).square().sum(), list(module.parameters()))
            for value, module in ((y, core), (expected, torch_core))
        )
        torch.testing.assert_close(gradients, expected_gradients)


def _data(value) -> Tensor:
    return value if isinstance(value, Tensor) else value.data


@pytest.mark.parametrize(
    ("ours", "theirs"), [(RNNCell, nn.RNNCell), (LSTMCell, nn.LSTMCell), (GRUCell, nn.GRUCell)]
)
def test_cells_take_the_state_dict_of_pytorch(ours, theirs) -> None:
    cell, torch_core = ours(INPUTS, HIDDEN), theirs(INPUTS, HIDDEN)
    cell.load_state_dict(torch_core.state_dict())
    x = torch.randn(BATCH, INPUTS)
    h, _ = cell(x)
    expected = torch_core(x)
    torch.testing.assert_close(h, expected[0] if ours is LSTMCell else expected)


def loop(name: str, x: Tensor, state: list[Tensor], weights, reset, lengths):
    """The specification of resets: cells, one step after the other."""
    ys = []
    for t in range(x.shape[1]):
        alive = torch.ones(len(x), 1).bool() if lengths is None else (lengths > t)[:, None]
        if reset is not None:
            state = [torch.where(reset[:, t, None] & alive, 0.0, value) for value in state]
        if name == "lstm":
            new = list(torch._VF.lstm_cell(x[:, t], state, *weights))
        elif name == "gru":
            new = [torch._VF.gru_cell(x[:, t], state[0], *weights)]
        else:
            run = torch._VF.rnn_tanh_cell if name == "tanh" else torch._VF.rnn_relu_cell
            new = [run(x[:, t], state[0], *weights)]
        state = [torch.where(alive, n, old) for n, old in zip(new, state, strict=True)]
        ys.append(new[0] * alive)
    return torch.stack(ys, 1), state


def run(name: str, x: Tensor, state: list[Tensor], weights, reset, lengths):
    masks = {"reset": reset, "lengths": lengths}
    if name == "lstm":
        y, c = aten.lstm(x, *state, weights, **masks)
        return y, [None, c]
    if name == "gru":
        return aten.gru(x, *state, weights, **masks), [None]
    return aten.rnn(x, *state, weights, nonlinearity=name, **masks), [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 12, 1, 7])])
@pytest.mark.parametrize("density", [None, 0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", ["tanh", "relu", "lstm", "gru"])
def test_resets(name: str, density, lengths, bias: bool, dtype: torch.dtype) -> None:
    rows = HIDDEN * {"lstm": 4, "gru": 3}.get(name, 1)
    shapes = [(rows, INPUTS), (rows, HIDDEN), (rows,), (rows,)][: 4 if bias else 2]
    weights = tuple(torch.randn(s, dtype=dtype).mul_(0.7).requires_grad_() for s in shapes)
    x = torch.randn(BATCH, 12, INPUTS, dtype=dtype, requires_grad=True)
    state = [
        torch.randn(BATCH, HIDDEN, dtype=dtype, requires_grad=True)
        for _ in range(2 if name == "lstm" else 1)
    ]
    reset = None if density is None else torch.rand(BATCH, 12) < density
    cell_weights = weights if bias else (*weights, None, None)
    y, final = run(name, x, state, weights, reset, lengths)
    expected, expected_final = loop(name, x, state, cell_weights, reset, lengths)
    torch.testing.assert_close(y, expected)
    noise = torch.randn_like(y)
    total, expected_total = (y * noise).sum(), (expected * noise).sum()
    if name == "lstm":
        torch.testing.assert_close(final[1], expected_final[1])
        total, expected_total = total + final[1].sum(), expected_total + expected_final[1].sum()
    leaves = [x, *state, *weights]
    for gradient, expected_gradient in zip(
        torch.autograd.grad(total, leaves),
        torch.autograd.grad(expected_total, leaves),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_flushed_state_is_exactly_zero(name: str) -> None:
    """Large activations and weights before the reset leave no trace, not even a rounding error."""
    core = (LSTM if name == "lstm" else GRU)(INPUTS, HIDDEN, batch_first=True)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(20)
    x = torch.randn(BATCH, STEPS, INPUTS)
    loud = x.clone()
    loud[:, :4] *= 100
    reset = torch.zeros(BATCH, STEPS).bool()
    reset[:, 4] = True
    assert torch.equal(core(x, None, reset)[0][:, 4:], core(loud, None, reset)[0][:, 4:])


def test_mlp_is_a_tanh_layer() -> None:
    core = MLP(INPUTS, HIDDEN, batch_first=True)
    x = torch.randn(BATCH, STEPS, INPUTS)
    y, state = core(x, None, torch.rand(BATCH, STEPS) < 0.5)
    torch.testing.assert_close(y, torch.tanh(x @ core.weight_l0.t() + core.bias_l0))
    assert state == core.initial_state(BATCH)
    torch.testing.assert_close(core(x, state)[0], y)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch.compile looks at itself
@pytest.mark.parametrize(("kind", "masked"), [(LSTM, False), (LSTM, True), (RNN, True)])
def test_compiles(kind, masked: bool) -> None:
    """With breaks in the graph, as PyTorch's own do."""
    torch._dynamo.reset()
    core = kind(INPUTS, HIDDEN, batch_first=True)
    x = torch.randn(BATCH, STEPS, INPUTS)
    reset = torch.rand(BATCH, STEPS) < 0.3 if masked else None
    y, state = torch.compile(core, backend="aot_eager")(x, None, reset)
    expected, expected_state = core(x, None, reset)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state, expected_state)
    y.sum().backward()
