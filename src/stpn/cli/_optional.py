"""Flags that may be left open: `--hidden-size none`, in help `--hidden-size INT|none`."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any

from tyro import constructors

_PARSERS: dict[Any, Any] = {int: int, float: float, str: str, Path: Path}

registry = constructors.ConstructorRegistry()


@registry.primitive_rule
def _number_or_none(
    info: constructors.PrimitiveTypeInfo,
) -> constructors.PrimitiveConstructorSpec[Any] | None:
    options = typing.get_args(info.type)
    if typing.get_origin(info.type) not in (typing.Union, types.UnionType) or len(options) != 2:
        return None
    kind = next((option for option in options if option in _PARSERS), None)
    if kind is None or type(None) not in options:
        return None

    def parse(words: list[str]) -> Any:
        return None if words[0].lower() == "none" else _PARSERS[kind](words[0])

    return constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{kind.__name__.upper()}|none",
        instance_from_str=parse,
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )
