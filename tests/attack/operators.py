"""Malformed calls of the operators `torch.ops.stpn.*`: refused, and never out of bounds.

An argument that only lies strangely in memory changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from stpn.ops.fast_weights import native as fast_weights
from stpn.ops.modplast import native as modplast
from stpn.ops.stpn import native as stpn

from . import Broken, attack
from .tensors import draw, laid_out, spoiled, wrong

OPERATORS = {
    operator.name: operator
    for operator in (stpn.operator, modplast.operator, fast_weights.operator)
}
REFUSALS = (ValueError, TypeError, RuntimeError)
OPTIONAL = ("bias", "reset", "lengths", "power_weight")
Arguments = dict[str, Any]


@attack("operators", isolated=True)
def malformed_operator_call(random: Random) -> str:
    call, arguments = _call(random)
    plain = call(**arguments)
    name = random.choice(list(arguments))
    if isinstance(arguments[name], Tensor) and random.random() < 0.25:
        odd = call(**arguments | {name: laid_out(random, arguments[name])})
        results = len(plain) - ("save" in arguments)  # what is saved of no step is arbitrary
        _same(odd[:results], plain[:results], f"{name} in another layout")
        return "lies strangely: the same"
    kind, value, certain = _malformed(random, name, arguments)
    try:
        call(**arguments | {name: value})
    except REFUSALS:
        return "malformed: refused"
    if certain:
        raise Broken(f"{call}: {name} was taken with a wrong {kind}")
    return "doubtful: taken"


def _call(random: Random) -> tuple[Callable[..., Any], Arguments]:
    """An operator, and arguments that it takes."""
    name = random.choice(["stpn", "modplast", "fast_weights"])
    operator = OPERATORS[name]
    arguments = _inputs(random, name)
    if name == "stpn" and random.random() < 0.2:
        return _step(arguments)
    forward = getattr(torch.ops.stpn, name)
    if random.random() < 0.4:
        return forward, arguments | {"save": random.random() < 0.5}
    y, *others, saved = forward(**arguments, save=True)
    grads = {}
    for result, value in zip(operator.results._fields, (y, *others), strict=True):
        grads[f"d{result}"] = value.clone() if value.numel() and random.random() < 0.8 else None
    needs = [random.random() < 0.8 for operand in operator.operands if operand.differentiable]
    backward = getattr(torch.ops.stpn, f"{name}_backward")
    return backward, arguments | {"y": y, "saved": saved, **grads, "needs": needs}


def _step(arguments: Arguments) -> tuple[Callable[..., Any], Arguments]:
    names = {"h0": "h", "c0": "c", "f0": "f"}
    step = {names.get(n, n): v for n, v in arguments.items() if n not in ("reset", "lengths")}
    step["x"] = step["x"][:, 0].contiguous()
    gated = step["c"] is not None
    operator = torch.ops.stpn.stpn_lstm_step_ if gated else torch.ops.stpn.stpn_step_
    if not gated:
        del step["c"]

    def run(**given: Any) -> Any:
        copies = {
            n: given[n].clone() if _whole(given[n]) else given[n] for n in ("f", "c") if n in given
        }
        return *operator(**given | copies), *copies.values()

    return run, step


def _whole(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_cpu and value.untyped_storage().nbytes() > 0


def _inputs(random: Random, name: str) -> Arguments:
    operator = OPERATORS[name]
    dtype = random.choice([torch.float32, torch.float64])
    sizes = {
        "B": random.choice([1, 2, 3, 8]), "T": random.choice([1, 2, 5, 9]),
        "I": random.choice([1, 3, 8]), "H": random.choice([1, 2, 5, 8]),
    }  # fmt: skip
    gated = name == "stpn" and random.random() < 0.3
    recurrent = gated or random.random() < 0.7
    sizes["R"] = sizes["H"] * (4 if gated else 1)
    sizes["D"] = sizes["I"] + sizes["H"] * recurrent
    absent = {"c0"} if not gated else set()
    absent |= random.choice([{"eta"}, {"v", "d"}])
    arguments: Arguments = {}
    for operand, shape in zip(operator.operands, operator.operands.shapes(sizes), strict=True):
        spare = operand.name in OPTIONAL and random.random() < 0.5
        if spare or operand.name in absent:
            arguments[operand.name] = None
        elif operand.name == "reset":
            arguments["reset"] = draw(random, *shape, dtype=dtype) > 0.4
        elif operand.name == "lengths":
            arguments["lengths"] = torch.tensor(
                [random.randint(1, sizes["T"]) for _ in range(*shape)]
            )
        else:
            arguments[operand.name] = draw(random, *shape, dtype=dtype, scale=0.4)
    if name == "stpn":
        arguments |= {
            "norm": random.randrange(3), "activation": random.randrange(3),
            "recurrent": recurrent, "clamp": random.choice([math.inf, 0.3]),
            "associate_new": random.random() < 0.5,
        }  # fmt: skip
    if name == "fast_weights":
        arguments |= {"decay": 0.9, "rate": 0.5, "eps": 1e-5}
    return arguments


WRONG_OPTIONS: dict[str, tuple[Any, ...]] = {
    "norm": (-1, 3, 99, 2**40),
    "activation": (-1, 3, 99, 2**40),
    "clamp": (math.nan, -1.0, -math.inf),
    "decay": (math.nan, 0.0, -1.0, math.inf),
    "rate": (math.nan, math.inf),
    "eps": (math.nan, math.inf),
}


def _malformed(random: Random, name: str, arguments: Arguments) -> tuple[str, Any, bool]:
    """What is wrong, the value, and whether it certainly has to be refused."""
    value = arguments[name]
    if name in WRONG_OPTIONS:
        return "value", random.choice(WRONG_OPTIONS[name]), True
    if name == "recurrent":
        return "value", not value, True
    if name in ("save", "associate_new"):
        return "value", not value, False
    if name == "needs":
        size = random.choice([0, len(value) - 1, len(value) + 1])
        return "length", [True] * size, True
    if value is None:
        like = arguments.get("x", arguments.get("p"))
        return "presence", draw(random, 2, 3, dtype=like.dtype), False
    if name == "saved" and random.random() < 0.5:  # numbers from anywhere
        return "value", spoiled(random, value, (0.0, 1.0, 4.0, 8.0, 1e9, math.nan)), False
    kind, changed = wrong(random, value)
    optional = name in OPTIONAL or name.startswith("d")
    certain = not (
        (kind == "missing" and optional and name not in ("d", "decay"))
        or (kind == "freed" and not value.numel())
        or (kind == "size" and name in ("lambda_", "gamma", "x", "p"))
        or (kind == "size" and changed is not None and changed.shape == value.shape)  # of nothing
    )
    return kind, changed, certain


def _same(actual: Any, expected: Any, what: str) -> None:
    for one, other in zip(actual, expected, strict=True):
        if not torch.equal(one.nan_to_num(), other.nan_to_num()):
            raise Broken(f"{what} gives other numbers")
