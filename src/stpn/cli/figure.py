"""`stpn figure synapses RUN`, `stpn figure rates RUN`: figures of one network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Synapses:
    """Every efficacy G while a sequence is read: one panel a neuron, synapses down, time across."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or the name of a network of the package (`stpn list`)."""
    sequence: str | None = None
    """What an associative retrieval network reads. None: c9k8j3??k."""
    layer: int = 1
    """Which layer of the core."""
    out: Path = Path("synapses")
    """Where the figure goes; .svg and .png are added."""


@dataclass(frozen=True)
class Rates:
    """The learnt lambda and gamma: one dot a synapse, one colour a neuron."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or the name of a network of the package (`stpn list`)."""
    layer: int = 1
    """Which layer of the core."""
    out: Path = Path("rates")
    """Where the figure goes; .svg and .png are added."""


def run(arguments: list[str]) -> int:
    options: Synapses | Rates = tyro.extras.subcommand_cli_from_dict(
        {"synapses": Synapses, "rates": Rates}, args=arguments, prog="stpn figure"
    )
    from stpn.report import figures, synapses

    if isinstance(options, Synapses):
        reading = synapses.read_synapses(options.run, options.sequence, layer=options.layer)
        picture, title = (
            synapses.draw_synapses(reading),
            "Effective weights while a sequence is read",
        )
        words = f"Efficacy G of each synapse while {''.join(reading.steps)} is read, by"
    else:
        picture = synapses.draw_rates(synapses.read_rates(options.run, layer=options.layer))
        title, words = "Learnt rates", f"{synapses.RATES} Learnt by"
    for path in figures.save(picture, options.out, title, synapses.describe(options.run, words)):
        print(path)
    return 0
