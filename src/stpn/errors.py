"""What can go wrong for a user, each with a message that can be printed as it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StpnError(Exception):
    """Base of all errors that a user can cause or meet; printed without a trace."""


class ConfigError(StpnError, ValueError):
    """A setting that is unknown, of the wrong type, or impossible."""


class RunError(StpnError):
    """A run directory that is missing, damaged, occupied, or cannot be written."""


class RunInUse(RunError):
    """Another process works in the run directory."""


class CheckpointError(RunError):
    """A checkpoint that is damaged, foreign, from another version, or does not fit the model."""


class NonFinite(StpnError, ArithmeticError):
    """Training met NaN or infinity and stopped; the last good checkpoint is still there."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence that refuses a name and says which ones there are."""
    known = list(known)
    spelt = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1)
    hint = f" (did you mean {spelt[close[0]]!r}?)" if close else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(known)}"


def require(condition: bool, name: str, expected: str, value: object) -> None:
    """Raise ConfigError unless a setting is as expected."""
    if not condition:
        raise ConfigError(f"{name} must be {expected}, not {value!r}")
