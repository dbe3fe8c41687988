"""What runs measured, as the report sees it.

A finished run is exported as one small file, `results/<task>/<model>/seed<N>.json`, and may be kept
beside it as a directory that can be resumed; `load_results` reads either form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stpn import experiments, paper
from stpn._files import explain_os_errors, half_of_memory, read_file, write_atomic
from stpn._json import read_object, write_json
from stpn._typed import fits
from stpn.errors import ConfigError, RunError, StpnError
from stpn.runs import Run, checked_config, find, place_of
from stpn.summary import Row, Rows, RunSummary

CURVE_COLUMNS = ("step", "proficiency", "power", "loss", "seconds")


@dataclass(frozen=True)
class RunResult:
    """A run as the report sees it, from a run directory or an exported file."""

    config: dict[str, Any]
    curve: dict[str, list[Any]]  # one list of numbers a column of CURVE_COLUMNS, None for a gap
    summary: RunSummary  # of an unfinished run: its last row
    path: Path

    @property
    def task(self) -> str:
        return self.summary.task

    @property
    def model(self) -> str:
        return self.summary.model

    @property
    def seed(self) -> int:
        return self.summary.seed

    @property
    def asked(self) -> int | None:
        """Units of training that the configuration asks for, if it says so."""
        try:
            field = experiments.get(self.task).task.config.total_field
        except (ImportError, ConfigError):
            return None
        total = self.config.get(field)
        return total if fits(total, int) else None


def kept_run(path: Path) -> Run:
    """The run directory of a result: its own, or the one that was kept beside its export."""
    return Run(path.with_suffix("") if path.suffix == ".json" else path)


def load_results(root: str | Path, problems: list[str] | None = None) -> list[RunResult]:
    """All results under `root`, from run directories and from exported files alike.

    Of a run that was kept beside its export, the one that went further counts. With a list for
    `problems`, a damaged run adds a sentence to it and the rest is still returned; without, it
    raises. An unfinished run is included, its summary not `finished`.
    """
    root = Path(root)
    if not root.exists():
        raise RunError(f"{root} does not exist")
    found: dict[Path, RunResult] = {}
    exported = [root] if root.is_file() else sorted(root.rglob("seed*.json"))
    for path, read in [
        *((run.path, lambda run=run: result_of(run)) for run in find(root)),
        *((path, lambda path=path: _read_export(path)) for path in exported),
    ]:
        try:
            result, place = read(), kept_run(path).path
        except StpnError as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        if place not in found or _advance(result) >= _advance(found[place]):
            found[place] = result
    return sorted(found.values(), key=lambda result: result.path)


def _advance(result: RunResult) -> tuple[bool, int]:
    return result.summary.finished, result.summary.done


def result_of(run: Run) -> RunResult:
    config, rows, summary = run.config, run.metrics(), run.summary
    if summary is None:
        summary = _unfinished_summary(run, rows)
    elif summary.counted not in (None, Rows.of(rows)):
        raise RunError(
            f"{run.path}: metrics.jsonl is not the one that its summary was written beside; "
            "restore it from a copy"
        )
    curve = {name: [row.get(name) for row in rows] for name in CURVE_COLUMNS}
    return RunResult(config=config, curve=curve, summary=summary, path=run.path)


def export(run: Run, root: str | Path, *, points: int = 400) -> Path:
    """Write the run as `root/<task>/<model>/seed<N>.json`, its curve thinned to `points` rows."""
    result = result_of(run)
    path = export_path(run, root)
    with explain_os_errors(f"create {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    kept = thin(len(result.curve["step"]), points)
    curve = {name: [rounded(column[i]) for i in kept] for name, column in result.curve.items()}
    # of the thinned curve a count and checksum of all rows would be false
    summary = replace(result.summary, rows=None, rows_checksum=None)
    numbers = {key: rounded(value) for key, value in summary.to_dict().items()}
    content = {"config": result.config, "curve": curve, "summary": numbers}
    write_json(path, content, indent=None, sealed=True)
    return path


def export_path(run: Run, root: str | Path) -> Path:
    """Where `export` writes."""
    return (Path(root) / place_of(run.config)).with_suffix(".json")


def keep(run: Run, root: str | Path) -> Path:
    """Copy what `stpn resume` needs to the directory `root/<task>/<model>/seed<N>`."""
    place = Path(root) / place_of(run.config)
    with explain_os_errors(f"create {place}"):
        place.mkdir(parents=True, exist_ok=True)
    for source in run.files:
        if source.exists():
            write_atomic(place / source.name, read_file(source, most=half_of_memory()))
    return place


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
    remedy = "export its run again"
    content = read_object(path, remedy=remedy)
    config = checked_config(content.get("config"), path)
    try:
        curve, summary = content.get("curve"), content.get("summary")
        if not fits(curve, dict[str, list[float | None]]) or not isinstance(summary, dict):
            raise ValueError("it lacks the curve or the summary of a run")
        result = RunResult(
            config=config,
            curve={name: list((curve or {}).get(name, [])) for name in CURVE_COLUMNS},
            summary=RunSummary.from_dict(summary),
            path=path,
        )
        if any(config[name] != getattr(result, name) for name in ("task", "model", "seed")):
            raise ValueError("its summary is of another run")
        return result
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; {remedy}") from error


def _unfinished_summary(run: Run, rows: list[Row]) -> RunSummary:
    """The last row of an unfinished run; how far it is, the checkpoint may know better."""
    config, last = run.config, rows[-1] if rows else {}
    task = experiments.get(config["task"])
    origin = ("versions", "machine", "commit")
    content: dict[str, Any] = {
        "task": config["task"],
        "model": config["model"],
        "seed": config["seed"],
        "metric": task.metric,
        "proficiency": last.get("proficiency"),
        "power": last.get("power"),
        "done": max(int(last.get("step", 0)), run.saved or 0),
        "paper_length": task.length,
        "unit": task.unit,
        "finished": False,
        "paper": paper_numbers(task, config["model"]),
        "seconds": last.get("seconds", 0.0),
        **{name: value for name, value in run.provenance.items() if name in origin},
    }
    try:
        return RunSummary.from_dict(content)
    except ValueError as error:
        raise RunError(f"{run.path}: {error}; restore its files from a copy") from error


def paper_numbers(task: experiments.Experiment, model: str) -> dict[str, list[float]] | None:
    """The paper's row: {"proficiency": [mean, std], "power": [mean, std]}, what it has of it."""
    named = {"proficiency": task.metric, "power": "power"}
    found = {key: paper.number(task.name, model, metric) for key, metric in named.items()}
    return {key: [row.mean, row.std] for key, row in found.items() if row is not None} or None
