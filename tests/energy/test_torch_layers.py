"""The meter equals the definition of power, synapse by synapse, for layers of PyTorch."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import (
    BATCH,
    HIDDEN,
    INPUTS,
    MODELS,
    STEPS,
    assert_meter,
    cost,
    expected_power,
    parameters,
    play,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from stpn.energy import EnergyMeter


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


@pytest.mark.parametrize("shape", [(), (BATCH,), (BATCH, STEPS), (2, 3, 4)])
def test_an_embedding_reads_one_row(shape: tuple[int, ...]) -> None:
    layer, index = nn.Embedding(7, 6, padding_idx=0), torch.randint(7, shape)
    with EnergyMeter(layer, ignore_inputs=[3]) as meter:
        layer(index)
    w = layer.weight.detach().double().numpy()
    powers = []
    for symbol in index.reshape(-1).tolist():
        one_hot = np.eye(7)[symbol] * (symbol != 3)
        powers.append(cost(one_hot, w.T))
    assert meter.power == pytest.approx(np.mean(powers))
    expected = np.reshape(powers, shape).mean(0) if len(shape) == 2 else [np.mean(powers)]
    np.testing.assert_allclose(meter.per_step["Embedding"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape", "size"),
    [
        (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=2, groups=2), (BATCH, 4, 5), None),
        (nn.ConvTranspose1d(4, 6, 3, stride=2, dilation=2), (4, 5), [14]),
        (nn.ConvTranspose2d(2, 3, (3, 2), stride=2, output_padding=1), (BATCH, 2, 3, 4), None),
        (nn.ConvTranspose3d(2, 3, 2, padding=1), (BATCH, 2, 3, 4, 3), None),
        (nn.Conv3d(2, 3, 2, stride=2, padding=1), (BATCH, 2, 4, 3, 5), None),
    ],
    ids=str,
)
def test_other_convolutions_are_linear_maps(
    layer: nn.Module, shape: tuple[int, ...], size: list[int] | None
) -> None:
    """The matrix of the layer as a whole, row by row, and its synapses one by one."""
    x = torch.randn(shape)
    more = () if size is None else (size,)
    with EnergyMeter(layer) as meter:
        layer(x, *more)
    bare = copy.deepcopy(layer)
    bare.register_parameter("bias", None)
    sample = shape[-(layer.weight.dim() - 1) :]
    ones = torch.eye(math.prod(sample)).reshape(-1, *sample)
    with torch.no_grad():
        matrix = bare(ones, *more).flatten(1).t().double().numpy()  # (outputs, inputs)
    powers = [cost(u, matrix) for u in x.reshape(-1, math.prod(sample)).double().numpy()]
    assert meter.power == pytest.approx(np.mean(powers))


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
