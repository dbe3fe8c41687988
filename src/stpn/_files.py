"""Files that are either the old version or the new one, never half of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stpn.errors import ConfigError, RunError


@contextmanager
def explain_os_errors(action: str) -> Iterator[None]:
    """Turn a full disk, a missing permission and the like into one readable sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot {action}: {reason}") from error


def around(text: str, begin: str, end: str, name: object) -> tuple[str, str]:
    """What stands before and after two marks in a document, the marks included."""
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ConfigError(f"{name} has no place for this: it lacks {begin} ... {end}")
    return before + begin, end + after


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a crash at any point leaves one whole version.

    The data reach the disk before the name does (fsync, then rename), and the rename itself
    is made durable by syncing the directory. The temporary name is always the same: what a killed
    process left behind is overwritten, not collected.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with explain_os_errors(f"write {path}"):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
