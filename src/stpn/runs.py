"""A run on disk.

    runs/<task>/<model>/seed<N>/
        config.json               the settings, resolved: all that is needed to start it again
        metrics.jsonl             one row an epoch or every k iterations
        checkpoint.safetensors    weights, optimizer, random streams, counters
        summary.json              final numbers, written once at the end
        provenance.json           versions, machine and commit of the process that trained last
        lock                      held (flock) by the process that trains
        tensorboard/              events, if the extra is installed

Everything but the checkpoint is JSON. A directory may come from anywhere and be damaged in any way:
what is read here is checked for kind, size and type before it is used, and what is wrong with it
is a RunError of one sentence. This module needs no torch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from stpn import _safetensors
from stpn._files import explain_os_errors, read_file, write_atomic
from stpn._json import json_safe, parse, read_object, write_json
from stpn._typed import fits
from stpn.errors import ConfigError, RunError, RunInUse
from stpn.summary import Row, Rows, RunSummary
from stpn.tasks import registry

Status = Literal["finished", "running", "stopped", "new"]

LOCK_ATTEMPTS = 5  # a reader that asks whether a run is in use holds its lock for microseconds
MOST_METRICS = 2**30  # bytes
PUBLISHED = "model.safetensors"  # beside a config.json: no run, but a network (`stpn.hub`)
_NAME = re.compile(r"\w[\w.+-]{0,199}")


def place(task: str, model: str, seed: int, env: str = "") -> Path:
    """Where a run lies below the root of all runs; those in a Gymnasium environment below its name.

    The names may come from a file: one that would lead elsewhere is refused.
    """
    parts = [task, re.sub(r"[^\w.+-]", "-", env), model] if env else [task, model]
    for part in parts:
        if not _NAME.fullmatch(part):
            raise ConfigError(f"{part!r} cannot be the name of a task, model or environment")
    return Path(*parts) / f"seed{seed}"


def checked_config(content: object, path: Path) -> dict[str, Any]:
    """The configuration of a run, as far as every run has one; RunError if it is not."""
    if isinstance(content, dict) and "library_name" in content:
        raise RunError(
            f"{path} describes a network for a model hub, whose {PUBLISHED} is not there; download "
            "or export it again"
        )
    needed = {"task": str, "model": str, "seed": int}
    if not isinstance(content, dict) or not all(
        fits(content.get(name), hint) for name, hint in needed.items()
    ):
        raise RunError(
            f"{path} is not the configuration of a run, with its task, model and seed; "
            "restore it from a copy"
        )
    try:
        place_of(content)
    except ConfigError as error:
        raise RunError(f"{path}: {error}; correct it") from error
    # of a task that is not known here, as it is: whoever uses it says so
    known = content["task"] in registry.names()
    return registry.get(content["task"]).config.migrated(content) if known else content


def place_of(config: Mapping[str, Any]) -> Path:
    """`place` of a checked configuration."""
    return place(config["task"], config["model"], config["seed"], str(config.get("env") or ""))


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

    @property
    def files(self) -> tuple[Path, ...]:
        """What `stpn resume` needs, in the order in which a run that is trained can be copied.

        Checkpoint before metrics: rows beyond a checkpoint are made again, missing ones are not.
        """
        return self.checkpoint, self._metrics, self._summary, self._provenance, self._config

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run; its configuration is read here, so a wrong path fails at once."""
        run = cls(path)
        if not run.exists or is_published(path):
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

    @property
    def config(self) -> dict[str, Any]:
        return checked_config(read_object(self._config), self._config)

    @property
    def summary(self) -> RunSummary | None:
        """Final numbers, or None while the run is unfinished."""
        if not self._summary.exists():
            return None
        remedy = f"delete it, and `stpn resume {self.path}` measures the network again"
        content = read_object(self._summary, remedy=remedy)
        try:
            summary = RunSummary.from_dict(content)
        except ValueError as error:
            raise RunError(f"{self._summary} is damaged: {error}; {remedy}") from error
        for name in ("task", "model", "seed"):
            theirs, ours = getattr(summary, name), self.config[name]
            if theirs != ours:
                raise RunError(
                    f"{self._summary} is of another run: its {name} is {theirs!r}, not {ours!r}; "
                    f"{remedy}"
                )
        return summary

    @property
    def status(self) -> Status:
        if self.in_use:
            return "running"
        if self._summary.exists():
            return "finished"
        return "stopped" if self.checkpoint.exists() else "new"

    @property
    def saved(self) -> int | None:
        """Units of training that the checkpoint holds; None where it does not say."""
        try:
            metadata = _safetensors.metadata_of(self.checkpoint)
        except (RunError, ValueError):
            return None
        done = metadata.get("done", "")
        return int(done) if re.fullmatch("[0-9]{1,18}", done) else None

    def metrics(self) -> list[Row]:
        """All whole rows. A last line without its newline is the trace of a kill, not a row."""
        if not self._metrics.exists():
            return []
        lines = read_file(self._metrics, most=MOST_METRICS).split(b"\n")[:-1]
        return [self._row(line, number) for number, line in enumerate(lines, start=1)]

    def _row(self, line: bytes, number: int) -> Row:
        try:
            row = parse(line)
            if fits(row, dict[str, float | None]) and fits(row.get("step"), int):
                return dict(row)
            reason = "not a row of metrics"
        except ValueError as error:
            reason = f"not a row of metrics: {error}"
        raise RunError(f"{self._metrics}, line {number}: {reason}; restore it from a copy")

    def append(self, row: Row) -> None:
        with explain_os_errors(f"write {self._metrics}"):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._metrics, flags, 0o666), "ab") as file:
                file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def truncate(self, kept: Rows | int) -> Rows:
        """Keep the first rows, those of the checkpoint: what came after them will be made again.

        With `Rows` they must be the very rows; a mere number comes from an old checkpoint.
        """
        count = kept if isinstance(kept, int) else kept.count
        rows = self.metrics()[:count]
        found = Rows.of(rows)
        if found != (Rows(count, found.checksum) if isinstance(kept, int) else kept):
            what = "rows were lost" if len(rows) < count else "rows were changed"
            raise RunError(
                f"{self._metrics} holds {len(rows)} of the {count} rows that its checkpoint was "
                f"written after, and {what}: the run cannot go on as if nothing happened; restore "
                "the file from a copy"
            )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_atomic(self._metrics, text.encode())
        return found

    def write_summary(self, summary: RunSummary) -> None:
        write_json(self._summary, json_safe(summary.to_dict()), sealed=True)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where an unfinished run's numbers come from; a summary says it for itself."""
        if not self._provenance.exists():
            return {}
        return read_object(self._provenance, remedy="delete it, nothing depends on it")

    def write_provenance(self, provenance: Mapping[str, Any]) -> None:
        write_json(self._provenance, provenance)

    def rewrite_config(self, config: Mapping[str, Any]) -> None:
        """Change the settings of an existing run (a new length, say); the old summary goes."""
        with explain_os_errors(f"remove {self._summary}"):
            self._summary.unlink(missing_ok=True)
        write_json(self._config, config)

    @property
    def in_use(self) -> bool:
        """Whether a process trains here right now."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_NONBLOCK)
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
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            self._acquire(descriptor)
            with explain_os_errors(f"write {path}"):
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
            if PUBLISHED not in files:
                yield Run(directory)


def is_published(path: str | Path) -> bool:
    """Whether this is the directory of a network for a model hub, which has a config.json too."""
    return (Path(path) / PUBLISHED).exists()


def _not_a_run(path: Path) -> str:
    """What someone gave in place of a run, as far as it can be told."""
    if path.is_file():
        return f"{path} is a file, not the directory of a run; `stpn report` reads exported results"
    if not path.is_dir():
        return f"{path} does not exist; `stpn list --runs DIRECTORY` shows the runs that do"
    if is_published(path):
        return f"{path} is a network without its run; `stpn.load`, `stpn show` and `eval` take it"
    below = [str(run.path) for run in find(path)]
    if not below:
        return f"{path} is not a run: it holds no config.json"
    more = f" and {len(below) - 3} more" if len(below) > 3 else ""
    return f"{path} is not a run, but holds some: {', '.join(below[:3])}{more}"
