"""The files of a run between two machines that share no disk.

A bundle maps names to contents in the order in which they must be written: metrics before the
checkpoint that counts them, the summary last. Whatever cuts a transfer short then leaves a run that
can go on.
"""

from __future__ import annotations

from pathlib import Path

from stpn._files import explain_os_errors, write_atomic

Files = dict[str, bytes]

_LOCAL = ("lock",)
_FIRST, _LAST = ("config.json", "metrics.jsonl"), ("checkpoint.safetensors", "summary.json")


def pack(path: Path) -> Files:
    """All files of the run at `path`."""
    return Outbox(path).collect()


def unpack(files: Files, path: Path) -> None:
    """Write a bundle into the run directory `path`.

    A new configuration without a summary is that of a run that was made longer: the old summary is
    no longer true.
    """
    if "config.json" in files and "summary.json" not in files:
        with explain_os_errors(f"remove the summary of {path}"):
            (path / "summary.json").unlink(missing_ok=True)
    for name, content in files.items():
        target = path / name
        with explain_os_errors(f"create {target.parent}"):
            target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content)


class Outbox:
    """The files of a run that changed since they were last collected."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent: dict[str, tuple[int, int]] = {}  # name to (size, time of change)
        self._kept: Files | None = None
        self.due = False
        """A checkpoint waits to be collected."""

    def collect(self) -> Files:
        """Everything new. The checkpoint is read first: metrics then hold at least its rows."""
        self.due = False
        if self._kept is not None:
            kept, self._kept = self._kept, {}
            return kept
        found: Files = {}
        for name in reversed(self._names()):
            file = self._path / name
            try:
                status = file.stat()
                mark = (status.st_size, status.st_mtime_ns)
                if self._sent.get(name) != mark:
                    found[name] = file.read_bytes()
                    self._sent[name] = mark
            except FileNotFoundError:  # replaced by a lengthened run's
                continue
        return dict(reversed(found.items()))

    def keep(self) -> None:
        """Collect for the last time, into memory: the directory is about to go."""
        self._kept = self.collect()

    def _names(self) -> list[str]:
        files = (file for file in self._path.rglob("*") if file.is_file())
        names = sorted(file.relative_to(self._path).as_posix() for file in files)
        middle = [
            name
            for name in names
            if name not in (*_FIRST, *_LAST, *_LOCAL) and not name.startswith(".")
        ]
        return [*(n for n in _FIRST if n in names), *middle, *(n for n in _LAST if n in names)]
