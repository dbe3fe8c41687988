"""Files: read within bounds, written so that there is the old version or the new one, never half.

A directory of runs may come from anywhere. What is read must be a regular file of bounded size
(opening a pipe or reading a device would never end), and what is written follows no link out of
its directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def read_file(path: Path, *, most: int, first: int | None = None) -> bytes:
    """A regular file of at most `most` bytes, or its `first` ones; others are refused unread."""
    with explain_os_errors(f"read {path}"):
        # without O_NONBLOCK, opening a pipe waits for somebody to write
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RunError(f"{path} is not a regular file; remove it")
            if status.st_size > most:
                raise RunError(
                    f"{path} has {status.st_size:,} bytes, more than the {most:,} that it may have"
                )
            return file.read(most if first is None else first)


def half_of_memory() -> int:
    """Bytes: what is larger cannot be read and used on this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a crash at any point leaves one whole version.

    The data reach the disk before the name does (fsync, then rename), and the rename itself
    is made durable by syncing the directory. The temporary name is always the same: what a killed
    process left behind is overwritten, not collected.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with explain_os_errors(f"write {path}"):
        try:
            with suppress(FileNotFoundError):
                temporary.unlink()
            # a new file, not one that a link of this name leads to
            fresh = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, fresh, 0o666), "wb") as file:
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
