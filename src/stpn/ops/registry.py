"""Backends: implementations of the recurrences, tried in order.

A backend says which recurrences it has, whether it can run here, and whether it takes a call:

    class Mine(stpn.Backend):
        name = "mine"
        recurrences = {"stpn": my_stpn}     # the signature of stpn.ops.stpn.reference.stpn

        def rejects(self, recurrence, inputs, options):
            return "only float64" if inputs[0].dtype != torch.float64 else None

    stpn.register_backend(Mine())

By default each call runs on the first backend that takes it; why an earlier one does not is logged
once. `use_backend` and the environment variable STPN_BACKEND choose one of them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

_logger = logging.getLogger("stpn")

AUTO = "auto"

P = ParamSpec("P")
R = TypeVar("R")


class Backend:
    """One implementation of some recurrences."""

    name: str
    detail: str = ""
    """What it runs on, in a few words."""
    device: str = "cpu"
    """The kind of device that its tensors are on, for whoever compares or times it."""
    on_request: frozenset[str] = frozenset()
    """Kinds of device on which it runs if it is chosen by name, and never by itself."""
    recurrences: Mapping[str, Callable[..., Any]] = {}
    """By the name of the function that specifies them: same arguments, same results."""

    def unusable(self) -> str | None:
        """Why it cannot run here, or None. Asked once."""
        return None

    def rejects(
        self, recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> str | None:
        """Why it cannot run this call, by its positional and keyword arguments, or None."""
        return None

    @property
    def usable(self) -> bool:
        return self.unusable() is None

    def __str__(self) -> str:
        problem = self.unusable()
        return f"{self.name}: " + (
            f"not usable ({problem})" if problem else f"usable ({self.detail})"
        )


_backends: dict[str, Backend] = {}  # the preferred one first
_order: tuple[Backend, ...] = ()  # those that are usable
_said: set[str] = set()


def register_backend(backend: Backend, *, before: str | None = "reference") -> None:
    """Add a backend, or replace the one of that name.

    It is tried before the one that is named, by default before the specification, which takes every
    call; None: last.
    """
    global _order
    if backend.name == AUTO:
        raise ValueError(f"backend: {AUTO!r} is the choice among all of them, not a name")
    names = [name for name in _backends if name != backend.name]
    if before is not None and before not in names:
        raise ValueError(f"before: expected one of {', '.join(names)}, got {before!r}")
    names.insert(len(names) if before is None else names.index(before), backend.name)
    known = _backends | {backend.name: backend}
    _backends.clear()
    _backends.update((name, known[name]) for name in names)
    _order = tuple(b for b in _backends.values() if b.usable)


def backends() -> tuple[Backend, ...]:
    """All backends, the preferred one first."""
    return tuple(_backends.values())


# --- The choice ---------------------------------------------------------------------------------


class _Choice(threading.local):
    """What this thread has chosen; other threads have no part in it."""

    name = AUTO


_choice = _Choice()
# All threads' choices but for the default, the latest last: torch.compile, which cannot look at
# those of a thread, takes this one, and compiles anew when it has changed.
_choices: dict[int, str] = {}
_latest = AUTO


def _choose(name: str) -> None:
    global _latest
    _choice.name = name
    _choices.pop(threading.get_ident(), None)
    if name != _Choice.name:
        _choices[threading.get_ident()] = name
    _latest = next(reversed(list(_choices.values())), _Choice.name)


def _checked(what: str, name: str) -> str:
    if name != AUTO and name not in _backends:
        known = ", ".join([AUTO, *_backends])
        raise ValueError(f"{what}: expected one of {known}, got {name!r}")
    problem = None if name == AUTO else _backends[name].unusable()
    if problem is not None:
        raise ValueError(f"{what}: {name!r} is not usable: {problem}")
    return name


class use_backend:
    """Choose the backend for all later calls of this thread, or for a `with` block.

        stpn.use_backend("reference")
        with stpn.use_backend("native"): ...

    "auto", the default, takes the first that can run a call. With any other a call that it cannot
    run is an error. As with `torch.no_grad`, other threads are not affected; the environment
    variable STPN_BACKEND chooses for all of them.
    """

    def __init__(self, name: str) -> None:
        checked = _checked("backend", name)
        self._before = _choice.name
        _choose(checked)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _choose(self._before)


def choose_by_environment() -> None:
    """For all threads that make no choice of their own."""
    global _latest
    _Choice.name = _latest = _checked("STPN_BACKEND", os.environ.get("STPN_BACKEND", AUTO))


def chosen() -> str:
    """The name of the backend that this thread has chosen, or "auto"."""
    return _latest if torch.compiler.is_compiling() else _choice.name


# --- A call -------------------------------------------------------------------------------------


def implementation(
    recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """The function that runs this call; None if no backend has the recurrence."""
    name = chosen()
    for backend in _order if name == AUTO else (_backends[name],):
        run = backend.recurrences.get(recurrence)
        if run is None or (name == AUTO and inputs[0].device.type in backend.on_request):
            continue
        reason = backend.rejects(recurrence, inputs, options)
        if reason is None:
            return run
        if name != AUTO:
            raise ValueError(f"backend {name!r} cannot run this: {reason}")
        if reason not in _said and not torch.compiler.is_compiling():
            if _elsewhere(backend, inputs[0].device.type):
                continue
            _said.add(reason)
            _logger.warning("this does not run on the backend %r: %s", backend.name, reason)
    return None


def say_plain(reason: str) -> None:
    """Log once why a core that could have a kernel runs step by step in plain PyTorch."""
    if reason in _said or chosen() != AUTO or torch.compiler.is_compiling():
        return
    _said.add(reason)
    _logger.warning("this runs step by step in plain PyTorch: %s", reason)


def _elsewhere(backend: Backend, device: str) -> bool:
    """Whether others than this backend and the specification are the ones for that device."""
    return backend.device != device and any(other.device == device for other in _order[:-1])


def dispatched(specification: Callable[P, R]) -> Callable[P, R]:
    """The recurrence on the backend in use."""
    recurrence = specification.__name__

    def run(*inputs: P.args, **options: P.kwargs) -> R:
        function = implementation(recurrence, inputs, options)
        if function is None:
            raise ValueError(f"backend {chosen()!r} has no {recurrence}")
        return function(*inputs, **options)

    run.__name__ = run.__qualname__ = recurrence
    run.__doc__ = f"`{recurrence}` of the specification, on the backend in use."
    return run
