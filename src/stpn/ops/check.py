"""Is a backend right on this machine? Small calls of each recurrence, beside the specification.

The specification runs in float64 on the CPU, the backend in float32 on the device that it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stpn.ops import reference
from stpn.ops.reference import STPNOptions

TOLERANCE = 1e-3
"""Of the largest entry: what float32 may do, and no mistake does."""

Tensors = dict[str, Tensor | None]


@dataclass(frozen=True)
class Finding:
    """How far a recurrence is off: at most by `worst` of the largest entry, which is in `where`."""

    recurrence: str
    worst: float
    where: str

    @property
    def right(self) -> bool:
        return self.worst <= TOLERANCE  # not so for NaN

    def __str__(self) -> str:
        return f"{self.recurrence}: off by {self.worst:.1e} of the largest entry in {self.where}"


def checked(
    functions: Mapping[str, Callable[..., Any]], device: torch.device | str = "cpu"
) -> list[Finding]:
    """Every recurrence that is among `functions`, by name: results, states and all gradients."""
    return [check(name, functions[name], device) for name in RECURRENCES if name in functions]


def check(
    recurrence: str, function: Callable[..., Any], device: torch.device | str = "cpu"
) -> Finding:
    worst, where = 0.0, "y"
    specification = getattr(reference, recurrence)
    for label, tensors, options in RECURRENCES[recurrence]():
        expected = _run(specification, tensors, options, torch.float64, "cpu")
        actual = _run(function, tensors, options, torch.float32, device)
        for name, value in expected.items():
            difference = (actual[name] - value).abs().max() / (1 + value.abs().max())
            if not difference <= worst:
                worst, where = difference.item(), f"{name} ({label})"
    return Finding(recurrence, worst, where)


def _run(
    function: Callable[..., Any], tensors: Tensors, options: dict[str, Any], dtype: torch.dtype,
    device: torch.device | str,
) -> dict[str, Tensor]:  # fmt: skip
    """Results, and gradients of a fixed linear function of them, on the CPU."""
    leaves = {
        name: None if value is None else value.to(device, dtype).requires_grad_()
        for name, value in tensors.items()
    }
    fixed = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        if isinstance(value, Tensor)
        else value
        for name, value in options.items()
    }
    with torch.enable_grad():
        results = [value for value in function(*leaves.values(), **fixed) if value is not None]
        total = sum(((k + value.flatten()) ** 2).sum() for k, value in enumerate(results))
        wanted = {name: value for name, value in leaves.items() if value is not None}
        gradients = torch.autograd.grad(total, list(wanted.values()), materialize_grads=True)
    named = {f"result {k}": value.detach() for k, value in enumerate(results)}
    named |= {f"the gradient of {n}": g for n, g in zip(wanted, gradients, strict=True)}
    return {name: value.cpu().double() for name, value in named.items()}


_BATCH, _STEPS = 3, 6


def _draw(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=_generator, dtype=torch.float64)


_generator = torch.Generator()


def _masks(columns: int) -> dict[str, Tensor]:
    reset = torch.rand(_BATCH, _STEPS, generator=_generator) < 0.2
    lengths = torch.tensor([_STEPS, _STEPS - 2, _STEPS - 1])
    power_weight = torch.rand(columns, generator=_generator, dtype=torch.float64)
    return {"reset": reset, "lengths": lengths, "power_weight": power_weight}


def _stpn(gates: int) -> Iterator[tuple[str, Tensors, dict[str, Any]]]:
    """A small network and a large one, each with a norm of its own; gated with `gates` = 4."""
    _generator.manual_seed(0)
    large = 9 if gates == 1 else 3
    for label, inputs, hidden, norm in (("small", 5, 4, "pre"), ("large", 700, large, "post")):
        for recurrent in (False, True) if gates == 1 and label == "small" else (True,):
            rows, columns = gates * hidden, inputs + hidden * recurrent
            tensors: Tensors = {
                "x": _draw(_BATCH, _STEPS, inputs),
                "h0": _draw(_BATCH, hidden, scale=0.5),
                "c0": _draw(_BATCH, hidden, scale=0.5),
                "f0": _draw(_BATCH, rows, columns, scale=0.3),
                "weight": _draw(rows, columns, scale=columns**-0.5),
                "bias": _draw(rows, scale=0.3),
                "lambda_": torch.rand(rows, columns, generator=_generator, dtype=torch.float64),
                "gamma": _draw(rows, columns, scale=0.2),
            }
            if gates == 1:
                del tensors["c0"]
            options = STPNOptions(recurrent=recurrent, norm=norm)  # type: ignore[arg-type]
            kind = "recurrent" if recurrent else "feed-forward"
            yield f"{label}, {kind}", tensors, {"options": options} | _masks(columns)


_UNITS = 7


def _modplast() -> Iterator[tuple[str, Tensors, dict[str, Any]]]:
    _generator.manual_seed(0)
    scale = _UNITS**-0.5
    for label in ("modulated", "unmodulated"):
        modulated = label == "modulated"
        tensors: Tensors = {
            "p": _draw(_BATCH, _STEPS, _UNITS),
            "h0": _draw(_BATCH, _UNITS, scale=0.5),
            "hebb0": _draw(_BATCH, _UNITS, _UNITS, scale=0.3).clamp(-1, 1),
            "w": _draw(_UNITS, _UNITS, scale=scale),
            "alpha": _draw(_UNITS, _UNITS, scale=scale),
            "v": _draw(_UNITS, scale=scale) if modulated else None,
            "d": _draw(scale=0.3) if modulated else None,
            "eta": None if modulated else _draw(scale=0.3),
        }
        yield label, tensors, dict(_masks(_UNITS))


def _fast_weights() -> Iterator[tuple[str, Tensors, dict[str, Any]]]:
    _generator.manual_seed(0)
    scale = _UNITS**-0.5
    tensors: Tensors = {
        "p": _draw(_BATCH, _STEPS, _UNITS),
        "h0": _draw(_BATCH, _UNITS, scale=0.5),
        "a0": _draw(_BATCH, _UNITS, _UNITS, scale=scale),
        "w_h": _draw(_UNITS, _UNITS, scale=scale),
        "ln_weight": 1 + _draw(_UNITS, scale=0.3),
        "ln_bias": _draw(_UNITS, scale=0.3),
    }
    yield "one turn", tensors, dict(_masks(_UNITS))


def _memory(delta: bool) -> Iterator[tuple[str, Tensors, dict[str, Any]]]:
    """Two chunks and a half of the delta rule, gated or not, or of gated linear attention."""
    _generator.manual_seed(0)
    steps, heads, keys, values = 80, 2, 5, 3
    for label in ("gated", "not gated") if delta else ("gated",):
        tensors: Tensors = {
            "q": _draw(_BATCH, steps, heads, keys),
            "k": functional.normalize(_draw(_BATCH, steps, heads, keys), dim=-1),
            "v": _draw(_BATCH, steps, heads, values),
        }
        gate = functional.logsigmoid(_draw(_BATCH, steps, heads, *(() if delta else (keys,))))
        if delta:
            tensors["beta"] = _draw(_BATCH, steps, heads).sigmoid()
        tensors["g"] = gate if label == "gated" else None
        tensors["s0"] = _draw(_BATCH, heads, values, keys, scale=0.5)
        reset = torch.rand(_BATCH, steps, generator=_generator) < 0.04
        lengths = torch.tensor([steps, steps - 30, steps - 1])
        yield label, tensors, {"reset": reset, "lengths": lengths, "power": True}


RECURRENCES: dict[str, Callable[[], Iterator[tuple[str, Tensors, dict[str, Any]]]]] = {
    "stpn": lambda: _stpn(gates=1),
    "stpn_lstm": lambda: _stpn(gates=4),
    "modplast": _modplast,
    "fast_weights": _fast_weights,
    "delta_rule": lambda: _memory(delta=True),
    "gated_linear_attention": lambda: _memory(delta=False),
}
"""Calls that show whether a recurrence is right: label, tensors in order, options."""
