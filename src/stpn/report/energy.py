"""Which of two networks costs less, over the energy of a write and the resolution of converters."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from stpn._extras import need
from stpn.energy import DeviceProfile, Energy, balance
from stpn.report.style import model_style

BITS = range(4, 13)
WRITES = np.logspace(-16, -12, 161)  # J


class Measured(Protocol):
    """As `stpn.measuring.Measured`."""

    name: str

    def on(self, device: DeviceProfile) -> Energy: ...


def draw_balance(first: Measured, second: Measured, device: DeviceProfile) -> Any:
    """Regions where each costs less, with the break-even line, by ADC bits and write energy.

    Left with the norm as the profile has it, right without: it is the larger unknown.
    """
    need("matplotlib", extra="report")
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = [_colour(network.name) for network in (first, second)]
    cases = {"norm free": device.replace(norm=0.0)}
    if device.norm:
        cases = {f"norm {device.norm * 1e15:.3g} fJ per synapse": device, **cases}
    figure = Figure(figsize=(1.2 + 3.5 * len(cases), 3.6), layout="constrained")
    panels = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    for axes, (title, case) in zip(panels, cases.items(), strict=True):
        ratio = np.empty((len(WRITES), len(BITS)))
        evens = []
        for column, bits in enumerate(BITS):
            energies = [n.on(case.replace(adc_bits=bits, write=1.0)) for n in (first, second)]
            rests = [energy.total - energy.terms.write for energy in energies]
            slopes = [energy.terms.write for energy in energies]  # joules at 1 J per write
            costs = [rest + slope * WRITES for rest, slope in zip(rests, slopes, strict=True)]
            ratio[:, column] = np.log10(costs[0] / costs[1])
            evens.append(balance(*energies).write)
        shades = LinearSegmentedColormap.from_list("", [colours[0], "#FFFFFF", colours[1]])
        drawn = axes.pcolormesh(
            list(BITS), WRITES * 1e15, ratio, cmap=shades, vmin=-1.5, vmax=1.5, shading="nearest",
            rasterized=True,
        )  # fmt: skip
        points = [(b, w * 1e15) for b, w in zip(BITS, evens, strict=True) if w is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color="black", linewidth=1.4)
        axes.set(yscale="log", xlabel="bits of an ADC", title=title)
        axes.set_ylim(WRITES[0] * 1e15, WRITES[-1] * 1e15)
        low, high = ratio.min() < 0, ratio.max() > 0
        if low:
            axes.text(0.97, 0.04, f"{first.name} costs less", transform=axes.transAxes, ha="right")
        if high:
            axes.text(0.03, 0.93, f"{second.name} costs less", transform=axes.transAxes)
    panels[0].set_ylabel("update of one synapse's F (fJ)")
    bar = figure.colorbar(drawn, ax=list(panels))
    bar.set_label(f"energy, {first.name} / {second.name} (log10)")
    return figure


def _colour(name: str) -> str:
    return model_style(name.rpartition("-")[2]).colour
