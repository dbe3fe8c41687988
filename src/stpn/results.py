"""What runs measured, as the report sees it.

A finished run is exported as one small file, `results/<task>/<model>/seed<N>.json`, and may be kept
beside it as a directory that can be resumed; `load_results` reads either form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stpn import experiments, paper
from stpn._files import explain_os_errors, write_atomic
from stpn._json import read_json, write_json
from stpn.errors import RunError
from stpn.runs import Row, Run, find

CURVE_COLUMNS = ("step", "proficiency", "power", "loss", "seconds")


@dataclass(frozen=True)
class RunResult:
    """A run as the report sees it, from a run directory or an exported file."""

    task: str
    model: str
    seed: int
    config: dict[str, Any]
    curve: dict[str, list[Any]]  # one list a column of CURVE_COLUMNS
    summary: dict[str, Any]  # of an unfinished run: its last row, with "finished": false
    path: Path


def kept_run(path: Path) -> Run:
    """The run directory of a result: its own, or the one that was kept beside its export."""
    return Run(path.with_suffix("") if path.suffix == ".json" else path)


def load_results(root: str | Path, problems: list[str] | None = None) -> list[RunResult]:
    """All results under `root`, from run directories and from exported files alike.

    With a list for `problems`, a damaged run adds a sentence to it and the rest is still returned;
    without, it raises. An unfinished run is included, its summary marked `finished: false`.
    """
    root = Path(root)
    if not root.exists():
        raise RunError(f"{root} does not exist")
    readers = [
        (run.path, lambda run=run: result_of(run))
        for run in find(root)
        if not run.path.with_suffix(".json").is_file()  # exported, and kept beside it
    ]
    exported = [root] if root.is_file() else sorted(root.rglob("seed*.json"))
    readers += [(path, lambda path=path: _read_export(path)) for path in exported]
    results = []
    for path, read in readers:
        try:
            results.append(read())
        except (RunError, KeyError, TypeError, ValueError) as error:
            message = f"{path}: {error}" if isinstance(error, RunError) else f"{path}: damaged"
            if problems is None:
                raise RunError(message) from error
            problems.append(message)
    return results


def result_of(run: Run) -> RunResult:
    config, rows = run.config, run.metrics()
    summary = run.summary
    if summary is None:
        summary = {**_unfinished_summary(config, rows), **run.provenance}
    return RunResult(
        task=str(config["task"]),
        model=str(config["model"]),
        seed=int(config["seed"]),
        config=config,
        curve={name: [row.get(name) for row in rows] for name in CURVE_COLUMNS},
        summary=summary,
        path=run.path,
    )


def export(run: Run, root: str | Path, *, points: int = 400) -> Path:
    """Write the run as `root/<task>/<model>/seed<N>.json`, its curve thinned to `points` rows."""
    result = result_of(run)
    path = _place(run, root).with_suffix(".json")
    with explain_os_errors(f"create {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    kept = thin(len(result.curve["step"]), points)
    curve = {name: [rounded(column[i]) for i in kept] for name, column in result.curve.items()}
    summary = {key: rounded(value) for key, value in result.summary.items()}
    write_json(path, {"config": result.config, "curve": curve, "summary": summary}, indent=None)
    return path


def keep(run: Run, root: str | Path) -> Path:
    """Copy what `stpn resume` needs to the directory `root/<task>/<model>/seed<N>`."""
    place = _place(run, root)
    with explain_os_errors(f"create {place}"):
        place.mkdir(parents=True, exist_ok=True)
    # Checkpoint before metrics: rows beyond a checkpoint are made again, missing ones are not.
    for source in (run.checkpoint, run._metrics, run._summary, run._provenance, run._config):
        if source.exists():
            with explain_os_errors(f"read {source}"):
                content = source.read_bytes()
            write_atomic(place / source.name, content)
    return place


def _place(run: Run, root: str | Path) -> Path:
    """Runs in an environment of the user's choice go below its name."""
    config = run.config
    task = Path(str(config["task"])) / re.sub("[/:]", "-", str(config.get("env", "")))
    return Path(root) / task / str(config["model"]) / f"seed{config['seed']}"


def thin(length: int, points: int) -> list[int]:
    """At most `points` indices of `range(length)`, evenly spread, first and last included."""
    if length <= points:
        return list(range(length))
    return [round(i * (length - 1) / (points - 1)) for i in range(points)]


def rounded(value: Any) -> Any:
    """Floats, also in lists, with six significant digits: more than any curve shows."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [rounded(item) for item in value] if isinstance(value, list) else value


def _read_export(path: Path) -> RunResult:
    content = read_json(path)
    config, summary = content["config"], content["summary"]
    return RunResult(
        task=str(config["task"]),
        model=str(config["model"]),
        seed=int(config["seed"]),
        config=config,
        curve={name: list(content["curve"].get(name, [])) for name in CURVE_COLUMNS},
        summary=dict(summary),
        path=path,
    )


def _unfinished_summary(config: Mapping[str, Any], rows: list[Row]) -> dict[str, Any]:
    last = rows[-1] if rows else {}
    task = experiments.get(config["task"])
    return {
        "task": config["task"],
        "model": config["model"],
        "seed": config["seed"],
        "metric": task.metric,
        "proficiency": last.get("proficiency"),
        "power": last.get("power"),
        "power_per_step": [],
        "done": last.get("step", 0),
        "protocol": task.protocol,
        "unit": task.unit,
        "finished": False,
        "paper": paper_figures(task, config["model"]),
        "seconds": last.get("seconds", 0.0),
    }


def paper_figures(task: experiments.Task, model: str) -> dict[str, list[float]] | None:
    """The paper's row: {"proficiency": [mean, std], "power": [mean, std]}, what it has of it."""
    named = {"proficiency": task.metric, "power": "power"}
    found = {key: paper.figure(task.name, model, metric) for key, metric in named.items()}
    return {key: [row.mean, row.std] for key, row in found.items() if row is not None} or None
