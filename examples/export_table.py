"""The table of docs/exports.md: every core and every network of the package, exported and run.

    python examples/export_table.py                  # prints the table; some minutes
    python examples/export_table.py --only lstm gla  # cores of these names alone, no networks

For each core `torch.export` of its step, loaded again from a file; then ONNX beside onnxruntime,
1000 steps of random input with resets. In float32 each step begins at the network's state; in
float64 each side goes on from its own. Weights are twice as large as at their start, so that norms
and clamps have something to do. Then the networks of the package as `stpn export-onnx` takes them.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import stpn
from stpn import cores, exports

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("stpnr", {"norm": "pre", "clamp": 0.3, "num_layers": 2}),
    ("stpnr", {"norm": "post", "clamp": 0.2, "associate": "new"}),
    ("stpnr", {"norm": "f", "clamp": 0.5}),
    ("stpnr", {"norm_over": "layer", "norm_scale": True}),
    ("stpnr", {"norm": None, "rule": "oja", "clamp": 0.5}),
    ("stpnr", {"plastic_bias": True, "layer_norm": True}),
    ("stpnr", {"plastic": "input", "stp": "neuron", "decay": "after"}),
    ("stpnl", {"norm": "post", "clamp": 0.2}),
    ("stpnl", {"associate": "new", "layer_norm": True}),
    ("hebbff", {"constraint": "hebbian"}),
    ("hebbff", {"constraint": "clipped", "init": "familiarity"}),
    ("hebbff", {"constraint": "time-constant"}),
    ("lstm", {"layer_norm": True}),
    ("fastweights", {"steps": 3}),
    ("fwp", {"conv": 4, "nu": 2}),
    ("gla", {"conv": 4}),
    ("deltanet", {"conv": 1}),
]


def core(name: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    made = stpn.build(name, 5, 6, dtype=dtype, **options)
    with torch.no_grad():
        for value in made.parameters():
            value.mul_(2)
    return made


def as_program(network: Any) -> str:
    """`torch.export`, saved and loaded, beside the step: "equal", or why not."""
    try:
        program = exports.program(network)
    except Exception as error:
        return str(error).partition("\n")[0]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    step = exports.Step(network)
    inputs = step.example(3)
    with torch.no_grad():
        expected, found = step(*inputs), torch.export.load(file).module()(*inputs)
    torch.testing.assert_close(found, expected)
    return "equal"


def in_onnxruntime(network: Any, path: Path, *, stream: bool) -> str:
    try:
        exports.onnx(network, path)
        return f"{exports.largest_difference(network, path, stream=stream):.0e}"
    except exports.NotExported as error:
        return str(error)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of cores; none: all")
    only = parser.parse_args(arguments).only
    with tempfile.TemporaryDirectory() as directory:
        print_table(only, Path(directory) / "step.onnx")


def print_table(only: list[str], path: Path) -> None:
    print("| core | options | torch.export | ONNX, float32, each step | float64, own stream |")
    print("|---|---|---|---|---|", flush=True)
    plain: list[tuple[str, dict[str, Any]]] = [(n, {}) for n in (*cores.names(), *cores.variants())]
    for name, options in (*plain, *OPTIONS):
        if only and name not in only:
            continue
        single, double = (core(name, kind, options) for kind in (torch.float32, torch.float64))
        cells = (
            f"`{name}`",
            ", ".join(f"{key}={value}" for key, value in options.items()),
            as_program(single),
            in_onnxruntime(single, path, stream=False),
            in_onnxruntime(double, path, stream=True),
        )
        print("|", " | ".join(cells), "|", flush=True)
    if only:
        return
    print("\n| network | ONNX, float32, each step |\n|---|---|", flush=True)
    for name in stpn.pretrained.names():
        print(
            f"| `{name}` | {in_onnxruntime(stpn.pretrained(name), path, stream=False)} |",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
