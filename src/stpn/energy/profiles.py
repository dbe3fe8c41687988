"""Device profiles in files: those of the package, and one's own.

    stpn.energy.profile("pcm")                # of the package
    stpn.energy.profile("my-device.toml")     # of a file

A file is TOML, version 1. `base` names a profile of the package to start from; each further value
is a number (or a list of them), or a table with a source and a range:

    version = 1
    name = "our wafer"
    base = "reram"
    f_bits = 6

    [write]
    value = 2e-15                             # J, per update of one synapse
    source = "measured at 300 K, run 12"
    low = 1e-15
    high = 1e-14

`DeviceProfile` has the names of the values and their units.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stpn._files import read_file
from stpn.energy.device import LARGEST, Assumption, DeviceProfile
from stpn.errors import ConfigError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VERSION = 1
MOST_BYTES = 1_000_000
SHELF = Path(__file__).parent.parent / "data" / "devices"

_VALUES = {field.name for field in dataclasses.fields(DeviceProfile) if field.metadata}
_WORDS = ("version", "name", "text", "base")


def profiles() -> list[str]:
    """The names of the package's profiles."""
    order = ("ideal", "pcm", "reram", "srtio3", "digital-22nm")
    found = {path.stem for path in SHELF.glob("*.toml")}
    return [name for name in order if name in found] + sorted(found - set(order))


def profile(source: str | Path) -> DeviceProfile:
    """The profile of that name, or in that TOML file."""
    path = Path(source)
    if path.suffix == ".toml":
        return _read(path)
    if str(source) not in (known := profiles()):
        raise ConfigError(f"{unknown('device profile', str(source), known)}; or a file NAME.toml")
    return _read(SHELF / f"{source}.toml")


def _read(path: Path) -> DeviceProfile:
    content = read_file(path, most=MOST_BYTES)
    try:
        return _build(tomllib.loads(content.decode("utf-8")), path.stem)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not TOML: it is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no device profile: {error}") from error


def _build(content: Mapping[str, Any], stem: str) -> DeviceProfile:
    version = content.get("version")
    if version != VERSION or isinstance(version, bool):
        raise ValueError(f"version: expected {VERSION}, got {version!r}")
    for name in content:
        if name not in _VALUES and name not in _WORDS:
            raise ValueError(unknown("value", name, sorted(_VALUES)))
    words = {name: content.get(name) for name in ("name", "text", "base")}
    for name, word in words.items():
        if word is not None and not isinstance(word, str):
            raise ValueError(f"{name}: expected text, got {word!r}")
    values: dict[str, Any] = {}
    assumptions: dict[str, Assumption] = {}
    if words["base"] is not None:
        if words["base"] not in profiles():  # not a file, which could name itself
            raise ValueError(unknown("base", words["base"], profiles()))
        base = profile(words["base"])
        values = {name: getattr(base, name) for name in _VALUES}
        assumptions = dict(base.assumptions)
    for name in _VALUES & content.keys():
        values[name], assumptions[name] = _value(name, content[name])
    for name in ("volts", "siemens"):
        if name not in values:
            raise ValueError(f"it lacks {name!r}, or a base that has it")
    return DeviceProfile(
        **values, name=words["name"] or stem, text=words["text"] or "", assumptions=assumptions
    )


def _value(name: str, entry: Any) -> tuple[Any, Assumption]:
    """The value and what is known of it."""
    table = entry if isinstance(entry, dict) else {"value": entry}
    for key in table:
        if key not in ("value", "source", "low", "high", "unit"):
            raise ValueError(unknown(f"entry of {name}", key, ("value", "source", "low", "high")))
    if "value" not in table:
        raise ValueError(f"{name}: it lacks 'value'")
    unit = next(f.metadata["unit"] for f in dataclasses.fields(DeviceProfile) if f.name == name)
    if table.get("unit", unit) != unit:
        raise ValueError(f"{name}: expected it in {unit}, got {table['unit']!r}")
    value, source = table["value"], table.get("source", "given in the file, without a source")
    if not isinstance(source, str):
        raise ValueError(f"{name}: expected a source in words, got {source!r}")
    if isinstance(value, list):
        value = tuple(value)
    low, high = table.get("low"), table.get("high")
    for end, bound in (("low", low), ("high", high)):
        number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if bound is not None and not (number and abs(bound) <= LARGEST):
            raise ValueError(
                f"{name}: expected a number of at most {LARGEST:g} as {end}, got {bound!r}"
            )
    if (low is None) != (high is None):
        raise ValueError(f"{name}: expected both low and high, or neither")
    if low is not None and high is not None:
        if not low < high:
            raise ValueError(f"{name}: expected low < high, got {low!r} and {high!r}")
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise ValueError(f"{name}: {value!r} lies outside its range, {low!r} to {high!r}")
    return value, Assumption(source, low, high)
