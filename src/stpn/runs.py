"""A run on disk.

    runs/<task>/<model>/seed<N>/
        config.json               the settings, resolved: all that is needed to start it again
        metrics.jsonl             one row an epoch or every k iterations
        checkpoint.safetensors    weights, optimizer, random streams, counters
        summary.json              final figures, written once at the end
        lock                      held (flock) by the process that trains
        tensorboard/              events, if the extra is installed

Everything but the checkpoint is JSON. A finished run is exported as one small file,
`results/<task>/<model>/seed<N>.json`, and may be kept beside it as a directory that can be resumed;
`load_results` reads either form. This module needs no torch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from stpn import experiments, paper
from stpn._files import explain_os_errors, write_atomic
from stpn.errors import RunError, RunInUse

Row = dict[str, Any]
Status = Literal["finished", "running", "stopped", "new"]

CURVE_COLUMNS = ("step", "proficiency", "power", "loss", "seconds")
LOCK_ATTEMPTS = 5  # a reader that asks whether a run is in use holds its lock for microseconds


class Run:
    """One run directory. Reading never changes it; whoever writes holds `lock()`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.tensorboard = self.path / "tensorboard"
        self._config = self.path / "config.json"
        self._metrics = self.path / "metrics.jsonl"
        self._summary = self.path / "summary.json"

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run; its configuration is read here, so a wrong path fails at once."""
        run = cls(path)
        if not run._config.is_file():
            raise RunError(_not_a_run(run.path))
        _ = run.config
        return run

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any]) -> Run:
        """A new run directory with its configuration; refuses one that already holds a run."""
        run = cls(path)
        with explain_os_errors(f"create the run directory {run.path}"):
            run.path.mkdir(parents=True, exist_ok=True)
        if run.exists:
            raise RunError(f"{run.path} already holds a run; nothing was changed")
        write_json(run._config, config)
        return run

    @property
    def exists(self) -> bool:
        """Whether the directory holds a run."""
        return self._config.exists()

    @cached_property
    def config(self) -> dict[str, Any]:
        config = read_json(self._config)
        if not isinstance(config, dict) or not {"task", "model", "seed"} <= config.keys():
            raise RunError(f"{self._config} is not the configuration of a run")
        return config

    @property
    def summary(self) -> dict[str, Any] | None:
        """Final figures, or None while the run is unfinished."""
        return read_json(self._summary) if self._summary.exists() else None

    @property
    def status(self) -> Status:
        if self.in_use:
            return "running"
        if self._summary.exists():
            return "finished"
        return "stopped" if self.checkpoint.exists() else "new"

    def metrics(self) -> list[Row]:
        """All whole rows. A last line without its newline is the trace of a kill, not a row."""
        if not self._metrics.exists():
            return []
        with explain_os_errors(f"read {self._metrics}"):
            lines = self._metrics.read_bytes().split(b"\n")[:-1]
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or "step" not in row:
                raise RunError(f"{self._metrics}, line {number}: not a row of metrics")
            rows.append(row)
        return rows

    def append(self, row: Row) -> None:
        with explain_os_errors(f"write {self._metrics}"), open(self._metrics, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` rows: what came after the checkpoint will be made again."""
        kept = self.metrics()[:rows]
        if len(kept) < rows:
            raise RunError(
                f"{self._metrics} holds {len(kept)} rows, its checkpoint was written after {rows}: "
                "rows were lost, so the run cannot go on as if nothing happened"
            )
        text = "".join(json.dumps(row) + "\n" for row in kept)
        write_atomic(self._metrics, text.encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self._summary, json_safe(summary))

    def rewrite_config(self, config: Mapping[str, Any]) -> None:
        """Change the settings of an existing run (a new length, say); the old summary goes."""
        with explain_os_errors(f"remove {self._summary}"):
            self._summary.unlink(missing_ok=True)
        write_json(self._config, config)
        self.__dict__.pop("config", None)

    @property
    def in_use(self) -> bool:
        """Whether a process trains here right now."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        else:
            return False
        finally:
            os.close(descriptor)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory for this process, or say who does.

        The kernel frees the lock however the process ends, so nobody ever removes one by hand. The
        file itself stays: deleting it would let two processes lock two files of the same name.
        """
        path = self.path / "lock"
        with explain_os_errors(f"create the run directory {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        with explain_os_errors(f"lock {self.path}"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._acquire(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
            yield
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int) -> None:
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise RunError(f"cannot lock {self.path}: {error.strerror}") from error
                if attempt + 1 < LOCK_ATTEMPTS:
                    time.sleep(0.02)
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        raise RunInUse(f"{self.path} is in use by process {holder or '(unknown)'}")


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


def find(root: str | Path) -> Iterator[Run]:
    """Every run directory under `root` (or `root` itself), in alphabetical order."""
    for directory, names, files in os.walk(root):
        names.sort()
        if "config.json" in files:
            names.clear()
            yield Run(directory)


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
        summary = _unfinished_summary(config, rows)
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
    for source in (run.checkpoint, run._metrics, run._summary, run._config):
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


def _not_a_run(path: Path) -> str:
    """What someone gave in place of a run, as far as it can be told."""
    if path.is_file():
        return f"{path} is a file, not the directory of a run; `stpn report` reads exported results"
    if not path.is_dir():
        return f"{path} does not exist; `stpn list --runs DIRECTORY` shows the runs that do"
    below = [str(run.path) for run in find(path)]
    if not below:
        return f"{path} is not a run: it holds no config.json"
    more = f" and {len(below) - 3} more" if len(below) > 3 else ""
    return f"{path} is not a run, but holds some: {', '.join(below[:3])}{more}"


def read_json(path: Path) -> Any:
    with explain_os_errors(f"read {path}"):
        content = path.read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:
        raise RunError(f"{path} is damaged: it is not JSON ({error})") from error


def json_safe(values: Mapping[str, Any]) -> dict[str, Any]:
    """NaN and infinity are not JSON: null stands for "could not be measured"."""
    return {key: _measured(value) for key, value in values.items()}


def _measured(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_measured(entry) for entry in value]
    return json_safe(value) if isinstance(value, Mapping) else value


def write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    text = json.dumps(content, indent=indent, allow_nan=False)
    write_atomic(path, text.encode() + b"\n")
