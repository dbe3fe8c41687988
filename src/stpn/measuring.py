"""A trained network, measured in joules: `stpn energy compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stpn.energy import DeviceProfile, Energy, EnergyMeter
from stpn.zoo import opened, settings_of


class Measured:
    """A network that was run once under a meter; what it costs on any device follows."""

    def __init__(self, name: str, meter: EnergyMeter, proficiency: float) -> None:
        self.name = name
        self.proficiency = proficiency
        self._meter = meter

    def on(self, device: DeviceProfile) -> Energy:
        return self._meter.energy(device)


def measure(
    source: str | Path, *, whole: bool = False, episodes: int | None = None, env: str | None = None
) -> Measured:
    """Run the network of the package, or of a run, as at the end of its training.

    The recurrent core is measured, as in the paper; `whole`: readout and encoder too.
    """
    changes: dict[str, Any] = {}
    if "final_episodes" in settings_of(source):
        changes["final_episodes"] = episodes or 512
    with opened(source, env=env, **changes) as trainer:
        model: Any = trainer.model
        with EnergyMeter(model if whole else model.core) as meter:
            evaluation = trainer.evaluate()
    return Measured(str(source), meter, evaluation.proficiency)
