"""Joules per time step by named terms, from a measured power and what a step asks of hardware.

    array      reading the synapses: the paper's measure in joules, or memory and MACs if digital
    dac        values put on lines
    adc        sums read off lines; an array of limited height is split, and its parts add up
    write      updating the short-term part F
    digital    norms, and products of activations by activations
    leakage    cells that wait

Not counted: activation functions, buses and buffers, control, programming W once, and the periphery
that all models share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from stpn.energy.device import DeviceProfile
from stpn.energy.tables import table
from stpn.nn.operations import Operations


@dataclass(frozen=True)
class Terms:
    """Joules per time step."""

    array: float = 0.0
    dac: float = 0.0
    adc: float = 0.0
    write: float = 0.0
    digital: float = 0.0
    leakage: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.to_dict().values())

    def to_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)

    def __add__(self, other: Terms) -> Terms:
        return Terms(**{n: v + getattr(other, n) for n, v in self.to_dict().items()})

    def __mul__(self, factor: float) -> Terms:
        return Terms(**{name: value * factor for name, value in self.to_dict().items()})


TERMS = tuple(field.name for field in dataclasses.fields(Terms))


def terms_of(operations: Operations, device: DeviceProfile) -> Terms:
    """Of one step, all but what depends on voltages and efficacies."""
    parts = math.ceil(operations.fan_in / device.lines)
    return Terms(
        array=operations.reads * device.read,
        dac=operations.inputs * device.dac_conversion,
        adc=operations.outputs * parts * device.adc_conversion,
        write=operations.writes * device.write_share * device.write,
        digital=operations.normalised * device.norm + operations.products * device.mac,
        leakage=operations.cells * device.leakage * device.cycle,
    )


@dataclass(frozen=True)
class Energy:
    """What a meter measured, in joules per time step on a device."""

    device: DeviceProfile
    layers: Mapping[str, Terms]
    """By layer, mean over time, batch and calls."""
    writes: float
    """Updates of F per time step, in all layers."""
    normalised: float
    """Values of which a norm is taken per time step, in all layers."""

    @property
    def terms(self) -> Terms:
        """All layers together."""
        return sum(self.layers.values(), Terms())

    @property
    def total(self) -> float:
        return self.terms.total

    def __str__(self) -> str:
        lines = [("layer", *TERMS, "total")]
        for name, terms in (*self.layers.items(), ("total", self.terms)):
            lines.append((name, *map(joules, terms.to_dict().values()), joules(terms.total)))
        text = table(lines, left=1)
        return f"{text}\njoules per time step on {self.device.name or 'a device'}: {self.device}"


def joules(value: float) -> str:
    """0.85 pJ, 55 fJ."""
    if value == 0:
        return "0"
    size = abs(value)
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if size >= factor), _UNITS[-1])
    return f"{value / factor:.3g} {unit}"


_UNITS = (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6), ("nJ", 1e-9), ("pJ", 1e-12), ("fJ", 1e-15),
          ("aJ", 1e-18))  # fmt: skip
