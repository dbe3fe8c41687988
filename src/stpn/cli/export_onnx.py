"""`stpn export-onnx RUN`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ExportOnnx:
    """One time step of a trained network as an ONNX file, with its state in and out."""

    run: Annotated[Path, tyro.conf.Positional]
    """Directory of the run, or the name of a network of the package (`stpn list`)."""
    out: Path | None = None
    """File to write. None: network.onnx in the run, or NETWORK.onnx here."""
    check: int = 1000
    """Steps that are then compared with onnxruntime; 0: none."""
    tolerance: float = 1e-5
    """Largest difference with which the file is good."""
    env: str | None = None
    """Of a run in an environment module:Name the same name again: the module is imported."""
    json: bool = False
    """Print JSON."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(ExportOnnx, args=arguments, prog="stpn export-onnx")
    from stpn import exports, zoo
    from stpn.errors import require

    require(options.check >= 0, "check", "0 or more steps", options.check)
    require(options.tolerance > 0, "tolerance", "greater than 0", options.tolerance)
    shipped = zoo.is_shipped(options.run)
    beside = Path(f"{options.run}.onnx") if shipped else options.run / "network.onnx"
    path = options.out or beside
    found = zoo.pretrained(str(options.run)) if shipped else zoo.load(options.run, env=options.env)
    settings = zoo.settings_of(options.run)
    facts = {"task": settings["task"], "model": settings["model"], "source": str(options.run.name)}
    if shipped:
        card = zoo.pretrained.card(str(options.run))
        facts |= {"proficiency": card.proficiency, "power": card.power, "sha256": card.sha256}
    entries = exports.onnx(found, path, metadata=facts)
    difference = None
    if options.check:
        difference = exports.largest_difference(found, path, steps=options.check)
        if not difference <= options.tolerance:
            raise exports.NotExported(
                f"{path} differs from the network by {difference:.2g} within {options.check} "
                f"steps, more than the tolerance of {options.tolerance:g}"
            )
    if options.json:
        shown = {"path": str(path), "largest_difference": difference, "metadata": entries}
        print(json.dumps(shown))
        return 0
    step = exports.Step(found)
    print(f"{path}: {entries['model']} for {entries['task']}, {path.stat().st_size:,} bytes")
    print(f"  inputs   {', '.join(step.inputs)}")
    print(f"  outputs  {', '.join(step.outputs)}")
    if difference is not None:
        print(
            f"  checked  {options.check} steps in onnxruntime, largest difference {difference:.1e}"
        )
    return 0
