"""What each baseline promises beside what all cores do (`test_conformance`)."""

from __future__ import annotations

import math

import pytest
import torch

from stpn.nn import registry
from stpn.nn.fast_weights import FastWeights, FastWeightsCell
from stpn.nn.hebbff import HebbFF, HebbFFCell
from stpn.nn.modulated import ModPlast, ModPlastCell
from stpn.nn.state import FastWeightsState, ModPlastState
from stpn.nn.torch_cores import GRU, LSTM, MLP, RNN, GRUCell, LSTMCell, MLPCell, RNNCell
from stpn.ops import reference
from stpn.plasticity import frozen_plasticity, trace

pytestmark = pytest.mark.usefixtures("poisoned_memory")

BATCH, STEPS, INPUTS, HIDDEN = 3, 6, 5, 4
BASELINES = ["rnn", "lstm", "gru", "mlp", "fastweights", "modplast", "plastic", "hebbff"]
CELLS = {
    "rnn": (RNN, RNNCell, {}),
    "lstm": (LSTM, LSTMCell, {}),
    "gru": (GRU, GRUCell, {}),
    "mlp": (MLP, MLPCell, {}),
    "fastweights": (FastWeights, FastWeightsCell, {"steps": 2}),
    "modplast": (ModPlast, ModPlastCell, {}),
    "plastic": (ModPlast, ModPlastCell, {"modulated": False}),
    "hebbff": (HebbFF, HebbFFCell, {"constraint": "clipped"}),
}


def make(name: str, **options):
    core = registry.build(name, INPUTS, HIDDEN, **{"batch_first": True, **options})
    with torch.no_grad():  # starts are made to do little: let everything matter
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def sequence() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, STEPS, INPUTS), torch.rand(BATCH, STEPS) < 0.4


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", BASELINES)
def test_steps_and_cells_are_the_sequence(name: str, grad: bool) -> None:
    core_type, cell_type, options = CELLS[name]
    core = core_type(INPUTS, HIDDEN, batch_first=True, **options)
    cell = cell_type(INPUTS, HIDDEN, **options)
    values = {k.removesuffix("_l0"): v for k, v in core.state_dict().items()}
    values = {"lambda_" if k == "lambda" else k: v for k, v in values.items()}
    cell.load_state_dict(values)
    x, reset = sequence()
    with torch.set_grad_enabled(grad):
        y, (final,) = core(x, None, reset)
        cell_state, core_state = None, None
        for t in range(STEPS):
            h, cell_state = cell(x[:, t], cell_state, reset[:, t])
            y_t, core_state = core.step(x[:, t], core_state, reset[:, t])
            torch.testing.assert_close(h, y[:, t])
            torch.testing.assert_close(y_t, y[:, t])
    torch.testing.assert_close(cell_state, final)
    torch.testing.assert_close(core_state, (final,))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", BASELINES)
def test_bias_is_optional(name: str, bias: bool) -> None:
    core = make(name, bias=bias)
    assert any(key.startswith("bias") for key in core.state_dict()) == bias
    x, reset = sequence()
    y, _ = core(x, None, reset)
    y.sum().backward()


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        (FastWeights, {"steps": 0}, ValueError, ["steps", "positive", "0"]),
        (FastWeights, {"decay": "0.9"}, TypeError, ["decay", "number", "0.9"]),
        (FastWeights, {"rate": math.inf}, ValueError, ["rate", "finite", "inf"]),
        (ModPlast, {"modulated": 1}, TypeError, ["modulated", "True or False", "1"]),
        (HebbFF, {"constraint": "oja"}, ValueError, ["constraint", "'clipped'", "'oja'"]),
        (HebbFF, {"init": "zeros"}, ValueError, ["init", "'familiarity'", "'zeros'"]),
        (RNN, {"nonlinearity": "sigmoid"}, ValueError, ["nonlinearity", "'relu'", "'sigmoid'"]),
        (LSTM, {"hidden_size": 0}, ValueError, ["hidden_size", "positive", "0"]),
    ],
)
def test_bad_options(kind, options, error, words) -> None:
    with pytest.raises(error) as caught:
        kind(**{"input_size": INPUTS, "hidden_size": HIDDEN, **options})
    for word in words:
        assert word in str(caught.value)


def test_fast_weights_is_its_specification() -> None:
    core, (x, reset) = make("fastweights", decay=0.7, rate=0.3, steps=2, eps=1e-3), sequence()
    y, (state,) = core(x, None, reset)
    w_x, w_h = core.weight_l0.split([INPUTS, HIDDEN], 1)
    expected, a, _ = reference.fast_weights(
        x @ w_x.t() + core.bias_l0,
        torch.zeros(BATCH, HIDDEN),
        torch.zeros(BATCH, HIDDEN, HIDDEN),
        w_h,
        core.ln_weight_l0,
        core.ln_bias_l0,
        decay=0.7,
        rate=0.3,
        steps=2,
        eps=1e-3,
        reset=reset,
    )
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state, FastWeightsState(expected[:, -1], a))


@pytest.mark.parametrize("modulated", [True, False])
def test_modplast_is_its_specification(modulated: bool) -> None:
    core, (x, reset) = make("modplast" if modulated else "plastic"), sequence()
    y, (state,) = core(x, None, reset)
    expected, hebb, _ = reference.modplast(
        x @ core.weight_ih_l0.t() + core.bias_l0,
        torch.zeros(BATCH, HIDDEN),
        torch.zeros(BATCH, HIDDEN, HIDDEN),
        core.weight_hh_l0,
        core.alpha_l0,
        core.modulator_weight_l0,
        core.modulator_bias_l0,
        core.eta_l0,
        reset=reset,
    )
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state, ModPlastState(expected[:, -1], hebb))


