"""`stpn resume RUN`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from stpn.cli._session import Output, conduct


@dataclass(frozen=True)
class Resume:
    """Go on with a run; it ends exactly as if it had never been stopped."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""
    total: int | None = None
    """New length (epochs, iterations or steps); also lengthens a finished run."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)


def run(arguments: list[str]) -> int:
    options = tyro.cli(Resume, args=arguments, prog="stpn resume")
    from stpn.config import from_dict
    from stpn.runs import Run
    from stpn.training import session

    found = Run.open(options.run)
    from_dict(found.config)
    if options.total is None and found.summary is not None and not options.output.json:
        print("this run is finished already; --total makes it longer")
    return conduct(
        lambda reporter, stop: session.resume(
            options.run, total=options.total, reporter=reporter, stop=stop
        ),
        options.output,
    )
