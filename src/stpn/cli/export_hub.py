"""`stpn export-hub RUNS`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ExportHub:
    """Trained networks as directories for a model hub: config.json, model.safetensors, README.md.

    `stpn.load` reads such a directory. Nothing is sent anywhere: `hf upload` does that.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of finished runs, or names of networks of the package (`stpn list`)."""
    out: Path = Path("hub")
    """Where the directories go, OUT/NAME each."""
    license: str | None = None
    """Of a run, for its model card, as the Hub names it (apache-2.0, cc-by-4.0); networks of the
    package are mit. None: the card names none."""
    env: str | None = None
    """Of a run in an environment module:Name the same name again: the module is imported."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(ExportHub, args=arguments, prog="stpn export-hub")
    from stpn import hub
    from stpn.errors import ConfigError

    if not options.runs:
        raise ConfigError("name a run or a network: stpn export-hub art-stpnr")
    made: list[Path] = []
    for source in options.runs:
        path = hub.publish(source, options.out, license=options.license, env=options.env)
        made.append(path)
        if not options.json:
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            print(f"{path}: {size:,} bytes, read again and the same as {source}")
    if options.json:
        print(json.dumps({"written": [*map(str, made)]}))
        return 0
    print("read README.md, then:")
    for path in made:
        print(f"  hf upload USER/{path.name} {path}")
    return 0
