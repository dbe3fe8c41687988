"""JSON on disk: whole, readable by anything, and without NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stpn._files import explain_os_errors, write_atomic
from stpn.errors import RunError


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
