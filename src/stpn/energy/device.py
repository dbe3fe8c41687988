"""From the dimensionless measure to watts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProfile:
    """What one unit of activation and one unit of efficacy are on a device."""

    volts: float
    siemens: float

    def __post_init__(self) -> None:
        for name in ("volts", "siemens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")

    def watts(self, power: float) -> float:
        return power * self.volts**2 * self.siemens

    def __str__(self) -> str:
        return (
            f"1 unit of activation = {self.volts:g} V, 1 unit of efficacy = {self.siemens:g} S; "
            "synapses are ohmic, a negative efficacy costs as much as a positive one; drivers, "
            "converters, leakage and the writing of synapses are not counted"
        )
