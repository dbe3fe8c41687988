"""`stpn analog study`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from stpn.errors import ConfigError, unknown


@dataclass(frozen=True)
class Study:
    """Trained networks on devices with faults: each fault by itself, then whole profiles, before
    and after hardware-aware fine-tuning. What is in --out already is not measured again."""

    out: Path = Path("results/analog")
    """One file for each network."""
    networks: list[str] = field(default_factory=list)
    """Of the package. None given: all of associative retrieval and the maze, with its ablation."""
    faults: list[str] = field(default_factory=list)
    """None given: all."""
    draws: int = 10
    """Sets of devices for each cell."""
    sequences: int = 2_000
    """Test sequences of associative retrieval."""
    episodes: int = 64
    """Episodes of an agent in each draw."""
    tuning: int = 500
    """Updates of hardware-aware fine-tuning on associative retrieval; 0: none."""
    iterations: int = 0
    """Iterations of hardware-aware fine-tuning on the maze, which take long; 0: none."""
    seed: int = 0
    """Of devices, noise and fine-tuning."""


@dataclass(frozen=True)
class Table:
    """What a study says, and its tables, as Markdown."""

    out: Annotated[Path, tyro.conf.Positional] = Path("results/analog")
    """Where the study is."""
    docs: Path | None = None
    """Also fill the parts of DOCS/analog.md between its marks, and draw its figure."""


def run(arguments: list[str]) -> int:
    options: Study | Table = tyro.extras.subcommand_cli_from_dict(
        {"study": Study, "table": Table}, args=arguments, prog="stpn analog"
    )
    return _study(options) if isinstance(options, Study) else _table(options)


def _study(options: Study) -> int:
    from stpn.robustness import FAULTS, Plan, networks, study

    for kind, given, known in (
        ("network", options.networks, networks()),
        ("fault", options.faults, list(FAULTS)),
    ):
        for name in given:
            if name not in known:
                raise ConfigError(unknown(kind, name, known))
    plan = Plan(
        draws=options.draws,
        sequences=options.sequences,
        episodes=options.episodes,
        tuning=options.tuning,
        iterations=options.iterations,
        seed=options.seed,
    )
    console = Console(stderr=True)
    with console.status("measuring") as status:
        study(
            options.networks or networks(),
            options.faults or list(FAULTS),
            plan,
            options.out,
            status.update if console.is_terminal else print,
        )
    print(options.out)
    return 0


def _table(options: Table) -> int:
    from stpn.report import faults, robustness

    networks = robustness.measured(options.out)
    print(faults.answer(networks))
    for table in robustness.tables(networks):
        print(f"\n**{table.title}.** {table.caption}\n\n{table.markdown()}", end="")
    if options.docs is not None:
        for path in robustness.write_docs(networks, options.docs):
            print(path)
    return 0
