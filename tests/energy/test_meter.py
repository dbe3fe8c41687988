"""How the meter behaves: what it watches, that it disturbs nothing, and that it leaves nothing."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stpn.energy import DeviceProfile, EnergyMeter
from stpn.energy.readings import STREAM, Sum
from stpn.nn import registry
from stpn.nn.operations import Operations
from stpn.nn.stpn import STPNr
from stpn.nn.torch_cores import LSTM

# The networks here have a layer that no meter knows; whether it says so has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:power without what was not measured")

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 6


class Network(nn.Module):
    """An encoder, a core, a layer that no meter knows, and a readout."""

    def __init__(self, name: str = "stpnr") -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(INPUTS, 5), nn.ReLU(), nn.Linear(5, 5))
        self.core = registry.build(name, 5, HIDDEN, batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        self.readout = nn.Linear(HIDDEN, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.core(self.encoder(x))
        return self.readout(self.norm(y))


def inputs() -> Tensor:
    return torch.randn(BATCH, STEPS, INPUTS)


def traces(module: nn.Module) -> list[Any]:
    """What a meter might have left behind."""
    found: list[Any] = []
    for part in module.modules():
        found += [part._forward_hooks, part._forward_pre_hooks]
        found += [name for name in ("_observers", "_power_weights") if name in vars(part)]
    return [trace for trace in found if trace]


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    y = model(x)
    y = y if isinstance(y, Tensor) else y[0]
    y.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [y.detach(), *gradients, torch.get_rng_state()]


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("name", registry.models())
def test_outputs_and_gradients_are_bit_identical(name: str, differentiable: bool) -> None:
    model, x = Network(name), inputs()
    before = results(model, x)
    with EnergyMeter(model, differentiable=differentiable):
        during = results(model, x)
    after = results(model, x)
    for expected, metered, again in zip(before, during, after, strict=True):
        assert torch.equal(metered, expected)
        assert torch.equal(again, expected)


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(INPUTS, HIDDEN, 3, batch_first=True, bidirectional=True, dropout=0.5),
        nn.GRU(INPUTS, HIDDEN, 2, dropout=0.5),
        nn.RNN(INPUTS, HIDDEN),
        nn.Sequential(nn.Conv1d(STEPS, 3, 2), nn.Flatten(), nn.Linear(9, 2)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_layers_of_pytorch_are_bit_identical(module: nn.Module) -> None:
    x = inputs()
    before = results(module, x)
    with EnergyMeter(module, differentiable=True), EnergyMeter(module):
        during = results(module, x)
    for expected, metered in zip(before, during, strict=True):
        assert torch.equal(metered, expected)


@pytest.mark.parametrize("failing", [False, True])
def test_leaving_removes_everything(failing: bool) -> None:
    model, x = Network(), inputs()
    assert not traces(model)
    try:
        with EnergyMeter(model, ignore_inputs=[0]):
            assert traces(model)
            model(x)
            if failing:
                raise KeyError("in the context")
    except KeyError:
        assert failing
    assert not traces(model)
    assert model.core._observers is None


def test_an_exception_in_the_model_keeps_what_was_measured_before() -> None:
    model, x = Network(), inputs()
    meter = EnergyMeter(model, only="core")
    with meter:
        model.core(torch.randn(BATCH, STEPS, 5))
        power = meter.power
        with pytest.raises(ValueError, match="x: expected"):
            model.core(x)
    assert meter.power == power
    assert not traces(model)


def test_a_failure_on_entering_leaves_nothing() -> None:
    model = Network()
    with EnergyMeter(model, only="core", ignore_inputs=[1]):
        before = len(model.encoder[0]._forward_hooks)
        with pytest.raises(ValueError, match=r"ignore_inputs: expected \[1\] of this STPNr"):
            EnergyMeter(model).__enter__()
        assert len(model.encoder[0]._forward_hooks) == before
    assert not traces(model)


def test_nested_meters_read_the_same() -> None:
    model, x = Network(), inputs()
    with EnergyMeter(model) as outer:
        with EnergyMeter(model) as inner:
            model(x)
        first = outer.power
        assert inner.power == first
        model(2 * x)
    assert inner.power == first != outer.power
    assert not traces(model)


def test_meters_may_end_in_any_order() -> None:
    model, x = Network(), inputs()
    first, second = EnergyMeter(model), EnergyMeter(model)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    model(x)
    second.__exit__()
    assert not traces(model)
    assert second.power > 0
    with pytest.raises(RuntimeError, match="nothing was measured"):
        _ = first.power


def test_a_meter_cannot_be_entered_twice() -> None:
    model = Network()
    with EnergyMeter(model) as meter:
        with pytest.raises(RuntimeError, match="on already"):
            meter.__enter__()
        model(inputs())
    assert not traces(model)


def test_repeated_use_goes_on_and_reset_forgets() -> None:
    model, x = Network(), inputs()
    other = torch.randn(7, STEPS + 2, INPUTS)
    meter = EnergyMeter(model, only="core")
    with meter:
        model(x)
    first, steps = meter.power, meter.per_step["core"]
    with meter:
        model(other)
    with EnergyMeter(model, only="core") as second:
        model(other)
    counts = BATCH * STEPS, 7 * (STEPS + 2)
    mean = (first * counts[0] + second.power * counts[1]) / sum(counts)
    assert meter.power == pytest.approx(mean)
    together = meter.per_step["core"]
    assert together.shape == (STEPS + 2,)
    expected = (BATCH * steps + 7 * second.per_step["core"][:STEPS]) / (BATCH + 7)
    torch.testing.assert_close(together[:STEPS], expected)
    torch.testing.assert_close(together[STEPS:], second.per_step["core"][STEPS:])
    meter.reset()
    with meter:
        model(x)
    assert meter.power == first


def test_a_layer_used_twice_counts_each_call() -> None:
    layer = nn.Linear(INPUTS, INPUTS)
    x = torch.randn(BATCH, INPUTS)
    with EnergyMeter(layer) as meter:
        y = layer(layer(x))
    del y
    powers = [(u.square() @ layer.weight.abs().sum(0)).mean().detach() for u in (x, layer(x))]
    torch.testing.assert_close(meter.per_step["Linear"], torch.stack(powers))
    assert meter.power == pytest.approx(torch.stack(powers).mean().item())


def test_several_models() -> None:
    one, other, x = Network(), Network("lstm"), inputs()
    alone = []
    for model in (one, other):
        with EnergyMeter(model) as meter:
            model(x)
        alone.append(meter.power)
    for models, names in (
        ((one, other), ("0.core", "1.core")),
        (([one, other],), ("0.core", "1.core")),
        (({"ours": one, "theirs": other},), ("ours.core", "theirs.core")),
    ):
        with EnergyMeter(*models) as meter:
            one(x)
            other(x)
        assert meter.power == pytest.approx(sum(alone))
        assert set(names) <= meter.per_step.keys()
    with EnergyMeter(one, one) as meter:  # the same one twice is one
        one(x)
    assert meter.power == pytest.approx(alone[0])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["encoder.0", "encoder.2", "core", "readout"]),
        ({"only": "core"}, ["core"]),
        ({"only": ["core", "readout"]}, ["core", "readout"]),
        ({"only": "encoder"}, ["encoder.0", "encoder.2"]),
        ({"only": "encoder.*"}, ["encoder.0", "encoder.2"]),
        ({"only": nn.Linear}, ["encoder.0", "encoder.2", "readout"]),
        ({"only": nn.Linear, "skip": "encoder"}, ["readout"]),
        ({"only": [STPNr, "encoder.0"]}, ["encoder.0", "core"]),
        ({"skip": nn.Linear}, ["core"]),
        ({"skip": (nn.Sequential, "core")}, ["readout"]),
        ({"skip": LSTM}, ["encoder.0", "encoder.2", "core", "readout"]),
    ],
)
def test_only_and_skip(options: dict[str, Any], names: list[str]) -> None:
    model = Network()
    with EnergyMeter(model, **options) as meter:
        model(inputs())
    assert list(meter.per_step) == names
    called = {"encoder.0", "encoder.2", "core", "readout"}
    assert called & meter.left_out.keys() == called - set(names)


def test_what_it_does_not_know_is_listed() -> None:
    model = Network()
    model.scale = nn.Parameter(torch.ones(1))
    model.mixed = nn.Bilinear(4, 2, 3)
    meter = EnergyMeter(model)
    assert meter.unknown == {"Network": "Network", "norm": "LayerNorm", "mixed": "Bilinear"}
    assert "norm (LayerNorm)" in str(meter)
    with pytest.raises(ValueError, match="none in LayerNorm; unknown: LayerNorm"):
        EnergyMeter(nn.LayerNorm(3))


def test_a_partial_sum_says_so_once() -> None:
    model = Network()
    with EnergyMeter(model) as meter:
        model(inputs())
    assert meter.unmeasured == {"norm": "LayerNorm", "unused": "Linear, not called"}
    with pytest.warns(
        UserWarning, match=r"norm \(LayerNorm\), unused \(Linear, not called\)"
    ) as said:
        power = meter.power
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert meter.power == power
        with EnergyMeter(model, skip=[nn.LayerNorm, "unused"]) as whole:
            model(inputs())
        assert not whole.unmeasured
        assert whole.power > 0


def test_the_table_of_nothing() -> None:
    device = DeviceProfile(volts=1, siemens=1)
    for meter in (EnergyMeter(Network()), EnergyMeter(Network(), device=device)):
        assert str(meter).count("not called") == 5
        (total,) = (line for line in str(meter).splitlines() if line.startswith("total"))
        assert total.split()[2:] == ["not", "measured"]


def test_a_device_is_a_profile() -> None:
    with pytest.raises(TypeError, match=r"device: expected a stpn.DeviceProfile.*got 'cpu'"):
        EnergyMeter(Network(), device="cpu")


def test_an_endless_stream_needs_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stpn.energy.readings.STREAM", 4)
    core = STPNr(INPUTS, HIDDEN)
    x = torch.randn(10, BATCH, INPUTS)
    meter, state = EnergyMeter(core), core.initial_state(BATCH)
    with EnergyMeter(core) as whole:
        core(x)
    expected = whole.per_step["STPNr"]
    with meter, torch.no_grad():
        for t in range(10):
            core.step(x[t], state, inplace=True)
    (kept,) = meter._sums.values()
    assert len(kept._steps) == len(kept._step_batches) == 4
    assert meter.power == pytest.approx(whole.power)
    with pytest.warns(UserWarning, match="up to step 4"):
        torch.testing.assert_close(meter.per_step["STPNr"], expected[:4])


def test_memory_of_a_stream_is_bounded() -> None:
    total, power = Sum(), torch.ones(2, 1)
    asked = Operations(cells=1, reads=1, inputs=1, outputs=1, fan_in=1)
    tracemalloc.start()
    for _ in range(STREAM):
        total.add(power, None, asked)
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(2_000):
        total.add(power, None, asked)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 2_000
    assert total.mean() == 1


def test_the_table() -> None:
    model = Network()
    with EnergyMeter(model, skip="readout", ignore_inputs=[2]) as meter:
        model(inputs())
    lines = str(meter).splitlines()
    assert lines[0].split() == ["layer", "kind", "synapses", "power", "share"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:] if line[0] not in "-n"}
    assert rows["encoder.0"][:2] == ["Linear", "20"]
    assert rows["core"][:2] == ["STPNr", str(HIDDEN * (5 + HIDDEN))]
    assert rows["unused"] == ["Linear", "9", "not", "called", "-"]
    assert float(rows["total"][-1]) == pytest.approx(meter.power, rel=1e-3)
    shares = [float(row[-1].rstrip("%")) for row in rows.values() if row[-1].endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert "not measured, unknown: norm (LayerNorm)" in lines
    assert "left out: readout (Linear)" in lines
    assert "not counted: inputs 2 of core" in lines
    assert "device" not in str(meter)


@pytest.mark.parametrize(
    ("name", "synapses"),
    [
        ("stpnr", HIDDEN * 11), ("ustpnf", HIDDEN * 5), ("stpnl", 4 * HIDDEN * 11),
        ("lstm", 4 * HIDDEN * 11), ("gru", 3 * HIDDEN * 11), ("rnn", HIDDEN * 11),
        ("mlp", HIDDEN * 5), ("modplast", HIDDEN * 11), ("hebbff", HIDDEN * 5),
        ("fastweights", HIDDEN * (11 + HIDDEN)),
    ],
)  # fmt: skip
def test_numbers_of_synapses(name: str, synapses: int) -> None:
    row = str(EnergyMeter(registry.build(name, 5, HIDDEN))).splitlines()[2].split()
    assert int(row[2].replace(",", "")) == synapses


def test_device_profile() -> None:
    model, x = Network(), inputs()
    with EnergyMeter(model, device=DeviceProfile(volts=0.2, siemens=3e-6)) as meter:
        model(x)
    assert meter.watts == pytest.approx(meter.power * 0.04 * 3e-6)
    text = str(meter)
    assert "watts" in text.splitlines()[0]
    assert "1 unit of activation = 0.2 V, 1 unit of efficacy = 3e-06 S" in text
    assert f"{meter.watts:.4g}" in text
    with pytest.raises(ValueError, match="device: expected a DeviceProfile"):
        _ = EnergyMeter(model).watts
    for wrong in (0, -1.0, "1", True):
        with pytest.raises(ValueError, match="volts: expected a positive number"):
            DeviceProfile(volts=wrong, siemens=1.0)  # type: ignore[arg-type]


def test_time_of_linear_layers_is_that_of_the_recurrent_ones() -> None:
    x = torch.randn(STEPS, BATCH, INPUTS)
    for options, steps in (({}, BATCH), ({"batch_first": False}, STEPS)):
        layer = nn.Linear(INPUTS, 2)
        with EnergyMeter(layer, **options) as meter:
            layer(x)
        assert meter.per_step["Linear"].shape == (steps,)
    model = nn.ModuleDict({"core": nn.LSTM(INPUTS, 3), "readout": nn.Linear(3, 2)})
    with EnergyMeter(model) as meter:
        model["readout"](model["core"](x)[0])
    assert meter.per_step["readout"].shape == (STEPS,)


def test_ignored_inputs_by_layer() -> None:
    model, x = Network(), inputs()
    with EnergyMeter(model, ignore_inputs={"encoder.0": range(INPUTS), "core": [0]}) as meter:
        model(x)
    assert meter.per_step["encoder.0"].sum() == 0
    assert meter.per_step["core"].sum() > 0
    convolution = nn.Conv2d(2, 3, 3)
    with EnergyMeter(convolution, ignore_inputs=[0, 1]) as meter:
        convolution(torch.randn(1, 2, 5, 5))
    assert meter.power == 0
    lstm = nn.LSTM(INPUTS, 3, 2)
    with EnergyMeter(lstm, ignore_inputs=range(INPUTS)) as meter:
        lstm(torch.randn(1, BATCH, INPUTS))  # from a zero state
    assert meter.per_step["LSTM.l0"].sum() == 0 < meter.per_step["LSTM.l1"].sum()


@pytest.mark.parametrize("name", registry.models())
def test_power_can_be_trained_on(name: str) -> None:
    model, x = Network(name), inputs()
    powers = []
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    meter = EnergyMeter(model, only="core", differentiable=True)
    for _ in range(12):
        meter.reset()
        with meter:
            y = model(x)
        assert isinstance(meter.power, Tensor)
        powers.append(meter.power.item())
        optimiser.zero_grad()
        (0 * y.sum() + meter.power).backward()
        optimiser.step()
    assert powers[-1] < 0.9 * powers[0]
    str(meter)  # with a graph


@pytest.mark.parametrize("stack", ["one", "two layers"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_gradient_of_power_of_pytorchs_layers(kind: type, stack: str) -> None:
    module = kind(INPUTS, 3, num_layers=1 if stack == "one" else 2).double()
    x = torch.randn(STEPS, BATCH, INPUTS, dtype=torch.float64, requires_grad=True)

    def power(x: Tensor, *values: Tensor) -> Tensor:
        with EnergyMeter(module, differentiable=True) as meter:
            torch.func.functional_call(module, dict(zip(names, values, strict=True)), x)
        return meter.power

    names = [name for name, _ in module.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in module.parameters()]
    assert torch.autograd.gradcheck(power, (x, *values))


def test_attribute_switches_the_graph() -> None:
    model, x = Network(), inputs()
    meter = EnergyMeter(model)
    meter.differentiable = True
    with meter:
        model(x)
    assert meter.power.requires_grad
    assert all(power.requires_grad for power in meter.per_step.values())
    with EnergyMeter(model) as plain:
        model(x)
    assert plain.power == pytest.approx(meter.power.item())
    assert not any(power.requires_grad for power in plain.per_step.values())
    with torch.no_grad(), EnergyMeter(model, differentiable=True) as meter:
        model(x)
    assert not meter.power.requires_grad


@pytest.mark.parametrize(
    ("models", "options", "error", "words"),
    [
        ((), {}, ValueError, ["models", "at least one"]),
        (([],), {}, ValueError, ["models", "at least one"]),
        ((3,), {}, TypeError, ["models", "modules", "int"]),
        ((nn.Linear(2, 2), None), {}, TypeError, ["models", "modules", "NoneType"]),
        ((Network(),), {"only": "cor"}, ValueError, ["only", "core", "'cor'"]),
        ((Network(),), {"skip": ["core", "x.*"]}, ValueError, ["skip", "readout", "'x.*'"]),
        ((Network(),), {"only": 3}, TypeError, ["'int'"]),
        ((Network(),), {"only": [int]}, TypeError, ["only", "module types", "int"]),
        ((Network(),), {"skip": nn.Module}, ValueError, ["models", "none", "left out", "core"]),
        ((Network(),), {"ignore_inputs": [5]}, ValueError, ["ignore_inputs", "below 5", "core"]),
        ((Network(),), {"ignore_inputs": [0.5]}, TypeError, ["ignore_inputs", "0.5"]),
        ((Network(),), {"ignore_inputs": {"cor": [0]}}, ValueError, ["'cor'", "readout"]),
        (
            (Network(), Network()),
            {"ignore_inputs": [0]},
            ValueError,
            ["ignore_inputs", "dictionary", "0.core", "1.core"],
        ),
    ],
)
def test_bad_arguments(models, options, error, words) -> None:
    with pytest.raises(error) as caught:
        EnergyMeter(*models, **options)
    for word in words:
        assert word in str(caught.value)


def test_many_calls_of_two_lengths_are_all_counted() -> None:
    core = STPNr(3, 4, batch_first=True)
    calls = [torch.randn(1 + k % 3, 5 if k % 7 else 9, 3) for k in range(40)]
    totals, counts = torch.zeros(9, dtype=torch.float64), torch.zeros(9)
    for x in calls:
        with EnergyMeter(core) as one:
            core(x)
        (of_one,) = one.per_step.values()
        totals[: len(of_one)] += of_one * len(x)
        counts[: len(of_one)] += len(x)
    with EnergyMeter(core) as meter:
        for x in calls:
            core(x)
    (of_all,) = meter.per_step.values()
    torch.testing.assert_close(of_all, (totals / counts).float())
