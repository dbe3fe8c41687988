"""Networks on devices: exact where devices are, each fault as defined, trained and metered."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import stpn
from stpn import analog
from stpn.analog import cells, lines
from stpn.energy import DeviceProfile, EnergyMeter, profile
from stpn.nn import registry

PERFECT = DeviceProfile(volts=1, siemens=1)
# Whose steps are not those of a family that there is on devices.
DIGITAL = ("modul", "gradplast", "fwp", "gla", "deltanet", "gateddeltanet")
CORES = [name for name in registry.models() if name not in DIGITAL]


def core_of(name: str, **options: object) -> stpn.nn.RecurrentCore:
    torch.manual_seed(3)
    core = registry.build(name, 5, 4, batch_first=True, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return core


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(3, 6, 5, generator=generator),
        torch.rand(3, 6, generator=generator) < 0.3,
    )


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", CORES)
def test_the_plain_step_of_a_perfect_device_is_the_core(name: str, layers: int) -> None:
    """A range that is never met asks for the plain step, and changes nothing."""
    core = core_of(name, num_layers=layers)
    stepwise = analog.convert(core, PERFECT.replace(f_range=1e6)).eval()
    assert type(stepwise).__name__ == f"Analog{type(core).__name__}"
    x, reset = data()
    with EnergyMeter(core) as expected, EnergyMeter(stepwise) as found:
        y, state = core(x, None, reset)
        z, end = stepwise(x, None, reset)
    torch.testing.assert_close(z, y, atol=1e-5, rtol=1e-4)
    for one, other in zip(end, state, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert found.power == pytest.approx(expected.power, rel=1e-4)
    step, _ = stepwise.step(x[:, 0])
    torch.testing.assert_close(step, core.step(x[:, 0])[0], atol=1e-5, rtol=1e-4)
    with torch.no_grad(), stpn.frozen_plasticity(core), stpn.frozen_plasticity(stepwise):
        torch.testing.assert_close(stepwise(x, end)[0], core(x, state)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CORES)
def test_a_perfect_device_changes_no_bit_and_runs_on_the_kernels(name: str) -> None:
    core = core_of(name)
    converted = analog.convert(core, PERFECT)
    x, reset = data()
    assert torch.equal(converted(x, None, reset)[0], core(x, None, reset)[0])
    assert type(converted).run is type(core).run
    assert converted.state_dict().keys() == core.state_dict().keys()


@pytest.mark.parametrize("name", CORES)
def test_devices_are_drawn_by_the_seed(name: str) -> None:
    core, (x, _) = core_of(name).eval(), data()
    faults = PERFECT.replace(programming=(0.05,), lambda_spread=0.2, gamma_spread=0.2)
    with torch.no_grad():
        one, again, other = (
            analog.convert(core, faults, seed)(x)[0] for seed in (1, 1, 2)
        )  # fmt: skip
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, core(x)[0])


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("device", ["pcm", "reram", "srtio3", "digital-22nm"])
def test_all_cores_on_all_devices_have_gradients(name: str, device: str) -> None:
    core, (x, reset) = core_of(name), data()
    converted = analog.convert(core, profile(device)).train()
    y, _ = converted(x, None, reset)
    y.square().sum().backward()
    for key, parameter in converted.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    with EnergyMeter(converted) as meter, torch.no_grad():
        converted.eval()(x)
    assert math.isfinite(meter.energy(profile(device)).total)


def test_noise_is_new_at_each_call_of_training_and_fixed_devices_after() -> None:
    core, (x, _) = core_of("stpnr"), data()
    converted = analog.convert(core, PERFECT.replace(programming=(0.05,)))
    assert not torch.equal(converted.train()(x)[0], converted(x)[0])
    assert torch.equal(converted.eval()(x)[0], converted(x)[0])
    with torch.no_grad():
        before = converted(x)[0]
        converted.weight_l0.mul_(1.5)  # held cells must follow
        assert not torch.equal(converted(x)[0], before)


def test_an_optimizer_goes_on_after_conversion_in_place() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    parameters = list(model.parameters())
    converted = analog.convert(model, profile("pcm"), inplace=True)
    assert converted is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    again = analog.convert(model, profile("reram"), 2)
    assert again[0].profile.name == "reram"
    assert copy.deepcopy(again)[0].cells.draws.equal(again[0].cells.draws)


def test_programming_noise_and_drift_follow_their_formulas() -> None:
    """aihwkit's published formulas, at two conductances of many cells."""
    pcm = profile("pcm")
    weight = torch.tensor([[1.0, 0.5, 0.0, -0.5]]).repeat(40_000, 1).double()
    generator = torch.Generator().manual_seed(0)
    device = cells.Cells(
        PERFECT.replace(programming=pcm.programming), weight.shape, generator, 0.0
    ).eval()
    held = device(weight)
    for column, g in ((1, 0.5), (3, 0.5)):
        sigma = (0.26348 + 1.9650 * g - 1.1731 * g * g) / 25
        # the other cell of the pair is at 0, and cannot go below: half of a normal variable
        zero = 0.26348 / 25
        variance = sigma**2 + zero**2 * (0.5 - 1 / (2 * math.pi))
        assert held[:, column].std().item() == pytest.approx(math.sqrt(variance), rel=0.02)
        sign = 1 if column == 1 else -1
        bias = sign * zero / math.sqrt(2 * math.pi)
        assert held[:, column].mean().item() == pytest.approx(sign * g - bias, abs=5e-4)
    plain = PERFECT.replace(drift=pcm.drift, drift_spread=pcm.drift_spread)
    draws = torch.randn(4, 2, *weight.shape, generator=generator).double()
    hour = cells.programmed(weight, plain, draws, 3600.0)
    mu = max(min(-0.0155 * math.log(0.5) + 0.0244, 0.1), 0.049)
    ratio = (hour[:, 1] / hour[:, 0]).log().mean().item()  # compensation cancels
    mu_one = max(min(0.0244, 0.1), 0.049)
    expected = math.log(0.5) - (mu - mu_one) * math.log(3620 / 20)
    assert ratio == pytest.approx(expected, abs=2e-3)
    assert hour.abs().sum() == pytest.approx(weight.abs().sum().item(), rel=1e-6)


