"""The tasks, each with all that is its own, and usable alone: `stpn.tasks.art.dataset(...)`.

`registry` says what a task is and how to add one.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_MODULES = (
    "art", "copying", "cue_reward", "familiarity", "gym", "maze", "mqar", "pendulum", "pong",
    "retrieval",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """A task is loaded when it is first used: some need packages that a plain install lacks."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
