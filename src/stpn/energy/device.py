"""`DeviceProfile`: what is assumed of a device, its energies and its imperfections.

A profile made by hand, `DeviceProfile(volts=0.2, siemens=25e-6)`, says what a unit of the paper's
measure is, and assumes nothing else: all other energies are 0, and the device has no faults. Those
that come with the package, and those of a file, are read by `stpn.energy.profiles`; each of their
values has a source and a range.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_BITS = 16
LARGEST = 1e30  # of a value in its unit: products of a few stay numbers


@dataclass(frozen=True)
class Assumption:
    """Where a value of a profile comes from, and between which others it may lie."""

    source: str
    low: float | None = None
    high: float | None = None


def _assumed(
    default: Any,
    unit: str,
    text: str,
    *,
    low: float = 0.0,
    high: float = math.inf,
    over: bool = False,
) -> Any:
    """A field of a profile; `over`: more than `low`, not equal to it."""
    meta = {"unit": unit, "text": text, "low": low, "high": high, "over": over}
    given = {} if default is None else {"default": default}
    return field(**given, metadata=meta)


def _bits(text: str) -> Any:
    meta = {"unit": "bit", "text": text, "bits": True}
    return field(default=None, metadata=meta)


@dataclass(frozen=True)
class DeviceProfile:
    """What is assumed of a device. `profile.describe()` lists all of it with units and sources."""

    volts: float = _assumed(None, "V", "one unit of activation", over=True)
    siemens: float = _assumed(None, "S", "one unit of efficacy", over=True)
    pulse: float = _assumed(100e-9, "s", "how long a read lasts; 0: digital, nothing is ohmic")

    # Joules.
    read: float = _assumed(0.0, "J", "per synapse that is read, beside u² |g|: a digital memory")
    dac_per_bit: float = _assumed(0.0, "J", "per bit of an input's conversion")
    adc_per_bit: float = _assumed(0.0, "J", "per bit of a sum's conversion")
    adc_per_level: float = _assumed(0.0, "J", "per 4^bits of a sum's conversion: thermal noise")
    write: float = _assumed(0.0, "J", "per update of one synapse's F")
    write_share: float = _assumed(1.0, "1", "plastic synapses that a step writes", high=1.0)
    norm: float = _assumed(0.0, "J", "per value of which a norm is taken")
    mac: float = _assumed(0.0, "J", "per digital multiplication and addition")
    leakage: float = _assumed(0.0, "W", "per cell, while it waits")
    cycle: float = _assumed(1e-6, "s", "how long a time step of the network lasts")
    lines: int = _assumed(512, "1", "inputs of one array; more are split over several", low=1)

    # Converters. None: as fine as the numbers are.
    dac_bits: int | None = _bits("of inputs, with sign")
    adc_bits: int | None = _bits("of sums, with sign")
    adc_range: float = _assumed(
        10.0, "1", "largest sum, in largest weights times largest inputs", over=True
    )

    # Imperfections of W: a pair of conductances per synapse, relative to the largest of its neuron.
    w_bits: int | None = _bits("of W, with sign")
    programming: tuple[float, ...] = _assumed(
        (), "g_max", "deviation of a programmed conductance: polynomial of g / g_max", low=-math.inf
    )
    drift: tuple[float, ...] = _assumed(
        (), "1", "exponent of drift: slope by ln g, offset, least, most", low=-math.inf
    )
    drift_spread: tuple[float, ...] = _assumed(
        (), "1", "its deviation: slope by ln g, offset, least, most", low=-math.inf
    )
    drift_start: float = _assumed(20.0, "s", "when drift is measured first", over=True)
    flicker: float = _assumed(0.0, "1", "1/f noise: factor of g^-0.65, at most 0.2", high=1.0)
    flicker_read: float = _assumed(250e-9, "s", "1/f noise: length of a read", over=True)
    stuck_off: float = _assumed(0.0, "1", "share of cells stuck at 0", high=1.0)
    stuck_on: float = _assumed(0.0, "1", "share of cells stuck at g_max", high=1.0)

    # Imperfections of reading.
    read_noise: float = _assumed(0.0, "1", "of each cell, in largest weights", high=1.0)
    output_noise: float = _assumed(
        0.0, "1", "of each sum, in largest weights times largest inputs", high=10.0
    )

    # Imperfections of F.
    f_bits: int | None = _bits("of F, with sign")
    f_range: float | None = field(
        default=None,
        metadata={"unit": "1", "text": "largest |F|, in largest weights", "low": 0.0, "over": True,
                  "optional": True},
    )  # fmt: skip
    lambda_spread: float = _assumed(0.0, "1", "device to device, relative", high=1.0)
    gamma_spread: float = _assumed(0.0, "1", "device to device, relative", high=1.0)
    update_noise: float = _assumed(0.0, "1", "of each update of F, relative", high=10.0)
    update_asymmetry: float = _assumed(
        0.0, "1", "by which updates that lower F are smaller", low=-1.0, high=1.0
    )

    name: str = ""
    text: str = ""
    """What it is, in a line."""
    assumptions: Mapping[str, Assumption] = field(default_factory=dict, hash=False)
    """Source and range, by the name of the value."""

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            if entry.metadata:
                several = isinstance(entry.default, tuple)
                if isinstance(getattr(self, entry.name), tuple) != several:
                    wanted = "several numbers" if several else "one number"
                    raise ValueError(
                        f"{entry.name}: expected {wanted}, got {getattr(self, entry.name)!r}"
                    )
                _check(entry.name, getattr(self, entry.name), entry.metadata)
        if self.stuck_off + self.stuck_on > 1:
            raise ValueError(
                "stuck_off, stuck_on: expected shares of at most 1 together, got "
                f"{self.stuck_off + self.stuck_on:g}"
            )
        if self.f_bits is not None and self.f_range is None:
            raise ValueError("f_bits: expected an f_range too, whose levels they count, got none")
        for g in (step / 100 for step in range(101)):
            deviation = sum(c * g**power for power, c in enumerate(self.programming))
            if deviation < 0:
                raise ValueError(
                    "programming: expected a deviation of at least 0 at every conductance, got "
                    f"{deviation:.3g} at {g:g} of the largest"
                )
        for name in ("drift", "drift_spread"):
            numbers = getattr(self, name)
            if len(numbers) not in (0, 4):
                raise ValueError(
                    f"{name}: expected four numbers (slope, offset, least, most), got "
                    f"{len(numbers)}"
                )
            if numbers and not 0 <= numbers[2] <= numbers[3]:
                raise ValueError(
                    f"{name}: expected 0 <= least <= most, got {numbers[2]!r} and {numbers[3]!r}"
                )

    @property
    def digital(self) -> bool:
        """Whether nothing of it is ohmic."""
        return self.pulse == 0

    def watts(self, power: float) -> float:
        """The paper's measure on this device."""
        if self.digital:
            raise ValueError(
                f"watts: expected a device whose synapses are ohmic, got {self.name or 'one'} with "
                "pulse 0; ask for energy in joules"
            )
        return power * self.volts**2 * self.siemens

    def array(self, power: float) -> float:
        """Joules of one step of the paper's measure."""
        return power * self.volts**2 * self.siemens * self.pulse

    @property
    def dac_conversion(self) -> float:
        """Joules per conversion."""
        return self.dac_per_bit * (self.dac_bits or 0)

    @property
    def adc_conversion(self) -> float:
        """Joules per conversion: E = k1 b + k2 4^b."""
        bits = self.adc_bits or 0
        return self.adc_per_bit * bits + (self.adc_per_level * 4.0**bits if bits else 0.0)

    def replace(self, **changes: Any) -> DeviceProfile:
        """The same with other values; what is changed keeps no source."""
        kept = {name: a for name, a in self.assumptions.items() if name not in changes}
        return dataclasses.replace(self, **{"assumptions": kept, **changes})

    def describe(self) -> list[tuple[str, str, str, str, str]]:
        """Name, value, unit, range and source of each value that is not at its default."""
        rows = []
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            known = self.assumptions.get(entry.name)
            if not entry.metadata or (known is None and value == entry.default):
                continue
            shown = " ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value:g}"
            low, high = (known.low, known.high) if known else (None, None)
            spread = "" if low is None or high is None else f"{low:g} to {high:g}"
            source = known.source if known else "given"
            rows.append((entry.name, shown, entry.metadata["unit"], spread, source))
        return rows

    def __str__(self) -> str:
        missing = [
            word
            for word, counted in (
                ("drivers", self.dac_per_bit),
                ("converters", self.adc_per_bit),
                ("leakage", self.leakage),
                ("the writing of synapses", self.write),
            )
            if not counted
        ]
        if self.digital:
            return f"digital, {self.read:g} J per synapse read, {self.mac:g} J per MAC"
        unit = f"1 unit of activation = {self.volts:g} V, 1 unit of efficacy = {self.siemens:g} S"
        ohmic = "synapses are ohmic, a negative efficacy costs as much as a positive one"
        if not missing:
            return f"{unit}; {ohmic}"
        listed = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
        return f"{unit}; {ohmic}; {listed} {'is' if missing == ['leakage'] else 'are'} not counted"


