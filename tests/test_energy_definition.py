"""The meter equals the definition of power, evaluated synapse by synapse, for all that it knows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from stpn.energy import EnergyMeter
from stpn.nn import registry
from stpn.nn.fast_weights import FastWeightsCell
from stpn.nn.hebbff import HebbFFCell
from stpn.nn.modulated import ModPlastCell
from stpn.nn.recurrent import GRUCell, LSTMCell, MLPCell, RNNCell
from stpn.nn.stpn import STPNfCell, STPNlCell, STPNrCell

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 3
Vector = np.ndarray
Matrix = np.ndarray


def cost(u: Vector, g: Matrix) -> float:
    """sum over synapses of u_j^2 |g_ij|."""
    return sum(u[j] ** 2 * abs(g[i, j]) for i, j in itertools.product(*(range(n) for n in g.shape)))


def sigmoid(a: Vector) -> Vector:
    return 1 / (1 + np.exp(-a))


# Each generator is one model by its definition: it is sent x_t, or None for a fresh state, and
# yields (h, power). `w` are the parameters by name.
Model = Iterator[Any]


def stpn_model(w: dict[str, Any], kind: str) -> Model:
    rows = w["weight"].shape[0]
    hidden = rows // 4 if kind == "l" else rows
    h, c, f = np.zeros(hidden), np.zeros(hidden), np.zeros_like(w["weight"])
    x = yield
    while True:
        if x is None:
            h, c, f = np.zeros_like(h), np.zeros_like(c), np.zeros_like(f)
            x = yield
        u = x if kind == "f" else np.concatenate([x, h])
        n = np.linalg.norm(w["weight"] + f, axis=1, keepdims=True)
        g = (w["weight"] + f) / n
        a = g @ u + w["bias"]
        if kind == "l":
            i, forget, o = (sigmoid(a[k * hidden : (k + 1) * hidden]) for k in (0, 1, 3))
            candidate = np.tanh(a[2 * hidden : 3 * hidden])
            c = forget * c + i * candidate
            h, post = o * np.tanh(c), np.concatenate([i, forget, candidate, o])
        else:
            h = post = np.tanh(a)
        f = w["gamma"] * np.outer(post, u) + w["lambda"] * f / n
        x = yield h, cost(u, g)


def hebbff_model(w: dict[str, Any]) -> Model:
    lambda_, eta = sigmoid(w["lambda"]), -np.exp(w["eta"])
    a = np.zeros_like(w["weight"])
    x = yield
    while True:
        if x is None:
            a = np.zeros_like(a)
            x = yield
        g = w["weight"] + a
        h = sigmoid(g @ x + w["bias"])
        a = lambda_ * a + eta * np.outer(h, x)
        x = yield h, cost(x, g)


def modplast_model(w: dict[str, Any]) -> Model:
    hidden = len(w["bias"])
    h, hebb = np.zeros(hidden), np.zeros((hidden, hidden))
    x = yield
    while True:
        if x is None:
            h, hebb = np.zeros_like(h), np.zeros_like(hebb)
            x = yield
        g = w["weight_hh"] + w["alpha"] * hebb
        power = cost(x, w["weight_ih"]) + cost(h, g)
        new = np.tanh(w["weight_ih"] @ x + w["bias"] + g @ h)
        m = w["eta"] if "eta" in w else np.tanh(w["modulator_weight"] @ new + w["modulator_bias"])
        h, hebb = new, np.clip(hebb + m * np.outer(new, h), -1, 1)
        x = yield h, power


def fast_weights_model(w: dict[str, Any]) -> Model:
    hidden = len(w["bias"])
    h, a = np.zeros(hidden), np.zeros((hidden, hidden))

    def activate(z: Vector) -> Vector:
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-5)
        return np.tanh(w["ln_weight"] * z + w["ln_bias"])

    x = yield
    while True:
        if x is None:
            h, a = np.zeros_like(h), np.zeros_like(a)
            x = yield
        u = np.concatenate([x, h])
        a = 0.9 * a + 0.5 * np.outer(h, h)
        p = w["weight"] @ u + w["bias"]
        inner = activate(p)
        power = cost(u, w["weight"]) + cost(inner, a)
        h = activate(p + a @ inner)
        x = yield h, power


def mlp_model(w: dict[str, Any]) -> Model:
    x = yield
    while True:
        if x is None:
            x = yield
        x = yield np.tanh(w["weight"] @ x + w["bias"]), cost(x, w["weight"])


def fixed_model(w: dict[str, Any], kind: str) -> Model:
    """RNN, LSTM, GRU, and the projected LSTM of PyTorch."""
    width = w["weight_hh"].shape[1]
    hidden = w["weight_hh"].shape[0] // {"lstm": 4, "gru": 3}.get(kind, 1)
    h, c = np.zeros(width), np.zeros(hidden)
    x = yield
    while True:
        if x is None:
            h, c = np.zeros_like(h), np.zeros_like(c)
            x = yield
        power = cost(x, w["weight_ih"]) + cost(h, w["weight_hh"])
        of_x, of_h = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ h + w["bias_hh"]
        if kind == "lstm":
            i, forget, candidate, o = np.split(of_x + of_h, 4)
            c = sigmoid(forget) * c + sigmoid(i) * np.tanh(candidate)
            h = sigmoid(o) * np.tanh(c)
            if "weight_hr" in w:
                power += cost(h, w["weight_hr"])
                h = w["weight_hr"] @ h
        elif kind == "gru":
            (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(of_x, 3), np.split(of_h, 3)
            z = sigmoid(z_x + z_h)
            h = (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        else:
            h = np.tanh(of_x + of_h)
        x = yield h, power


MODELS: dict[str, Callable[[dict[str, Any]], Model]] = {
    "stpnr": lambda w: stpn_model(w, "r"),
    "stpnf": lambda w: stpn_model(w, "f"),
    "stpnl": lambda w: stpn_model(w, "l"),
    "ustpnr": lambda w: stpn_model(w, "r"),
    "ustpnf": lambda w: stpn_model(w, "f"),
    "rnn": lambda w: fixed_model(w, "rnn"),
    "lstm": lambda w: fixed_model(w, "lstm"),
    "gru": lambda w: fixed_model(w, "gru"),
    "mlp": mlp_model,
    "fastweights": fast_weights_model,
    "modplast": modplast_model,
    "plastic": modplast_model,
    "hebbff": hebbff_model,
}


def parameters(module: nn.Module, suffix: str = "") -> dict[str, Any]:
    """Of one layer and direction, without the suffix."""
    return {
        name.removesuffix(suffix).removesuffix("_"): value.detach().double().numpy()
        for name, value in module.named_parameters()
        if name.endswith(suffix) and (suffix.endswith("_reverse") or "_reverse" not in name)
    }


def play(
    model: Callable[[dict[str, Any]], Model], w: dict[str, Any], x: Matrix, reset=None
) -> tuple[Matrix, Vector]:
    """x (T, I) through one layer: h (T, H), power (T,)."""
    run = model(w)
    next(run)
    steps = []
    for t, x_t in enumerate(x):
        if reset is not None and reset[t]:
            run.send(None)
        steps.append(run.send(x_t))
    return np.stack([h for h, _ in steps]), np.array([power for _, power in steps])


def expected_power(
    models: list[tuple[Callable, dict[str, Any]]], x: Matrix, directions: int = 1, reset=None
) -> Iterator[Vector]:
    """Power (T,) of each layer and direction of a stack."""
    pairs = [models[k : k + directions] for k in range(0, len(models), directions)]
    for pair in pairs:
        outputs = []
        for (model, w), order in zip(pair, (1, -1), strict=False):
            h, power = play(model, w, x[::order], reset)
            outputs.append(h[::order])
            yield power[::order]
        x = np.concatenate(outputs, axis=1)


def shaken(core: nn.Module) -> nn.Module:
    """Starts are made to do little: let everything matter."""
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def assert_meter(meter: EnergyMeter, names: list[str], powers: list[Vector]) -> None:
    """powers: (B, T) by name."""
    assert list(meter.per_step) == names
    for name, power in zip(names, powers, strict=True):
        np.testing.assert_allclose(meter.per_step[name].numpy(), power.mean(0), rtol=1e-5)
    total = sum(power.mean() for power in powers)
    assert meter.power == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", registry.models())
def test_cores(name: str, masked: bool) -> None:
    core = shaken(registry.build(name, INPUTS, HIDDEN, batch_first=True))
    x = torch.randn(BATCH, STEPS, INPUTS)
    reset = torch.rand(BATCH, STEPS) < 0.4 if masked else None
    with EnergyMeter(core) as meter:
        core(x, None, reset)
    w = parameters(core, "_l0")
    power = np.stack([
        play(MODELS[name], w, x[b].double().numpy(), None if reset is None else reset[b])[1]
        for b in range(BATCH)
    ])  # fmt: skip
    assert_meter(meter, [type(core).__name__], [power])


@pytest.mark.parametrize("name", registry.models())
def test_stacks_in_two_directions(name: str) -> None:
    core = shaken(registry.build(name, INPUTS, HIDDEN, num_layers=2, bidirectional=True))
    x = torch.randn(STEPS, BATCH, INPUTS)
    with EnergyMeter(core) as meter:
        core(x)
    suffixes = ["l0", "l0_reverse", "l1", "l1_reverse"]
    models = [(MODELS[name], parameters(core, f"_{suffix}")) for suffix in suffixes]
    each = [
        list(expected_power(models, x[:, b].double().numpy(), directions=2)) for b in range(BATCH)
    ]
    powers = [np.stack([one[k] for one in each]) for k in range(4)]
    assert_meter(meter, [f"{type(core).__name__}.{suffix}" for suffix in suffixes], powers)


@pytest.mark.parametrize("name", registry.models())
def test_packed_cores(name: str) -> None:
    core = shaken(registry.build(name, INPUTS, HIDDEN, batch_first=True))
    x, lengths = torch.randn(BATCH, STEPS, INPUTS), [2, STEPS, 3]
    with EnergyMeter(core) as meter:
        core(pack_padded_sequence(x, torch.tensor(lengths), True, enforce_sorted=False))
    w = parameters(core, "_l0")
    powers = [play(MODELS[name], w, x[b, :n].double().numpy())[1] for b, n in enumerate(lengths)]
    assert meter.power == pytest.approx(np.concatenate(powers).mean(), rel=1e-5)
    per_step = [np.mean([p[t] for p in powers if len(p) > t]) for t in range(STEPS)]
    np.testing.assert_allclose(meter.per_step[type(core).__name__], per_step, rtol=1e-5)


CELLS = {
    "stpnr": STPNrCell, "stpnf": STPNfCell, "stpnl": STPNlCell, "rnn": RNNCell, "lstm": LSTMCell,
    "gru": GRUCell, "mlp": MLPCell, "fastweights": FastWeightsCell, "modplast": ModPlastCell,
    "hebbff": HebbFFCell,
}  # fmt: skip


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells_step_by_step(name: str, grad: bool) -> None:
    cell = shaken(CELLS[name](INPUTS, HIDDEN))
    x, state = torch.randn(BATCH, STEPS, INPUTS), None
    with torch.set_grad_enabled(grad), EnergyMeter(cell) as meter:
        for t in range(STEPS):
            _, state = cell(x[:, t], state)
    w = parameters(cell)
    power = np.stack([play(MODELS[name], w, x[b].double().numpy())[1] for b in range(BATCH)])
    assert_meter(meter, [type(cell).__name__], [power])


@pytest.mark.parametrize("name", registry.models())
def test_streaming(name: str) -> None:
    core = shaken(registry.build(name, INPUTS, HIDDEN, num_layers=2, batch_first=True))
    x, state = torch.randn(BATCH, STEPS, INPUTS), None
    with torch.no_grad():
        with EnergyMeter(core) as meter:
            for t in range(STEPS):
                _, state = core.step(x[:, t], state)
        with EnergyMeter(core) as whole:
            core(x)
    assert list(meter.per_step) == list(whole.per_step)
    for key, power in meter.per_step.items():
        torch.testing.assert_close(power, whole.per_step[key])
    assert meter.power == pytest.approx(whole.power)


@pytest.mark.parametrize("name", registry.models())
def test_ignored_inputs(name: str) -> None:
    core = shaken(registry.build(name, INPUTS, HIDDEN, batch_first=True))
    x = torch.randn(BATCH, STEPS, INPUTS)
    with EnergyMeter(core, ignore_inputs=[1, -1]) as meter:
        core(x)
    with EnergyMeter(core) as everything:
        core(x)
    assert meter.power < everything.power
    silent = x.clone()
    silent[..., [1, 3]] = 0
    if name == "mlp":  # where silence has no consequences
        with EnergyMeter(core) as expected:
            core(silent)
        assert meter.power == pytest.approx(expected.power)
    if name in ("rnn", "lstm", "gru", "fastweights", "modplast", "plastic"):
        matrix = core.weight_l0 if name == "fastweights" else core.weight_ih_l0
        ignored = (x.square() - silent.square()) @ matrix[:, :INPUTS].detach().abs().sum(0)
        assert everything.power - meter.power == pytest.approx(ignored.mean().item(), rel=1e-4)


@pytest.mark.parametrize(
    "shape", [(INPUTS,), (BATCH, INPUTS), (BATCH, STEPS, INPUTS), (2, 3, 4, 4)]
)
def test_linear(shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(INPUTS, 6), torch.randn(shape)
    with EnergyMeter(layer) as meter:
        layer(x)
    w = layer.weight.detach().double().numpy()
    powers = [cost(u, w) for u in x.reshape(-1, INPUTS).double().numpy()]
    assert meter.power == pytest.approx(np.mean(powers))
    expected = np.reshape(powers, shape[:-1]).mean(0) if len(shape) == 3 else [np.mean(powers)]
    np.testing.assert_allclose(meter.per_step["Linear"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, stride=2, padding=2, groups=2), (BATCH, 4, 9)),
        (nn.Conv1d(4, 6, 3, dilation=2, padding="same"), (BATCH, 4, 9)),
        (nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=1), (BATCH, 2, 6, 5)),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (BATCH, 2, 5, 5)),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False), (2, 5, 5)),
    ],
    ids=str,
)
def test_convolutions(layer: nn.Conv1d | nn.Conv2d, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with EnergyMeter(layer) as meter:
        y = layer(x)
    batched = x if x.dim() == layer.weight.dim() else x.unsqueeze(0)
    if layer.padding_mode != "zeros":
        batched = functional.pad(
            batched, layer._reversed_padding_repeated_twice, mode=layer.padding_mode
        )
        edge = [0] * (layer.weight.dim() - 2)
    elif layer.padding == "same":
        edge = [(layer.kernel_size[0] - 1) * layer.dilation[0] // 2]
    else:
        edge = list(layer.padding)
    w = layer.weight.detach()
    spaces = y.shape[-len(edge) :]
    per_group = w.shape[0] // layer.groups
    total = 0.0
    for out, *place in itertools.product(range(w.shape[0]), *(range(n) for n in spaces)):
        for channel, *tap in itertools.product(*(range(n) for n in w.shape[1:])):
            at = [
                p * s + k * d - e
                for p, s, k, d, e in zip(
                    place, layer.stride, tap, layer.dilation, edge, strict=True
                )
            ]
            if any(not 0 <= a < n for a, n in zip(at, batched.shape[2:], strict=True)):
                continue
            source = out // per_group * w.shape[1] + channel
            u = batched[(slice(None), source, *at)]
            total += (u.square() * w[(out, channel, *tap)].abs()).sum().item()
    assert meter.power == pytest.approx(total / len(batched), rel=1e-5)


TORCH = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def torch_models(module: nn.Module, name: str) -> list[tuple[Callable, dict[str, Any]]]:
    ends = ("", "_reverse") if module.bidirectional else ("",)
    suffixes = [f"_l{k}{end}" for k in range(module.num_layers) for end in ends]
    return [(MODELS[name], parameters(module, suffix)) for suffix in suffixes]


@pytest.mark.parametrize("layout", ["batch first", "time first", "unbatched", "packed"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("name", TORCH)
def test_recurrent_layers_of_pytorch(
    name: str, num_layers: int, bidirectional: bool, layout: str
) -> None:
    module = TORCH[name](
        INPUTS, HIDDEN, num_layers, bidirectional=bidirectional, batch_first=layout != "time first"
    )
    x = torch.randn(BATCH, STEPS, INPUTS)
    lengths = [2, STEPS, 3] if layout == "packed" else [STEPS] * BATCH
    given: Any = {
        "batch first": x,
        "time first": x.transpose(0, 1),
        "unbatched": x[0],
        "packed": pack_padded_sequence(x, torch.tensor(lengths), True, enforce_sorted=False),
    }[layout]
    with EnergyMeter(module) as meter:
        module(given)
    each = [
        list(
            expected_power(
                torch_models(module, name), x[b, :n].double().numpy(), 2 if bidirectional else 1
            )
        )
        for b, n in enumerate(lengths[: 1 if layout == "unbatched" else BATCH])
    ]
    total = 0.0
    for k, power in enumerate(meter.per_step.values()):
        parts = [one[k] for one in each]
        expected = [np.mean([p[t] for p in parts if len(p) > t]) for t in range(STEPS)]
        np.testing.assert_allclose(power, expected, rtol=1e-5)
        total += np.concatenate(parts).mean()
    assert meter.power == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("name", TORCH)
def test_initial_states_count(name: str) -> None:
    module = TORCH[name](INPUTS, HIDDEN, batch_first=True)
    x, h = torch.randn(BATCH, 1, INPUTS), torch.randn(1, BATCH, HIDDEN)
    with EnergyMeter(module) as meter:
        module(x, hx=(h, torch.randn_like(h)) if name == "lstm" else h)
    w = parameters(module, "_l0")
    powers = [
        cost(x[b, 0].double().numpy(), w["weight_ih"])
        + cost(h[0, b].double().numpy(), w["weight_hh"])
        for b in range(BATCH)
    ]
    assert meter.power == pytest.approx(np.mean(powers), rel=1e-5)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_projected_lstm(bidirectional: bool, packed: bool) -> None:
    module = nn.LSTM(INPUTS, 4, 2, batch_first=True, bidirectional=bidirectional, proj_size=2)
    x = torch.randn(BATCH, STEPS, INPUTS)
    lengths = [2, STEPS, 3] if packed else [STEPS] * BATCH
    with EnergyMeter(module) as meter:
        module(pack_padded_sequence(x, torch.tensor(lengths), True, False) if packed else x)
    each = [
        list(
            expected_power(
                torch_models(module, "lstm"), x[b, :n].double().numpy(), 1 + bidirectional
            )
        )
        for b, n in enumerate(lengths)
    ]
    total = sum(np.concatenate([one[k] for one in each]).mean() for k in range(len(each[0])))
    assert meter.power == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", TORCH)
def test_dropout_between_layers_is_repeated(name: str, packed: bool) -> None:
    """The upper layer's power is that of the very inputs that dropout left it."""
    module = TORCH[name](INPUTS, 16, num_layers=2, dropout=0.5)
    below, above = TORCH[name](INPUTS, 16), TORCH[name](16, 16)
    below.load_state_dict({k: v for k, v in module.state_dict().items() if k.endswith("_l0")})
    above.load_state_dict(
        {k[:-1] + "0": v for k, v in module.state_dict().items() if k.endswith("_l1")}
    )
    x: Any = torch.randn(STEPS, BATCH, INPUTS)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([2, STEPS, 3]), enforce_sorted=False)
    torch.manual_seed(7)
    with EnergyMeter(module) as meter:
        y, _ = module(x)
    after = torch.get_rng_state()
    torch.manual_seed(7)
    hidden, _ = below(x)
    if packed:
        hidden = hidden._replace(data=functional.dropout(hidden.data, 0.5))
    else:
        hidden = functional.dropout(hidden, 0.5)
    assert torch.equal(torch.get_rng_state(), after)
    with EnergyMeter(above) as upper:
        y_again, _ = above(hidden)
    torch.testing.assert_close(_data(y_again), _data(y))
    torch.testing.assert_close(
        meter.per_step[f"{type(module).__name__}.l1"], upper.per_step[type(above).__name__]
    )


def _data(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value.data


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("name", "kind"), [("rnn", nn.RNNCell), ("lstm", nn.LSTMCell), ("gru", nn.GRUCell)]
)
def test_cells_of_pytorch(name: str, kind: type, batched: bool) -> None:
    cell, x, state = kind(INPUTS, HIDDEN), torch.randn(BATCH, STEPS, INPUTS), None
    with EnergyMeter(cell) as meter:
        for t in range(STEPS):
            state = cell(x[:, t] if batched else x[0, t], state)
    powers = np.stack([
        play(MODELS[name], parameters(cell), x[b].double().numpy())[1]
        for b in range(BATCH if batched else 1)
    ])  # fmt: skip
    assert_meter(meter, [kind.__name__], [powers])


def test_half_precision_is_summed_in_full() -> None:
    layer = nn.Linear(1000, 200, dtype=torch.bfloat16)
    x = torch.randn(2, 1000, dtype=torch.bfloat16)
    with EnergyMeter(layer) as meter, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    expected = (x.double().square() @ layer.weight.double().abs().sum(0)).mean().item()
    assert meter.power == pytest.approx(expected, rel=1e-5)
    assert math.isfinite(meter.power)
