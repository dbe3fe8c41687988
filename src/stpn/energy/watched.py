"""A watched layer: how its power gets from the model to a meter, and what undoes that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stpn.energy import torch_layers
from stpn.energy.calls import Call, Reading
from stpn.nn.base import FIRST, Recurrence

Record: TypeAlias = Callable[[str, Reading], None]
"""Told the name of the layer, and what was read off it."""


@dataclass(frozen=True)
class WatchedLayer:
    """One watched module."""

    name: str
    module: nn.Module

    @property
    def recurrent(self) -> bool:
        return isinstance(self.module, (Recurrence, *torch_layers.RECURRENT, *torch_layers.CELLS))

    def parts(self) -> dict[str, int]:
        """Layers and directions inside, with their numbers of synapses; "" if it is only one."""
        module = self.module
        if isinstance(module, Recurrence):
            found = {_part(suffix): module.count_synapses(size) for size, suffix in module.layers}
        else:
            found = torch_layers.parts(module)
        return found if len(found) > 1 else {"": sum(found.values())}

    def watch(
        self,
        record: Record,
        *,
        ignored: tuple[int, ...],
        keeps_graph: Callable[[], bool],
        batch_first: bool,
    ) -> Callable[[], None]:
        """Begin to record, and return what ends it."""
        if isinstance(self.module, Recurrence):
            return self._observe(self.module, ignored, record, keeps_graph)
        return self._hook(ignored, record, keeps_graph, batch_first)

    def _observe(
        self,
        core: Recurrence,
        ignored: tuple[int, ...],
        record: Record,
        keeps_graph: Callable[[], bool],
    ) -> Callable[[], None]:
        single = len(self.parts()) == 1
        asked = {}
        for size, suffix in core.layers:
            operations = core.operations(size)
            if suffix in FIRST and ignored:
                operations = replace(operations, inputs=operations.inputs - len(ignored))
            asked[suffix] = operations

        def observer(power: Tensor, lengths: Tensor | None, suffix: str) -> None:
            operations = asked[suffix]
            if core.frozen:
                operations = replace(operations, writes=0)
            part = "" if single else _part(suffix)
            record(self.name, Reading(part, power, operations, lengths))

        return core.observe_power(observer, ignored=ignored, graph=keeps_graph())

    def _hook(
        self,
        ignored: tuple[int, ...],
        record: Record,
        keeps_graph: Callable[[], bool],
        batch_first: bool,
    ) -> Callable[[], None]:
        rng: Tensor | None = None  # state of the random generator before the call

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal rng
            rng = torch.get_rng_state() if torch_layers.needs_rng(module) else None

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = Call(args, kwargs, output, rng)
            graph = keeps_graph() and torch.is_grad_enabled()
            with torch.set_grad_enabled(graph), _full_precision(module):
                for reading in torch_layers.read(module, call, ignored, batch_first):
                    record(self.name, reading)

        hooks = (
            self.module.register_forward_pre_hook(before, with_kwargs=True),
            self.module.register_forward_hook(after, with_kwargs=True),
        )

        def end() -> None:
            for hook in hooks:
                hook.remove()

        return end


def _full_precision(module: nn.Module) -> torch.autocast:
    kind = next(module.parameters()).device.type
    return torch.autocast(kind, enabled=False)


def _part(suffix: str) -> str:
    return suffix.removeprefix("_")
