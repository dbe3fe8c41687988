"""Any optimizer of torch.optim by name, in its fastest form."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from stpn.errors import ConfigError, unknown

# need a closure, or gradients of another kind
_UNSUITABLE = ("LBFGS", "SparseAdam", "Optimizer")


def names() -> list[str]:
    """Optimizers that a run can use."""
    classes = inspect.getmembers(torch.optim, inspect.isclass)
    return [
        name
        for name, cls in classes
        if issubclass(cls, torch.optim.Optimizer) and name not in _UNSUITABLE
    ]


def has_option(name: str, option: str) -> bool:
    """Whether the optimizer of that name takes such an argument."""
    return option in inspect.signature(getattr(torch.optim, name, object)).parameters


def build(
    name: str,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    lr: float,
    **options: Any,
) -> torch.optim.Optimizer:
    """The optimizer, its update fused into one kernel where torch has one."""
    if name not in names():
        raise ConfigError(unknown("optimizer", name, dict.fromkeys(names())))
    cls = getattr(torch.optim, name)
    for option in options:
        if not has_option(name, option):
            raise ConfigError(f"the optimizer {name} has no option {option!r}")
    given: list[Any] = list(parameters)
    places = {p.device.type for part in given for p in _parameters(part)}
    if has_option(name, "fused") and places <= _fused_on(name):
        options.setdefault("fused", True)
    try:
        return cls(given, lr=lr, **options)
    except ValueError as error:
        raise ConfigError(f"the optimizer {name} refuses its settings: {error}") from error


def _parameters(part: nn.Parameter | dict[str, Any]) -> list[nn.Parameter]:
    return part["params"] if isinstance(part, dict) else [part]


def _fused_on(name: str) -> set[str]:
    """Kinds of devices for which torch has a fused kernel of that optimizer."""
    return {"cpu"} | ({"cuda", "mps", "xpu"} if name in ("Adam", "AdamW") else set())


PLASTICITY = ("lambda", "gamma", "alpha", "eta")
"""How the names of parameters begin that say how synapses change, not what they are."""


def groups(model: nn.Module, lr_plasticity: float | None) -> list[dict[str, Any]]:
    """The parameters for `build`: all in one group, or those of plasticity in a second one."""
    if lr_plasticity is None:
        return [{"params": list(model.parameters())}]
    rules: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_rule = name.rpartition(".")[2].startswith(PLASTICITY)
        (rules if is_rule else others).append(parameter)
    if not rules:
        raise ConfigError("lr_plasticity is for models whose synapses are plastic: leave it out")
    return [{"params": others}, {"params": rules, "lr": lr_plasticity}]


def forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.zero_grad()` without its profiling hooks, which take 4% of an update of ART."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
