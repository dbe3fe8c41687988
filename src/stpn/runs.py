"""A run on disk.

    runs/<task>/<model>/seed<N>/
        config.json               the settings, resolved: all that is needed to start it again
        metrics.jsonl             one row an epoch or every k iterations
        checkpoint.safetensors    weights, optimizer, random streams, counters
        summary.json              final figures, written once at the end
        provenance.json           versions, machine and commit of the process that trained last
        lock                      held (flock) by the process that trains
        tensorboard/              events, if the extra is installed

Everything but the checkpoint is JSON. This module needs no torch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from stpn._files import explain_os_errors, write_atomic
from stpn._json import json_safe, read_json, write_json
from stpn.errors import RunError, RunInUse

Row = dict[str, Any]
Status = Literal["finished", "running", "stopped", "new"]

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
        self._provenance = self.path / "provenance.json"

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

    @property
    def provenance(self) -> dict[str, Any]:
        """Where an unfinished run's figures come from; a summary says it for itself."""
        return read_json(self._provenance) if self._provenance.exists() else {}

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        write_json(self._provenance, provenance)

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


def find(root: str | Path) -> Iterator[Run]:
    """Every run directory under `root` (or `root` itself), in alphabetical order."""
    for directory, names, files in os.walk(root):
        names.sort()
        if "config.json" in files:
            names.clear()
            yield Run(directory)


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
