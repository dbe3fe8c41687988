"""Optional dependencies: imported where they are used, named when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtra(ImportError):
    """A feature needs a package that the plain install does not bring."""


def need(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of the distribution brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"this needs {module!r} ({error}); {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """The command that brings an extra."""
    return (
        f"install it in a clone of the project with: pip install '.[{extra}]' "
        "(not `pip install stpn`, which is another package)"
    )
