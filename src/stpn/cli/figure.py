"""`stpn figure synapses RUN`, `rates RUN`, `generalisation RUN...`: figures of networks."""

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


@dataclass(frozen=True)
class Generalisation:
    """Familiarity against R: accuracy, true and false positives for repetitions after 1 to 20
    steps, whatever R the networks were trained on."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs, or names of networks of the package (`stpn list`)."""
    out: Path = Path("generalisation")
    """Where the figure goes; .svg and .png are added."""
    numbers: Path | None = None
    """Also write the numbers there, as JSON."""


def run(arguments: list[str]) -> int:
    options: Synapses | Rates | Generalisation = tyro.extras.subcommand_cli_from_dict(
        {"synapses": Synapses, "rates": Rates, "generalisation": Generalisation},
        args=arguments,
        prog="stpn figure",
    )
    if isinstance(options, Generalisation):
        return _generalisation(options)
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


def _generalisation(options: Generalisation) -> int:
    from stpn._extras import need
    from stpn._files import explain_os_errors
    from stpn._json import write_json
    from stpn.errors import ConfigError
    from stpn.report import figures, generalisation

    need("matplotlib", extra="report")
    if not options.runs:
        raise ConfigError("which networks? Name runs, or networks of the package (`stpn list`)")
    subjects = [generalisation.Subject(source) for source in options.runs]
    plot = generalisation.plot(subjects)
    picture = figures.draw(plot)
    for path in figures.save(picture, options.out, plot.title, figures.description(plot)):
        print(path)
    if options.numbers is not None:
        with explain_os_errors(f"write {options.numbers}"):
            write_json(options.numbers, generalisation.numbers(subjects), indent=None)
        print(options.numbers)
    return 0
