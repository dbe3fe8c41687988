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
    """New length (epochs, iterations or steps); also lengthens a run that is finished or ended at
    its target."""
    device: str | None = None
    """Go on there: auto, cpu, cuda or another of torch's. None: where the run was."""
    env: str | None = None
    """Of a run in an environment module:Name the same name again: the module is imported."""
    output: Annotated[Output, tyro.conf.arg(name="")] = field(default_factory=Output)


def run(arguments: list[str]) -> int:
    options = tyro.cli(Resume, args=arguments, prog="stpn resume")
    from stpn.config import from_dict
    from stpn.errors import ConfigError
    from stpn.runs import Run
    from stpn.training import session
    from stpn.zoo import pretrained

    if not options.run.exists() and str(options.run) in pretrained.names():
        raise ConfigError(
            f"{options.run} is a network of the package, not a run; `stpn show {options.run}` has "
            "the command that trained it"
        )
    found = Run.open(options.run)
    from_dict(found.config)
    if options.total is None and found.summary is not None and not options.output.json:
        print("this run is finished already; --total makes it longer")
    return conduct(
        lambda reporter, stop: session.resume(
            options.run,
            total=options.total,
            env=options.env,
            device=options.device,
            reporter=reporter,
            stop=stop,
        ),
        options.output,
    )