def _check(name: str, value: Any, meta: Mapping[str, Any]) -> None:
    """ValueError unless the value is possible."""
    if "bits" in meta:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 2 <= value <= MOST_BITS):
            raise ValueError(f"{name}: expected 2 to {MOST_BITS} bits, or none, got {value!r}")
        return
    if value is None and meta.get("optional"):
        return
    low, high = meta.get("low", 0.0), meta.get("high", math.inf)
    over = meta.get("over", False)
    if over and low == 0:
        wanted = "a positive number"
    elif math.isfinite(low) and math.isfinite(high):
        wanted = f"a number from {low:g} to {high:g}"
    else:
        wanted = f"a finite number of at least {low:g}" if math.isfinite(low) else "finite numbers"
    if not math.isfinite(high):
        wanted += f", {LARGEST:g} at most"
    for number in value if isinstance(value, tuple) else (value,):
        good = isinstance(number, (int, float)) and not isinstance(number, bool)
        if (
            good
            and abs(number) <= LARGEST
            and low <= number <= high
            and not (over and number == low)
        ):
            continue
        raise ValueError(f"{name}: expected {wanted} (in {meta['unit']}), got {number!r}")
    if name == "lines" and not isinstance(value, int):
        raise ValueError(f"{name}: expected a whole number, got {value!r}")
