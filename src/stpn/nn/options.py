"""The options of a core: the keyword arguments of its `configure`, with types and words."""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option of a core."""

    name: str
    type: Any
    """As annotated: float, int, bool, a Literal, a union."""
    default: Any
    doc: str
    """The text of `Annotated[type, "text"]`; "" if there is none."""


def options_of(cls: Any) -> Mapping[str, Option]:
    """The options of a core's class by name, in the order of its `configure`.

    A `configure` with `**options` hands them on to that of its base, whose options come first.
    """
    return _options_of(cls)


@functools.cache  # every layer asks when it is made
def _options_of(cls: Any) -> Mapping[str, Option]:
    found: dict[str, Option] = {}
    for base in cls.__mro__:
        configure = vars(base).get("configure")
        if configure is None:
            continue
        try:
            hints = typing.get_type_hints(configure, include_extras=True)
        except NameError:  # written inside a function, with names that only it knows
            hints = {}
        parameters = inspect.signature(configure).parameters
        own = {
            name: _option(name, hints.get(name, Any), parameter.default)
            for name, parameter in parameters.items()
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
        }
        found = own | found
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            break
    return MappingProxyType(found)


def _option(name: str, hint: Any, default: Any) -> Option:
    texts: tuple[Any, ...] = ()
    if default is None:  # up to Python 3.10 a hint is wrapped in Optional then, text and all
        hint = next((a for a in typing.get_args(hint) if _is_annotated(a)), hint)
    if _is_annotated(hint):
        hint, *rest = typing.get_args(hint)
        texts = tuple(text for text in rest if isinstance(text, str))
    return Option(name, hint, default, " ".join(texts))


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is typing.Annotated


def signature_with_options(cls: Any) -> inspect.Signature:
    """That of the constructor, with the options that it hands on to `configure`."""
    plain = inspect.signature(cls.__init__)
    own = [p for p in plain.parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=o.type
        )
        for o in options_of(cls).values()
    ]
    return plain.replace(parameters=[*own, *added])


def check_options(cls: type, options: Mapping[str, Any]) -> None:
    """Raise TypeError, in the name of the class, for an option that it has not."""
    for name in options:
        if name not in options_of(cls):
            known = list(inspect.signature(cls).parameters)
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(
                f"{cls.__name__} has no option {name!r}, it takes {', '.join(known)}.{hint}"
            )
