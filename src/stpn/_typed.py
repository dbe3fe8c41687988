"""Whether a value read from JSON is of the type that a field of a dataclass has."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

LARGEST_INT = 2**63 - 1

T = TypeVar("T")


def type_hints(cls: Any) -> Mapping[str, Any]:
    return _type_hints(cls)


@functools.cache  # each takes longer than all else about a small file
def _type_hints(cls: Any) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(cls))


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass with these values; ValueError names what is missing, unknown or misplaced."""
    hints = type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    for name, field in fields.items():
        optional = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if name not in values and not optional:
            raise ValueError(f"it lacks {name!r}")
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{name!r} is unknown")
        if not fits(value, hints[name]):
            raise ValueError(f"{name!r} must be {describe(hints[name])}, not {_short(value)}")
    return cls(**values)


def fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is tuple:  # of any length; JSON has lists only
        return isinstance(value, (list, tuple)) and all(fits(v, arguments[0]) for v in value)
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, arguments[1]) for item in value.values())
    if hint in (None, type(None)):
        return value is None
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, float) or fits(value, int)
    if hint is int:
        return isinstance(value, int) and abs(value) <= LARGEST_INT
    return isinstance(value, hint)


def describe(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(describe, arguments))
    if origin is tuple:
        return f"a list of {describe(arguments[0])}"
    if origin is list:
        return f"a list, each item {describe(arguments[0])}"
    if origin is dict:
        return f"an object, each entry {describe(arguments[1])}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return "null" if hint in (None, type(None)) else names.get(hint, str(hint))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
