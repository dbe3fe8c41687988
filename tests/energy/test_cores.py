"""The meter equals the definition of power, synapse by synapse, for every core and cell."""

from __future__ import annotations

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
    expected_power,
    parameters,
    play,
    shaken,
)
from torch.nn.utils.rnn import pack_padded_sequence

from stpn.energy import EnergyMeter
from stpn.nn import registry
from stpn.nn.fast_weights import FastWeightsCell
from stpn.nn.hebbff import HebbFFCell
from stpn.nn.modulated import ModPlastCell
from stpn.nn.stpn import STPNfCell, STPNlCell, STPNrCell
from stpn.nn.torch_cores import GRUCell, LSTMCell, MLPCell, RNNCell


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


@pytest.mark.parametrize("name", ["stpnr", "fastweights"])
def test_training_in_a_watch_that_began_without_it(name: str) -> None:
    core = registry.build(name, INPUTS, HIDDEN, batch_first=True)
    meter = EnergyMeter(core)
    with torch.inference_mode():
        meter.__enter__()
        core(torch.randn(BATCH, STEPS, INPUTS))
    core(torch.randn(BATCH, STEPS, INPUTS))[0].sum().backward()
    meter.__exit__(None, None, None)
    assert meter.power > 0
