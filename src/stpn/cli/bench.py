"""`stpn bench`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from stpn._files import around, explain_os_errors, write_atomic
from stpn.errors import ConfigError


@dataclass(frozen=True)
class Bench:
    """Speed of the kernels beside the plain PyTorch loop, the same under torch.compile and nn.LSTM.

    Nothing is timed that does not equal the specification. Keep the machine otherwise quiet.
    """

    cases: tuple[str, ...] = ()
    """Cases to run; none: all. For example: --cases art maze"""
    repeats: int = 5
    """Repetitions of the slow baselines; their median counts. The kernels take more."""
    baselines: bool = True
    """Time the plain loop and torch.compile too (a quarter of an hour, and 11 GB for Pong)."""
    training: bool = False
    """Measure whole trainers (updates and steps a second) in place of kernels."""
    quick: bool = False
    """With --training: shorter stretches, rougher numbers."""
    threads: int = 2
    """Threads of torch and of the kernels."""
    out: Path | None = None
    """Write the result as JSON to this file."""
    readme: Path | None = None
    """Also fill the part of this file between <!-- speed --> and <!-- /speed -->."""
    json: bool = False
    """Print JSON and nothing else."""


def run(arguments: list[str]) -> int:
    options = tyro.cli(Bench, args=arguments, prog="stpn bench")
    if options.repeats < 5:
        raise ConfigError(
            f"repeats: expected at least 5, as the median counts, got {options.repeats}"
        )
    import torch

    from stpn.bench import engine, machine, markdown, training

    if options.threads < 1:
        raise ConfigError(f"threads: expected at least 1, got {options.threads}")
    if options.readme is not None and options.training:
        raise ConfigError("readme: it shows the kernels' speed, not that of --training")
    if options.readme is not None:
        with explain_os_errors(f"read {options.readme}"):
            readme = options.readme.read_text()
        around(readme, markdown.BEGIN, markdown.END, options.readme)  # before, not after an hour
    torch.set_num_threads(options.threads)
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 110)

    def say(line: str) -> None:
        if sys.stderr.isatty():
            console.print(f"[dim]{line}[/dim]")

    result: dict[str, Any]
    if options.training:
        rows = training.measure(options.cases or None, options.quick, say)
        result = {"machine": machine.describe(), "training": rows}
        tables = [training.table(rows)]
    else:
        unknown = set(options.cases) - set(engine.names())
        if unknown:
            known, given = ", ".join(engine.names()), ", ".join(sorted(unknown))
            raise ConfigError(f"cases: expected among {known}, got {given}")
        result = engine.run(
            list(options.cases) or engine.names(), options.repeats, options.baselines, say
        )
        tables = _tables(result)
    if options.out is not None:
        write_atomic(options.out, (json.dumps(result, indent=1) + "\n").encode())
    if options.readme is not None:
        write_atomic(options.readme, markdown.filled(readme, result).encode())
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    console.print("  ".join(f"{k} {v}" for k, v in result["machine"].items() if k != "backends"))
    for line in result["machine"]["backends"]:
        console.print(f"  {line}")
    for table in tables:
        console.print(table)
    return 0


def _tables(result: dict[str, Any]) -> list[Table]:
    main = Table(
        title="forward + backward (ratios: how many times faster than the baseline; target)"
    )
    for column in (
        "case",
        "B, T, I, H",
        "ms",
        "loop",
        "compiled",
        "nn.LSTM",
        "G syn/s",
        "of FMA",
        "meter",
    ):
        main.add_column(column, justify="left" if column == "case" else "right")
    for row in result["cases"]:
        shape = ", ".join(map(str, row["shape"]))
        if "refused" in row:
            main.add_row(row["case"], shape, row["refused"])
            continue
        main.add_row(
            row["case"], shape, f"{1e3 * row['seconds']['native']:.3g}",
            *(_ratio(row, baseline) for baseline in ("loop", "compiled", "lstm")),
            f"{row['synapse_steps_per_second'] / 1e9:.2f}",
            f"{100 * row['share_of_fma_limit']:.0f}%", f"{row['metered_over_plain']:.2f}x",
        )  # fmt: skip
    other = Table(title="other numbers")
    for column in ("what", "number", "target"):
        other.add_column(column)
    for row in result["cases"]:
        if "memory" in row:
            memory = row["memory"]
            native, loop = (memory[key] / 2**20 for key in ("native", "loop"))
            number = f"{native:.0f} MiB of the loop's {loop:.0f} ({memory['share']:.3f})"
            other.add_row(f"extra memory of {row['case']}", number, "at most 0.1")
    stream = result["streaming"]
    other.add_row("streaming cell step", f"{1e3 * stream['seconds']:.3f} ms", "at most 1.2 ms")
    for row in result["resets"]:
        other.add_row(row["case"], f"{row['ratio']:.2f}x", f"at most {row['target']}x")
    limits = result["limits"]
    other.add_row("matrix product, the FMA limit", f"{limits['flops'] / 1e9:.0f} GFLOP/s", "")
    other.add_row("memory stream", f"{limits['bytes'] / 1e9:.1f} GB/s", "")
    return [main, other]


def _ratio(row: dict[str, Any], baseline: str) -> str:
    if baseline not in row["ratios"]:
        return ""
    ratio, target = row["ratios"][baseline], row["targets"].get(baseline)
    if target is None:
        return f"{ratio:.3g}x"
    colour = "green" if ratio >= target else "red"
    return f"[{colour}]{ratio:.3g}x[/{colour}] (>= {target:g})"
