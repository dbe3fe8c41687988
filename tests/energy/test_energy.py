"""Joules by term: counts of each layer, profiles from files, the break-even."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import stpn
from stpn.cli import main
from stpn.energy import DeviceProfile, EnergyMeter, balance, profile, profiles
from stpn.errors import ConfigError
from stpn.nn import registry

UNIT = DeviceProfile(
    volts=1, siemens=1, pulse=1, read=0, dac_per_bit=1, adc_per_bit=1, dac_bits=2, adc_bits=2,
    write=1, norm=1, mac=1, leakage=1, cycle=1,
)  # fmt: skip


def counts(model: nn.Module, *inputs: torch.Tensor, device: DeviceProfile = UNIT) -> dict:
    with EnergyMeter(model) as meter, torch.no_grad():
        model(*inputs)
    terms = meter.energy(device).terms.to_dict()
    terms["array"] -= device.array(meter.power)
    return {name: value for name, value in terms.items() if name != "array"}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "writes", "normalised", "cells"),
    [
        ("stpnr", 8, 3, 24, 24, 24),
        ("stpnf", 5, 3, 15, 15, 15),
        ("stpnl", 8, 12, 96, 96, 96),
        ("ustpnr", 8, 3, 24, 24, 24),
        ("hebbff", 5, 3, 15, 0, 15),
        ("lstm", 8, 12, 0, 0, 96),
        ("gru", 8, 12, 0, 0, 72),
        ("rnn", 8, 3, 0, 0, 24),
        ("mlp", 5, 3, 0, 0, 15),
        ("modplast", 11, 4, 9, 0, 27),
        ("plastic", 8, 3, 9, 0, 24),
        ("fastweights", 11, 6, 9, 6, 33),
    ],
)
def test_counts_of_cores(name, inputs, outputs, writes, normalised, cells) -> None:
    core = registry.build(name, 5, 3, batch_first=True)
    found = counts(core, torch.randn(2, 4, 5))
    expected = {"dac": 2 * inputs, "adc": 2 * outputs, "write": writes, "digital": normalised}
    assert found == pytest.approx({**expected, "leakage": cells})


def test_counts_of_torch_layers() -> None:
    conv = counts(nn.Conv2d(2, 3, 3), torch.randn(4, 2, 5, 6))
    assert conv == {"dac": 2 * 12 * 18, "adc": 2 * 12 * 3, "write": 0, "digital": 0, "leakage": 54}
    linear = counts(nn.Linear(5, 3), torch.randn(4, 5))
    assert linear == {"dac": 10, "adc": 6, "write": 0, "digital": 0, "leakage": 15}
    embedding = counts(nn.Embedding(7, 3), torch.tensor([1, 2]))
    assert embedding == {"dac": 2, "adc": 6, "write": 0, "digital": 0, "leakage": 21}
    lstm = counts(nn.LSTM(5, 3), torch.randn(4, 2, 5))
    assert lstm == {"dac": 16, "adc": 24, "write": 0, "digital": 0, "leakage": 96}
    assert counts(nn.GRUCell(5, 3), torch.randn(2, 5))["adc"] == 24
    x = torch.randn(2, 6, 4)  # six keys: two products of four for each query
    attention = counts(nn.MultiheadAttention(4, 2, batch_first=True), x, x, x)
    assert attention == {"dac": 32, "adc": 32, "write": 0, "digital": 48, "leakage": 64}


def test_the_array_term_is_the_papers_power_and_long_sums_are_split() -> None:
    layer, x = nn.Linear(600, 3), torch.randn(4, 600)
    ideal = profile("ideal")
    with EnergyMeter(layer) as meter:
        layer(x)
    energy = meter.energy(ideal)
    assert energy.total == energy.terms.array == pytest.approx(meter.power * 0.04 * 25e-6 * 1e-7)
    pcm = profile("pcm")
    assert meter.energy(pcm).terms.adc == pytest.approx(2 * 3 * (8 * 100e-15 + 4**8 * 1e-18))
    assert "adc" in str(meter.energy(pcm)).splitlines()[0]


def test_images_of_two_sizes_count_with_their_shares() -> None:
    conv = nn.Conv1d(1, 1, 1)
    with EnergyMeter(conv) as meter:
        conv(torch.randn(3, 1, 4))
        conv(torch.randn(1, 1, 8))
    assert meter.energy(UNIT).terms.adc == pytest.approx(2 * (3 * 4 + 8) / 4)


def test_frozen_synapses_and_ignored_inputs_cost_nothing() -> None:
    core, x = stpn.STPNr(5, 3, batch_first=True), torch.randn(2, 4, 5)
    with EnergyMeter(core, ignore_inputs=[0, 1]) as meter, stpn.frozen_plasticity(core):
        core(x)
    terms = meter.energy(UNIT).terms
    assert (terms.write, terms.dac) == (0, 2 * 6)
    assert counts(stpn.STPNr(5, 3, plastic="hidden"), x)["write"] == 9
    assert counts(stpn.STPNr(5, 3, norm=None), x)["digital"] == 0


def test_break_even() -> None:
    energies = []
    for name in ("stpnr", "lstm"):
        core = registry.build(name, 5, 3)
        with EnergyMeter(core) as meter:
            core(torch.randn(4, 2, 5))
        energies.append([meter.energy(UNIT.replace(write=w)) for w in (0.0, 0.1)])
    even = balance(energies[0][1], energies[1][1])
    assert even.write is None or even.write > 0
    free = UNIT.replace(norm=0.0)
    device = free.replace(adc_per_bit=10.0)
    both = []
    for name in ("stpnr", "lstm"):
        core = registry.build(name, 5, 3)
        with EnergyMeter(core) as meter:
            core(torch.randn(4, 2, 5))
        both.append(meter)
    found = balance(*(meter.energy(device) for meter in both))
    assert found.write == pytest.approx(found.budget)
    at = device.replace(write=found.write)
    first, second = (meter.energy(at).total for meter in both)
    assert first == pytest.approx(second)
    same = balance(*(both[1].energy(device) for _ in range(2)))
    assert same.write is None
    assert same.budget is None
    with pytest.raises(ValueError, match="same device"):
        balance(both[0].energy(device), both[1].energy(free))


def test_profiles_of_the_package_have_sources_and_possible_ranges() -> None:
    assert profiles() == ["ideal", "pcm", "reram", "srtio3", "digital-22nm"]
    for name in profiles():
        device = profile(name)
        assert device.name == name
        assert all(row[4] not in ("", "given") for row in device.describe())
        for field, known in device.assumptions.items():
            value = getattr(device, field)
            if known.low is not None:
                assert known.low <= value <= known.high
    with pytest.raises(ValueError, match="pulse 0"):
        profile("digital-22nm").watts(1.0)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(
        'version = 1\nbase = "reram"\nf_bits = 6\n'
        '[write]\nvalue = 2e-15\nsource = "run 12"\nlow = 1e-15\nhigh = 1e-14\n'
    )
    device = profile(file)
    assert (device.name, device.f_bits, device.write) == ("ours", 6, 2e-15)
    assert device.siemens == profile("reram").siemens
    assert device.assumptions["write"].source == "run 12"
    changed = device.replace(write=1.0)
    assert "write" not in changed.assumptions


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("version = 2\nvolts = 1.0\nsiemens = 1.0", "version: expected 1, got 2"),
        ("volts = 1.0\nsiemens = 1.0", "version: expected 1, got None"),
        ("version = 1\nvolts = 1.0", "it lacks 'siemens'"),
        ("version = 1\nvolts = -1.0\nsiemens = 1.0", "volts: expected a positive number"),
        ('version = 1\nbase = "pcm"\nadc_range = 0.0', "adc_range: expected a positive number"),
        ('version = 1\nbase = "pcm"\nf_range = 0.0', "f_range: expected a positive number"),
        ('version = 1\nbase = "pcm"\nwrite = -1e-15', "write: expected a finite number"),
        ('version = 1\nbase = "pcm"\nwrite = nan', "write: expected a finite number"),
        ('version = 1\nbase = "pcm"\nadc_bits = 17', "adc_bits: expected 2 to 16 bits"),
        ('version = 1\nbase = "pcm"\nw_bits = 8.0', "w_bits: expected 2 to 16 bits"),
        ('version = 1\nbase = "pcm"\nstuck_on = 0.6\nstuck_off = 0.6', "at most 1 together"),
        ('version = 1\nbase = "pcm"\nwrit = 1.0', "unknown value 'writ' (did you mean 'write'?)"),
        ('version = 1\nbase = "nope"', "unknown base 'nope'"),
        ('version = 1\nbase = "ours.toml"', "unknown base"),
        (
            'version = 1\nbase = "pcm"\nvolts = 1e200',
            "volts: expected a positive number, 1e+30 at most",
        ),
        (f'version = 1\nbase = "pcm"\nwrite = {10**400}', "at least 0, 1e+30 at most"),
        ('version = 1\nbase = "pcm"\nvolts = [1.0]', "volts: expected one number, got (1.0,)"),
        ('version = 1\nbase = "pcm"\ndrift = 1.0', "drift: expected several numbers, got 1.0"),
        ('version = 1\nbase = "pcm"\n[write]\nsource = "a"', "write: it lacks 'value'"),
        ('version = 1\nbase = "pcm"\n[write]\nvalue = 1.0\nlow = 2.0\nhigh = 2.0', "low < high"),
        ('version = 1\nbase = "pcm"\n[write]\nvalue = 1.0\nlow = 2.0\nhigh = 3.0', "outside its"),
        ('version = 1\nbase = "pcm"\n[write]\nvalue = 1.0\nlow = 0.0\nhigh = inf', "as high, got"),
        ('version = 1\nbase = "pcm"\n[write]\nvalue = 1.0\nunit = "fJ"', "expected it in J"),
        ('version = 1\nbase = "pcm"\ndrift = [1.0]', "drift: expected four numbers"),
        ('version = 1\nbase = "pcm"\ndrift = [0.0, 0.0, 0.2, 0.1]', "drift: expected 0 <= least"),
        (
            'version = 1\nbase = "pcm"\nprogramming = [0.1, -0.2]',
            "programming: expected a deviation",
        ),
        ('version = 1\nbase = "pcm"\nwrite = "much"', "write: expected"),
        ("version = = 1", "is not TOML"),
    ],
)
def test_impossible_profiles(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "ours.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        profile(file)
    assert sentence in str(error.value)


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown device profile 'pmc'.*'pcm'"):
        profile("pmc")
    meter = EnergyMeter(nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"device: expected a stpn\.DeviceProfile"):
        meter.energy("pcm")  # type: ignore[arg-type]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "even"
    assert main(["energy", "compare", "art-stpnr", "art-lstm", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget_per_synapse"] == pytest.approx(55e-15, rel=0.02)
    assert found["break_even_write"] is None
    assert [network["writes_per_step"] for network in found["networks"]] == [528, 0]
    assert all(Path(file).stat().st_size > 10_000 for file in found["files"])
    assert main(["energy", "profiles", "srtio3"]) == 0
    assert "Weilenmann" in capsys.readouterr().out
    assert main(["energy", "compare", "art-stpnr", "art-lstm", "--device-profile", "x.toml"]) == 1


def test_a_profile_is_a_value() -> None:
    pcm = profile("pcm")
    assert pcm == profile("pcm")
    assert hash(pcm) == hash(profile("pcm"))
    assert dataclasses.replace(pcm, write=0.0) != pcm
