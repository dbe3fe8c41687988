"""What a safetensors file says of itself, read without its tensors and without torch."""

from __future__ import annotations

from pathlib import Path

from stpn._files import half_of_memory, read_file
from stpn._json import parse
from stpn._typed import fits

MOST_HEADER = 100_000_000  # bytes, as the format's own readers have it


def metadata(content: bytes) -> dict[str, str]:
    """The file's own entries; ValueError for a file of another kind."""
    # 8 bytes with the length of a JSON header, then that header
    length = int.from_bytes(content[:8], "little")
    header = parse(content[8 : 8 + length]) if length <= min(MOST_HEADER, len(content) - 8) else 0
    found = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not fits(found, dict[str, str]):
        raise ValueError("it is not a safetensors file")
    return dict(found or {})


def metadata_of(path: Path) -> dict[str, str]:
    """The same of a file, of which no more than the header is read."""
    most = half_of_memory()
    length = int.from_bytes(read_file(path, most=most, first=8), "little")
    return metadata(read_file(path, most=most, first=8 + min(length, MOST_HEADER)))
