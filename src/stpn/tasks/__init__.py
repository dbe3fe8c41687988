"""The paper's tasks, each usable alone: `stpn.tasks.art.dataset(...)`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_MODULES = ("art", "familiarity", "maze", "pendulum", "pong")


def __getattr__(name: str) -> ModuleType:
    """A task is loaded when it is first used: some need packages that a plain install lacks."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
