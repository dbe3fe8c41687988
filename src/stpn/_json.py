"""JSON on disk: whole, readable by anything, bounded, and without NaN.

`sealed` files carry a checksum of the rest of their content, so that a changed digit is noticed;
files of versions that had none are read without.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stpn._files import read_file, write_atomic
from stpn.errors import RunError

MOST_BYTES = 64 * 2**20
DEEPEST = 20
SEAL = "checksum"


def read_json(path: Path, *, remedy: str = "restore it from a copy") -> Any:
    """The content of a JSON file; RunError with what is wrong and what to do about it."""
    try:
        return _unsealed(parse(read_file(path, most=MOST_BYTES)))
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; {remedy}") from error


def read_object(path: Path, *, remedy: str = "restore it from a copy") -> dict[str, Any]:
    content = read_json(path, remedy=remedy)
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it does not hold an object; {remedy}")
    return content


def parse(content: bytes | str) -> Any:
    """`json.loads` that raises nothing but ValueError: for NaN, infinity and deep nesting too."""
    try:
        value = json.loads(content, parse_constant=_refuse, parse_float=_finite)
        _check_depth(value, DEEPEST)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    return value


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> float:
    raise ValueError(f"{text[:20]} is not a finite number")


def _check_depth(value: Any, left: int) -> None:
    if left == 0:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                _check_depth(item, left - 1)


def json_safe(values: Mapping[str, Any]) -> dict[str, Any]:
    """NaN and infinity are not JSON: null stands for "could not be measured"."""
    return {key: _measured(value) for key, value in values.items()}


def _measured(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_measured(entry) for entry in value]
    return json_safe(value) if isinstance(value, Mapping) else value


def write_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = 2, sealed: bool = False
) -> None:
    if sealed:
        content = {**content, SEAL: _checksum(content)}
    text = json.dumps(content, indent=indent, allow_nan=False)
    write_atomic(path, text.encode() + b"\n")


def _unsealed(content: Any) -> Any:
    if not isinstance(content, dict) or SEAL not in content:
        return content
    rest = {key: value for key, value in content.items() if key != SEAL}
    if content[SEAL] != _checksum(rest):
        raise ValueError("its checksum does not match")
    return rest


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(canonical.encode()):08x}"