def test_levels_and_stuck_cells() -> None:
    weight = torch.linspace(-2, 2, 41).view(1, -1)
    held = cells.programmed(weight, PERFECT.replace(w_bits=3), torch.zeros(4, 2, 1, 41), 0.0)
    assert sorted({round(v, 4) for v in held.flatten().tolist()}) == pytest.approx(
        [-2, -4 / 3, -2 / 3, 0, 2 / 3, 4 / 3, 2], abs=1e-3
    )
    large = torch.full((100, 100), 0.5)
    large[:, 0] = 1.0
    draws = torch.rand(4, 2, 100, 100, generator=torch.Generator().manual_seed(1))
    held = cells.programmed(large, PERFECT.replace(stuck_off=0.2), draws, 0.0)
    assert (held == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    held = cells.programmed(large, PERFECT.replace(stuck_on=0.2), draws, 0.0)
    assert (held[:, 1:] == -0.5).float().mean().item() == pytest.approx(0.8 * 0.2, abs=0.02)


def test_converters_and_noise_of_reading() -> None:
    g, u = torch.tensor([[0.5, -1.0]]).double(), torch.tensor([[1.0, 0.26], [0.0, 0.0]]).double()
    scale = torch.ones(1).double()
    exact = lines.read(g, u, scale, PERFECT)
    coarse = lines.read(g, u, scale, PERFECT.replace(dac_bits=3))
    assert coarse[0, 0] == pytest.approx(0.5 - 1 / 3)
    assert coarse[1, 0] == 0
    few = lines.read(g, u, scale, PERFECT.replace(adc_bits=3, adc_range=3.0))
    assert few[0, 0] == pytest.approx(0.0)  # steps of 1
    assert lines.read(8 * g, u, scale, PERFECT.replace(adc_bits=8, adc_range=1.5))[0, 0] == 1.5
    many = u[:1].expand(50_000, 2)
    torch.manual_seed(0)
    noisy = lines.read(g, many, scale, PERFECT.replace(read_noise=0.1))
    assert noisy.std().item() == pytest.approx(0.1 * u[0].norm().item(), rel=0.02)
    assert noisy.mean().item() == pytest.approx(exact[0, 0].item(), abs=2e-3)
    noisy = lines.read(2 * g, many, 2 * scale, PERFECT.replace(output_noise=0.1))
    assert noisy.std().item() == pytest.approx(0.2, rel=0.02)


def test_faults_of_f() -> None:
    core, (x, _) = core_of("stpnr", norm=None), data()
    with torch.no_grad():
        core.gamma_l0.abs_()
        scale = core.weight_l0.abs().amax(1, keepdim=True)
        narrow = analog.convert(core, PERFECT.replace(f_range=0.05))(x)[1][0].f
        assert (narrow.abs() <= 0.05 * scale * 1.0001).all()
        stepped = analog.convert(core, PERFECT.replace(f_range=1.0, f_bits=4))(x)[1][0].f
        levels = stepped / scale * 7
        torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
        clean = core.step(x[:, 0])[1][0].f
        lowered = analog.convert(core, PERFECT.replace(update_asymmetry=0.25)).step(x[:, 0])[1][0].f
        torch.testing.assert_close(lowered, torch.where(clean < 0, 0.75 * clean, clean))
        torch.manual_seed(1)
        noisy = analog.convert(core, PERFECT.replace(update_noise=0.3)).step(x[:, 0])[1][0].f
        seen = clean != 0
        assert 0.1 < (noisy[seen] / clean[seen] - 1).std() < 0.5


def test_the_spread_of_rates_is_of_each_synapse_also_in_uniform_variants() -> None:
    core = core_of("ustpnr")
    spread = analog.convert(core, PERFECT.replace(gamma_spread=0.2)).eval()
    _, _, lambda_, gamma = spread.operands(spread.layer_parameters("_l0"))
    assert lambda_.shape == (1, 1)
    assert gamma.shape == (4, 9)
    assert 0.05 < (gamma / core.gamma_l0 - 1).std() < 0.4


def test_linear_and_convolution() -> None:
    x = torch.randn(4, 2, 6, 6)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    fine = PERFECT.replace(dac_bits=16, adc_bits=16, adc_range=100.0)
    torch.testing.assert_close(analog.convert(model, fine)(x), model(x), atol=0.05, rtol=0.01)
    stuck = analog.convert(model, PERFECT.replace(stuck_off=1.0)).eval()
    with EnergyMeter(stuck) as meter:
        stuck(x)
    assert meter.power == 0  # the meter sees what the cells hold
    torch.manual_seed(0)
    noisy = analog.convert(nn.Conv2d(1, 1, 3, bias=False), PERFECT.replace(read_noise=0.1))
    y = noisy(torch.ones(4000, 1, 3, 3)) - noisy.weight.sum()
    assert y.std().item() == pytest.approx(0.1 * 3 * noisy.weight.abs().max().item(), rel=0.05)
    assert noisy(torch.ones(1, 3, 3)).shape == (1, 1, 1)


def test_what_cannot_be_converted_says_so() -> None:
    pcm = profile("pcm")
    with pytest.raises(ValueError, match="found none in LayerNorm"):
        analog.convert(nn.LayerNorm(3), pcm)
    with pytest.raises(ValueError, match=r"0 is a LSTM.*stpn\.LSTM"):
        analog.convert(nn.Sequential(nn.LSTM(2, 3)), pcm)
    with pytest.raises(TypeError, match="profile: expected"):
        analog.convert(nn.Linear(1, 1), "pcm")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="time: expected seconds"):
        analog.convert(nn.Linear(1, 1), pcm, time=-1.0)
    with pytest.raises(ValueError, match="f_bits: expected an f_range"):
        PERFECT.replace(f_bits=4)

    class Own(stpn.RNN):
        def run(self, *args):  # type: ignore[no-untyped-def]
            return super().run(*args)

        run_in_place = stpn.nn.RecurrentCore.run_in_place
        bind = stpn.nn.RecurrentCore.bind

    with pytest.raises(ValueError, match="Own has no form on devices"):
        analog.convert(Own(2, 3), pcm)

    class OwnLinear(nn.Linear):
        pass

    with pytest.raises(ValueError, match="OwnLinear, whose own rule would be lost"):
        analog.convert(OwnLinear(2, 3), pcm)
    assert analog.in_step(PERFECT) == []
    assert "adc_bits" in analog.in_step(pcm)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in DIGITAL),
        ("stpnr", {"plastic_bias": True}),
        ("stpnr", {"norm": "f"}),
        ("lstm", {"layer_norm": True}),
        ("rnn", {"normalize": True}),
    ],
)
def test_what_has_no_form_on_devices_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no form on devices"):
        analog.convert(core_of(name, **options), PERFECT)


@pytest.mark.parametrize("layer", [nn.Bilinear(3, 3, 2), nn.ConvTranspose2d(3, 3, 2)])
def test_weights_that_would_stay_perfect_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), layer)
    with pytest.raises(ValueError, match=r"2 is a .* whose weight would stay as it is"):
        analog.convert(model, PERFECT)
    assert analog.convert(model[:2], PERFECT)[1] is not model[1]  # a norm is digital
