"""What to watch inside some models: which layers, by which names, without which inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn

from stpn.energy import torch_layers
from stpn.energy.watched import WatchedLayer
from stpn.nn.base import Recurrence
from stpn.nn.core import RecurrentCore

Selector: TypeAlias = str | type[nn.Module]
"""A name, which may hold wildcards, or a type; either stands for all that is inside it too."""


class Choice:
    """A set of modules by name and type."""

    def __init__(self, selectors: Selector | Iterable[Selector] | None, argument: str) -> None:
        self.argument = argument
        self.given = selectors is not None
        if selectors is None:
            selectors = ()
        elif isinstance(selectors, (str, type)):
            selectors = (selectors,)
        self._names: list[str] = []
        self._types: list[type[nn.Module]] = []
        self._used: set[str] = set()
        for selector in selectors:
            if isinstance(selector, str):
                self._names.append(selector)
            elif isinstance(selector, type) and issubclass(selector, nn.Module):
                self._types.append(selector)
            else:
                raise TypeError(f"{argument}: expected names and module types, got {selector!r}")

    def includes(self, name: str, module: nn.Module) -> bool:
        hits = [pattern for pattern in self._names if fnmatchcase(name, pattern)]
        self._used.update(hits)
        return bool(hits) or isinstance(module, tuple(self._types))

    def check_names(self, known: Iterable[str]) -> None:
        for pattern in self._names:
            if pattern not in self._used:
                names = ", ".join(known)
                raise ValueError(f"{self.argument}: expected one of {names}, got {pattern!r}")


@dataclass
class Found:
    """What there is to watch in some models."""

    layers: list[WatchedLayer] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    orders: set[bool] = field(default_factory=set)  # batch_first of the layers that have one

    @property
    def batch_first(self) -> bool:
        return self.orders != {False}

    @classmethod
    def inside(cls, models: Mapping[str, nn.Module], only: Choice, skip: Choice) -> Found:
        found, seen, names = cls(), set[int](), list[str]()

        def visit(name: str, path: str, module: nn.Module, chosen: bool, dropped: bool) -> None:
            if id(module) in seen:
                return
            seen.add(id(module))
            names.append(name)
            chosen = only.includes(name, module) or chosen
            dropped = skip.includes(name, module) or dropped
            kind = type(module).__name__
            known = isinstance(module, (Recurrence, *torch_layers.KNOWN))
            watched = chosen and not dropped
            if known:
                if watched:
                    found.layers.append(WatchedLayer(name, module))
                else:
                    found.left_out[name] = kind
                if isinstance(module, (RecurrentCore, *torch_layers.ORDERED)):
                    found.orders.add(module.batch_first)
                return
            if watched and any(value is not None for value in module._parameters.values()):
                found.unknown[name] = kind
            for child_name, child in module.named_children():
                below = f"{path}{child_name}"
                visit(below, f"{below}.", child, chosen, dropped)

        for name, model in models.items():
            visit(name, f"{name}." if len(models) > 1 else "", model, not only.given, False)
        only.check_names(names)
        skip.check_names(names)
        return found


def named(models: tuple[Any, ...]) -> dict[str, nn.Module]:
    """The models by name: their keys, their numbers, or the type of the only one."""
    if len(models) == 1 and not isinstance(models[0], nn.Module):
        several = models[0]
        if isinstance(several, Mapping):
            named = dict(several)
        elif isinstance(several, Iterable):
            named = {str(number): model for number, model in enumerate(several)}
        else:
            named = {"0": several}
    elif len(models) == 1:
        named = {type(models[0]).__name__: models[0]}
    else:
        named = {str(number): model for number, model in enumerate(models)}
    if not named:
        raise ValueError("models: expected at least one module, got none")
    for name, model in named.items():
        if not isinstance(model, nn.Module):
            raise TypeError(f"models: expected modules, got {type(model).__name__} for {name!r}")
    return named


def ignored_inputs(
    inputs: Sequence[int] | Mapping[str, Sequence[int]] | None, layers: list[WatchedLayer]
) -> dict[str, tuple[int, ...]]:
    """The inputs that do not count, by layer."""
    if inputs is None:
        return {}
    by_name = {layer.name: layer for layer in layers}
    if not isinstance(inputs, Mapping):
        recurrent = [layer.name for layer in layers if layer.recurrent]
        candidates = list(by_name) if len(by_name) == 1 else recurrent
        if len(candidates) != 1:
            raise ValueError(
                "ignore_inputs: expected a dictionary by layer, as there is not one recurrent "
                f"layer but {len(recurrent)}, got {inputs!r}; layers: {', '.join(by_name)}"
            )
        inputs = {candidates[0]: inputs}
    found = {}
    for name, indices in inputs.items():
        if name not in by_name:
            raise ValueError(f"ignore_inputs: expected one of {', '.join(by_name)}, got {name!r}")
        module = by_name[name].module
        size = (
            module.input_size if isinstance(module, Recurrence) else torch_layers.input_size(module)
        )
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int):
                raise TypeError(f"ignore_inputs: expected indices, got {index!r} for {name}")
            if not -size <= index < size:
                raise ValueError(
                    f"ignore_inputs: expected indices below {size} for {name}, got {index}"
                )
        found[name] = tuple(sorted({index % size for index in indices}))
    return found