def test_starts_of_modplast() -> None:
    core = ModPlast(300, 200)
    for part in (core.weight_hh_l0, core.alpha_l0):
        assert 0 <= part.min() < 1e-4
        assert 0.0099 < part.max() <= 0.01
    assert ModPlast(3, 2, modulated=False).eta_l0.item() == pytest.approx(0.01)


@pytest.mark.parametrize("constraint", ["anti-hebbian", "clipped"])
def test_hebbff_is_its_definition(constraint: str) -> None:
    core, (x, reset) = HebbFF(INPUTS, HIDDEN, batch_first=True, constraint=constraint), sequence()
    with torch.no_grad():
        core.eta_l0.add_(0.5)
        core.lambda_l0.add_(-0.2)
    y, (state,) = core(x, None, reset)
    raw_lambda, raw_eta = core.lambda_l0.item(), core.eta_l0.item()
    if constraint == "clipped":
        lambda_, eta = min(max(raw_lambda, 0), 1), raw_eta
    else:
        lambda_, eta = 1 / (1 + math.exp(-raw_lambda)), -math.exp(raw_eta)
    a = torch.zeros(BATCH, HIDDEN, INPUTS)
    for t in range(STEPS):
        a = torch.where(reset[:, t, None, None], 0.0, a)
        h = torch.sigmoid(torch.einsum("bij,bj->bi", core.weight_l0 + a, x[:, t]) + core.bias_l0)
        a = lambda_ * a + eta * h[:, :, None] * x[:, t, None, :]
        torch.testing.assert_close(y[:, t], h)
    torch.testing.assert_close(state.f, a)
    ((given_lambda, given_eta),) = core.plasticity()
    assert given_lambda.item() == pytest.approx(lambda_)
    assert given_eta.item() == pytest.approx(eta)


def test_starts_of_hebbff() -> None:
    ((lambda_, eta),) = HebbFF(100, 26).plasticity()
    assert lambda_.item() == pytest.approx(0.99)
    assert eta.item() == pytest.approx(-5 / 26)
    core = HebbFF(400, 300, constraint="clipped", init="familiarity")
    ((lambda_, eta),) = core.plasticity()
    assert lambda_.item() == pytest.approx(0.99)
    assert eta.item() == pytest.approx(-5 / 400)
    assert core.weight_l0.std().item() == pytest.approx(1 / 20, rel=0.02)
    assert core.bias_l0.std().item() == pytest.approx(1, rel=0.15)
    uniform = HebbFF(400, 300)
    assert uniform.weight_l0.abs().max().item() == pytest.approx(1 / 20, rel=0.01)


def test_anti_hebbian_cannot_be_left() -> None:
    core = HebbFF(INPUTS, HIDDEN)
    with torch.no_grad():
        core.eta_l0.fill_(3.0)
        core.lambda_l0.fill_(8.0)
    ((lambda_, eta),) = core.plasticity()
    assert eta < 0 < lambda_ < 1


@pytest.mark.parametrize(("value", "push", "moves"), [
    (1.2, 1.0, True), (1.2, -1.0, False), (-0.3, -1.0, True), (-0.3, 1.0, False),
    (0.5, 1.0, True), (0.5, -1.0, True),
])  # fmt: skip
def test_clipped_lambda_can_come_back(value: float, push: float, moves: bool) -> None:
    core = HebbFF(INPUTS, HIDDEN, constraint="clipped")
    with torch.no_grad():
        core.lambda_l0.fill_(value)
    ((lambda_, _),) = core.plasticity()
    assert lambda_.item() == pytest.approx(min(max(value, 0.0), 1.0))
    (push * lambda_).backward()
    assert core.lambda_l0.grad.item() == (push if moves else 0.0)


@pytest.mark.parametrize("name", ["fastweights", "modplast", "plastic", "hebbff"])
def test_frozen_plasticity(name: str) -> None:
    core, (x, _) = make(name), sequence()
    _, state = core(x)
    synapses = state[0][1].clone()
    with frozen_plasticity(core):
        y, (after,) = core(x, state)
    torch.testing.assert_close(after[1], synapses)
    assert not torch.allclose(y, core(x, state)[0])


@pytest.mark.parametrize("name", ["modplast", "plastic", "hebbff"])
def test_trace(name: str) -> None:
    core, (x, _) = make(name), sequence()
    traced = trace(core, x)
    y, _ = core(x)
    torch.testing.assert_close(traced.y, y)
    before = torch.cat([torch.zeros(BATCH, 1, HIDDEN), y[:, :-1]], 1)
    u = torch.cat([x, before], -1) if core.recurrent else x
    power = (u.square().unsqueeze(-2) * traced.g.abs()).sum((-2, -1))
    torch.testing.assert_close(traced.power, power)
    act = torch.sigmoid if name == "hebbff" else torch.tanh
    h = act((traced.g @ u.unsqueeze(-1)).squeeze(-1) + core.bias_l0)
    torch.testing.assert_close(h, y)


def test_fast_weights_cannot_be_traced() -> None:
    core, (x, _) = make("fastweights"), sequence()
    with pytest.raises(TypeError, match="no single matrix"):
        trace(core, x)


@pytest.mark.parametrize("name", BASELINES)
def test_repr_shows_options(name: str) -> None:
    core_type, cell_type, options = CELLS[name]
    for kind in (core_type, cell_type):
        text = repr(kind(INPUTS, HIDDEN, **options))
        assert text.startswith(f"{kind.__name__}(5, 4")
        for key, value in options.items():
            assert f"{key}={value!r}" in text
