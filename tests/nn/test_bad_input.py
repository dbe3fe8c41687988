"""Bad input is an error that names the argument, what was expected and what came."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from stpn.nn import (
    STPNf,
    STPNfCell,
    STPNl,
    STPNlCell,
    STPNlState,
    STPNr,
    STPNrCell,
    STPNState,
)

BATCH, STEPS, INPUTS, HIDDEN = 3, 6, 5, 4
D = INPUTS + HIDDEN
LAYERS = [STPNf, STPNr, STPNl]
CELLS = [STPNfCell, STPNrCell, STPNlCell]
NAN = math.nan


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"input_size": 0}, ValueError, ["input_size", "positive int", "0"]),
        ({"input_size": 2.0}, TypeError, ["input_size", "positive int", "2.0", "float"]),
        ({"hidden_size": -1}, ValueError, ["hidden_size", "positive int", "-1"]),
        ({"hidden_size": True}, TypeError, ["hidden_size", "positive int", "True"]),
        ({"hidden_size": torch.ones(2)}, TypeError, ["hidden_size", "positive int", "Tensor"]),
        ({"bias": 1}, TypeError, ["bias", "True or False", "1"]),
        ({"dtype": torch.int64}, TypeError, ["dtype", "floating", "torch.int64"]),
        ({"dtype": torch.complex64}, TypeError, ["dtype", "floating", "torch.complex64"]),
        ({"stp": "layer"}, ValueError, ["stp", "'synapse', 'neuron', 'uniform'", "'layer'"]),
        ({"plastic": "none"}, ValueError, ["plastic", "'all', 'input', 'hidden'", "'none'"]),
        ({"norm": "none"}, ValueError, ["norm", "'pre', 'post', 'f', None", "'none'"]),
        ({"norm": False}, ValueError, ["norm", "'pre', 'post', 'f', None", "False"]),
        ({"norm_over": "row"}, ValueError, ["norm_over", "'neuron', 'layer'", "'row'"]),
        ({"norm_scale": 1.0}, TypeError, ["norm_scale", "True or False", "1.0"]),
        ({"norm_scale": True, "norm": None}, ValueError, ["norm_scale", "norm=None"]),
        ({"clamp": 0}, ValueError, ["clamp", "positive", "0"]),
        ({"clamp": -1.0}, ValueError, ["clamp", "positive", "-1.0"]),
        ({"clamp": NAN}, ValueError, ["clamp", "positive", "nan"]),
        ({"clamp": "1"}, TypeError, ["clamp", "positive", "'1'"]),
        ({"rule": "bcm"}, ValueError, ["rule", "'hebb', 'oja'", "'bcm'"]),
        ({"batch_frist": True}, TypeError, ["batch_frist"]),
    ],
)
@pytest.mark.parametrize("kind", LAYERS + CELLS)
def test_options(kind, options, error, words) -> None:
    with pytest.raises(error) as caught:
        kind(**{"input_size": INPUTS, "hidden_size": HIDDEN, **options})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_layers": 0}, ValueError, ["num_layers", "positive int", "0"]),
        ({"num_layers": "2"}, TypeError, ["num_layers", "positive int", "'2'"]),
        ({"batch_first": None}, TypeError, ["batch_first", "True or False", "None"]),
        ({"bidirectional": 2}, TypeError, ["bidirectional", "True or False", "2"]),
        ({"dropout": 1.5}, ValueError, ["dropout", "[0, 1]", "1.5"]),
        ({"dropout": True}, TypeError, ["dropout", "[0, 1]", "True"]),
        ({"dropout": NAN}, ValueError, ["dropout", "[0, 1]", "nan"]),
    ],
)
@pytest.mark.parametrize("kind", LAYERS)
def test_options_of_layers(kind, options, error, words) -> None:
    with pytest.raises(error) as caught:
        kind(INPUTS, HIDDEN, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", [STPNf, STPNr, STPNfCell, STPNrCell])
def test_nonlinearity(kind) -> None:
    with pytest.raises(ValueError, match=r"nonlinearity: .*'tanh', 'sigmoid', 'relu', got 'gelu'"):
        kind(INPUTS, HIDDEN, nonlinearity="gelu")


@pytest.mark.parametrize("kind", [STPNl, STPNlCell])
def test_gates_have_their_own_nonlinearities(kind) -> None:
    with pytest.raises(TypeError, match="nonlinearity"):
        kind(INPUTS, HIDDEN, nonlinearity="relu")


@pytest.mark.parametrize("kind", [STPNf, STPNfCell])
def test_feed_forward_has_no_hidden_synapses(kind) -> None:
    with pytest.raises(ValueError, match=r"plastic: expected 'all' or 'input', got 'hidden'"):
        kind(INPUTS, HIDDEN, plastic="hidden")


def zeros(*shape: int, **options) -> torch.Tensor:
    return torch.zeros(shape, **options)


X = (BATCH, STEPS, INPUTS)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[0.0] * INPUTS] * STEPS, TypeError, ["x:", "Tensor", "list"]),
        (None, TypeError, ["x:", "Tensor", "None"]),
        (zeros(INPUTS), ValueError, ["x:", "I = 5", "(5,)"]),
        (zeros(1, *X), ValueError, ["x:", "(1, 3, 6, 5)"]),
        (zeros(BATCH, STEPS, INPUTS + 1), ValueError, ["x:", "I = 5", "(3, 6, 6)"]),
        (zeros(BATCH, STEPS, 1), ValueError, ["x:", "I = 5", "(3, 6, 1)"]),
        (zeros(BATCH, 0, INPUTS), ValueError, ["x:", "at least one time step", "(3, 0, 5)"]),
        (zeros(0, INPUTS), ValueError, ["x:", "at least one time step", "(0, 5)"]),
        (zeros(*X, dtype=torch.float64), TypeError, ["x:", "torch.float32", "torch.float64"]),
        (zeros(*X, dtype=torch.int64), TypeError, ["x:", "torch.float32", "torch.int64"]),
        (zeros(*X, dtype=torch.complex64), TypeError, ["x:", "torch.float32", "complex64"]),
        (zeros(*X, device="meta"), ValueError, ["x:", "cpu", "meta"]),
        (zeros(*X).to_sparse(), TypeError, ["x:", "dense", "sparse_coo"]),
    ],
)
@pytest.mark.parametrize("kind", LAYERS)
def test_input(kind, x, error, words) -> None:
    layer = kind(INPUTS, HIDDEN, batch_first=True)
    with pytest.raises(error) as caught:
        layer(x)
    for word in words:
        assert word in str(caught.value)


def test_packed_input() -> None:
    layer = STPNr(INPUTS, HIDDEN)
    with pytest.raises(ValueError, match=r"x: .*I = 5, got shape \(6, 4\)"):
        layer(pack_sequence([zeros(4, 4), zeros(2, 4)]))
    with pytest.raises(TypeError, match=r"x: expected dtype torch.float32, got torch.float64"):
        layer(pack_sequence([zeros(4, INPUTS, dtype=torch.float64)]))
    packed = pack_sequence([zeros(4, INPUTS), zeros(2, INPUTS)])
    with pytest.raises(ValueError, match=r"reset: expected shape \(4, 2\)"):
        layer(packed, None, zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"state\[0\]\.h: expected shape \(2, 4\)"):
        layer(packed, layer.initial_state(3))


H0, F0 = zeros(BATCH, HIDDEN), zeros(BATCH, HIDDEN, D)


@pytest.mark.parametrize(
    ("state", "error", "words"),
    [
        (H0, TypeError, ["state:", "one STPNState per layer", "Tensor"]),
        (STPNState(H0, F0), TypeError, ["state:", "tuple with one STPNState", "(state,)"]),
        ((H0, F0), TypeError, ["state:", "tuple with one STPNState", "(state,)"]),
        ((), ValueError, ["state:", "1 STPNState", "0"]),
        (((H0, F0), (H0, F0)), ValueError, ["state:", "1 STPNState", "2"]),
        (((H0, F0, F0),), TypeError, ["state[0]:", "STPNState", "tuple"]),
        (((H0, F0[:1]),), ValueError, ["state[0].f:", "(3, 4, 9)", "(1, 4, 9)"]),
        ((STPNlState(H0, H0, F0),), TypeError, ["state[0]:", "STPNState", "STPNlState"]),
        ((STPNState(H0, None),), TypeError, ["state[0].f:", "Tensor", "None"]),
        ((STPNState(H0[:1], F0[:1]),), ValueError, ["state[0].h:", "(3, 4)", "(1, 4)"]),
        ((STPNState(H0, F0[:1]),), ValueError, ["state[0].f:", "(3, 4, 9)", "(1, 4, 9)"]),
        ((STPNState(H0, F0[..., :1]),), ValueError, ["state[0].f:", "(3, 4, 9)", "(3, 4, 1)"]),
        ((STPNState(H0, F0.mT),), ValueError, ["state[0].f:", "(3, 4, 9)", "(3, 9, 4)"]),
        ((STPNState(H0[0], F0[0]),), ValueError, ["state[0].h:", "(3, 4)", "(4,)"]),
        ((STPNState(H0, F0.double()),), TypeError, ["state[0].f:", "float32", "float64"]),
        ((STPNState(H0.half(), F0),), TypeError, ["state[0].h:", "float32", "float16"]),
        ((STPNState(H0, F0.to("meta")),), ValueError, ["state[0].f:", "cpu", "meta"]),
        ((STPNState(H0, F0.to_sparse()),), TypeError, ["state[0].f:", "dense", "sparse"]),
    ],
)
def test_state(state, error, words) -> None:
    layer = STPNr(INPUTS, HIDDEN, batch_first=True)
    calls = [lambda: layer(zeros(*X), state), lambda: layer.step(zeros(BATCH, INPUTS), state)]
    for call in calls:
        with pytest.raises(error) as caught:
            call()
        for word in words:
            assert word in str(caught.value)


def test_state_of_another_batch_after_a_shorter_last_batch() -> None:
    layer = STPNl(INPUTS, HIDDEN, num_layers=2, batch_first=True)
    _, state = layer(zeros(*X))
    with pytest.raises(ValueError, match=r"state\[0\]\.h: expected shape \(2, 4\) .* got \(3, 4\)"):
        layer(zeros(2, STEPS, INPUTS), state)
    with pytest.raises(ValueError, match=r"state\[0\]\.h: expected shape \(4,\) .* got \(3, 4\)"):
        layer(zeros(STEPS, INPUTS), state)


@pytest.mark.parametrize(
    ("reset", "error", "words"),
    [
        (True, TypeError, ["reset:", "Tensor", "True"]),
        (zeros(BATCH, STEPS), TypeError, ["reset:", "torch.bool", "torch.float32"]),
        (zeros(BATCH, STEPS, dtype=torch.uint8), TypeError, ["reset:", "torch.bool", "uint8"]),
        (zeros(STEPS, BATCH, dtype=torch.bool), ValueError, ["reset:", "(3, 6)", "(6, 3)"]),
        (zeros(BATCH, 1, dtype=torch.bool), ValueError, ["reset:", "(3, 6)", "(3, 1)"]),
        (zeros(BATCH, dtype=torch.bool), ValueError, ["reset:", "(3, 6)", "(3,)"]),
        (zeros(BATCH, STEPS, 1, dtype=torch.bool), ValueError, ["reset:", "(3, 6)", "(3, 6, 1)"]),
        (zeros(BATCH, STEPS, dtype=torch.bool, device="meta"), ValueError, ["reset:", "meta"]),
    ],
)
def test_reset(reset, error, words) -> None:
    with pytest.raises(error) as caught:
        STPNf(INPUTS, HIDDEN, batch_first=True)(zeros(*X), None, reset)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind, grad) -> None:
    cell = kind(INPUTS, HIDDEN)
    x, state = zeros(BATCH, INPUTS), cell.initial_state(BATCH)
    bad = [
        ((zeros(*X),), ValueError, r"x: .*\(B, I\) or \(I,\) with I = 5, got \(3, 6, 5\)"),
        ((zeros(BATCH, 4),), ValueError, r"x: .*I = 5, got \(3, 4\)"),
        ((x.double(),), TypeError, r"x: expected dtype torch.float32, got torch.float64"),
        (("x",), TypeError, r"x: expected a Tensor, got 'x' \(str\)"),
        ((x, (state,)), TypeError, r"state: expected STPNl?State, got tuple"),
        ((x[:2], state), ValueError, r"state\.h: expected shape \(2, 4\) .* got \(3, 4\)"),
        ((x[0], state), ValueError, r"state\.h: expected shape \(4,\) .* got \(3, 4\)"),
        ((x, state.to(torch.float64)), TypeError, r"state\.h: expected dtype torch.float32"),
        ((x, state, x[:, 0]), TypeError, r"reset: expected dtype torch.bool, got torch.float32"),
        ((x, state, zeros(1, dtype=torch.bool)), ValueError, r"reset: expected shape \(3,\)"),
    ]
    with torch.set_grad_enabled(grad):
        for arguments, error, words in bad:
            with pytest.raises(error, match=words):
                cell(*arguments)


def test_step() -> None:
    layer = STPNr(INPUTS, HIDDEN)
    with pytest.raises(
        ValueError, match=r"x: expected \(B, I\) or \(I,\) .* got shape \(3, 6, 5\)"
    ):
        layer.step(zeros(*X))
    with pytest.raises(ValueError, match=r"reset: expected shape \(3,\) .* got \(1,\)"):
        layer.step(zeros(BATCH, INPUTS), None, zeros(1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"step: .* bidirectional"):
        STPNr(INPUTS, HIDDEN, bidirectional=True).step(zeros(BATCH, INPUTS))


@pytest.mark.parametrize("kind", [STPNr, STPNrCell])
def test_initial_state(kind) -> None:
    core = kind(INPUTS, HIDDEN)
    with pytest.raises(TypeError, match=r"batch_size: expected a positive int, got 2.5"):
        core.initial_state(2.5)
    with pytest.raises(ValueError, match=r"batch_size: expected a positive int, got -1"):
        core.initial_state(-1)
    with pytest.raises(TypeError, match=r"dtype: .* torch.int32"):
        core.initial_state(2, dtype=torch.int32)


@pytest.mark.parametrize("kind", LAYERS + CELLS)
@pytest.mark.parametrize("option", ["foo", "proj_size", "norm_scales"])
def test_an_unknown_option_names_the_class_that_was_called(kind, option) -> None:
    with pytest.raises(TypeError, match=f"^{kind.__name__} has no option {option!r}, it takes inp"):
        kind(INPUTS, HIDDEN, **{option: 1})
    with pytest.raises(TypeError, match=r"Did you mean 'norm_scale'\?$"):
        kind(INPUTS, HIDDEN, norm_scales=1)
