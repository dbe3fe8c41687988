"""`stpn energy compare A B`, `stpn energy profiles [NAME]`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from stpn.errors import ConfigError

if TYPE_CHECKING:
    from stpn.energy import Balance


@dataclass(frozen=True)
class Compare:
    """Joules per time step of two networks by term, and the write energy at which they are even."""

    first: Annotated[str, tyro.conf.Positional]
    """A network of the package (`stpn list`), or the directory of a run."""
    second: Annotated[str, tyro.conf.Positional]
    """The one to compare it with."""
    device_profile: str = "pcm"
    """A profile of the package (`stpn energy profiles`), or a TOML file."""
    whole: bool = False
    """Count readout and encoder too; else the recurrent core, as the paper does."""
    episodes: int | None = None
    """Episodes that agents play. None: 512."""
    out: Path | None = None
    """Also draw who costs less over write energy and ADC bits; .svg and .png are added."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Profiles:
    """Device profiles of the package, or every value of one with its unit, range and source."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """One of them, or a TOML file."""


def run(arguments: list[str]) -> int:
    options: Compare | Profiles = tyro.extras.subcommand_cli_from_dict(
        {"compare": Compare, "profiles": Profiles}, args=arguments, prog="stpn energy"
    )
    return _profiles(options) if isinstance(options, Profiles) else _compare(options)


def _profiles(options: Profiles) -> int:
    from stpn.energy import profile, profiles

    if options.name is None:
        for name in profiles():
            print(f"{name:<14}{profile(name).text}")
        return 0
    device = profile(options.name)
    print(f"{device.name}: {device.text}" if device.text else device.name)
    rows = device.describe()
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for *cells, source in rows:
        print(*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)), source)
    return 0


def _compare(options: Compare) -> int:
    from stpn.energy import balance, profile
    from stpn.energy.tables import table
    from stpn.energy.terms import TERMS, joules
    from stpn.measuring import measure

    if options.episodes is not None and options.episodes < 1:
        raise ConfigError(f"episodes must be >= 1, not {options.episodes}")
    device = profile(options.device_profile)
    networks = [
        measure(source, whole=options.whole, episodes=options.episodes)
        for source in (options.first, options.second)
    ]
    energies = [network.on(device) for network in networks]
    even = balance(*energies)
    files = []
    if options.out is not None:
        from stpn.report import figures
        from stpn.report.energy import draw_balance

        picture = draw_balance(networks[0], networks[1], device)
        title = f"{options.first} or {options.second}: which costs less"
        words = f"{title} on {device.name}, over the energy of an update of F and the bits of ADCs"
        files = figures.save(picture, options.out, title, words)
    if options.json:
        content = {
            "device": device.name,
            "networks": [
                {
                    "name": network.name,
                    "proficiency": network.proficiency,
                    "joules_per_step": {**e.terms.to_dict(), "total": e.total},
                    "writes_per_step": e.writes,
                }
                for network, e in zip(networks, energies, strict=True)
            ],
            "break_even_write": even.write,
            "budget_per_synapse": even.budget,
            "files": [str(path) for path in files],
        }
        print(json.dumps(content))
        return 0
    lines: list[tuple[str, ...]] = [("per time step", *(network.name for network in networks))]
    for name in TERMS:
        lines.append((name, *(joules(getattr(e.terms, name)) for e in energies)))
    lines.append(("total", *(joules(e.total) for e in energies)))
    print(table(lines, left=1))
    print(f"on {device.name}: {device.text}")
    print(_words(options.first, options.second, even))
    for path in files:
        print(path)
    return 0


def _words(first: str, second: str, even: Balance) -> str:
    """The break-even, in a sentence or two."""
    from stpn.energy.terms import joules

    write, budget, norm = even.write, even.budget, even.first.device.norm
    more, less = even.first.writes, even.second.writes
    if budget is None:
        cheap = first if even.first.total < even.second.total else second
        return f"both write as many synapses: {cheap} costs less at any write energy"
    writer, other = (first, second) if more > less else (second, first)
    many = abs(more - less)
    if budget <= 0:
        return (
            f"{writer} costs more than {other} at any write energy: its other terms are larger "
            "already"
        )
    text = (
        f"{writer} updates {many:,.0f} synapses more per step; it costs less than {other} while "
        f"writing and normalising one of them cost less than {joules(budget)} together"
    )
    if write is None:
        return f"{text}. Its normalisation alone takes {joules(norm)}: nothing is left for writing."
    return f"{text}: below {joules(write)} per update on this device (break-even)."
