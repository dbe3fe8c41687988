"""Checks of arguments: the error names the argument, what was expected and what came.

They look at types, shapes, dtypes and devices only, never at values, so that `torch.compile`
can trace through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected a positive int, got {_of(value)}")
    if value <= 0:
        raise ValueError(f"{name}: expected a positive int, got {value}")
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, got {_of(value)}")
    return value


def choice(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    if not any(value is option or value == option for option in allowed):
        names = ", ".join(map(repr, allowed))
        raise ValueError(f"{name}: expected one of {names}, got {value!r}")
    return value


def probability(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number in [0, 1], got {_of(value)}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value}")
    return float(value)


def positive_or_none(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected None or a positive number, got {_of(value)}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected None or a positive number, got {value}")
    return float(value)


def number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {_of(value)}")
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return float(value)


def interval(low_name: str, low: object, high_name: str, high: object) -> tuple[float, float]:
    """Two numbers in their order."""
    first, last = number(low_name, low), number(high_name, high)
    if first > last:
        raise ValueError(f"{low_name}: expected at most {high_name} ({last:g}), got {first:g}")
    return first, last


def floating_dtype(name: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{name}: expected a real floating-point dtype, got {dtype!r}")


def tensor(name: str, value: object, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """A strided tensor on `device`, of `dtype` (None: of any floating-point dtype)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {_of(value)}")
    if value.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense (strided) tensor, got layout {value.layout}")
    if dtype is None:
        if not value.dtype.is_floating_point:
            raise TypeError(f"{name}: expected a floating-point dtype, got {value.dtype}")
    elif value.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, got {value.dtype}")
    if value.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, got one on {value.device}")
    return value


def shape(name: str, value: Tensor, expected: Sequence[int], meaning: str) -> None:
    if tuple(value.shape) != tuple(expected):
        raise ValueError(
            f"{name}: expected shape {tuple(expected)} {meaning}, got {tuple(value.shape)}"
        )


def mask(
    name: str, value: object, expected: Sequence[int], meaning: str, device: torch.device
) -> Tensor:
    if isinstance(value, Tensor) and value.dtype != torch.bool:
        raise TypeError(f"{name}: expected dtype torch.bool, got {value.dtype}")
    checked = tensor(name, value, device, torch.bool)
    shape(name, checked, expected, meaning)
    return checked


def state(
    name: str,
    value: Any,
    state_type: Any,
    shapes: Sequence[tuple[int, ...]],  # of each field, batch included
    device: torch.device,
    dtype: torch.dtype | None,
) -> Any:
    """One state of the given type, or its fields in a plain tuple, every one with its shape."""
    if type(value) is not state_type:
        if type(value) not in (tuple, list) or len(value) != len(shapes):
            raise TypeError(f"{name}: expected {state_type.__name__}, got {_of(value)}")
        value = state_type(*value)
    for field, part, expected in zip(state_type._fields, value, shapes, strict=True):
        checked = tensor(f"{name}.{field}", part, device, dtype)
        shape(f"{name}.{field}", checked, expected, "for this input")
    return value


def _of(value: object) -> str:
    kind = type(value).__name__
    return kind if isinstance(value, (Tensor, tuple, list, dict)) else f"{value!r} ({kind})"
