"""The power that the synapses of a model draw: one instrument for all models.

    P = sum over synapses of u_j^2 |g_ij|        (the paper's measure)

u is what a synapse sees, as a voltage, g its efficacy, as a conductance. Plastic cores report the
power of each step out of their recurrences; that of other layers is worked out from what goes into
and comes out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stpn import torch_power
from stpn.nn.core import Recurrence, RecurrentCore
from stpn.nn.fast_weights import FastWeights, FastWeightsCell

Selector: TypeAlias = str | type[nn.Module]
"""A name, which may hold wildcards, or a type; either stands for all that is inside it too."""


@dataclass(frozen=True)
class DeviceProfile:
    """What one unit of activation and one unit of efficacy are on a device."""

    volts: float
    siemens: float

    def __post_init__(self) -> None:
        for name in ("volts", "siemens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value!r}")

    def watts(self, power: float) -> float:
        return power * self.volts**2 * self.siemens

    def __str__(self) -> str:
        return (
            f"1 unit of activation = {self.volts:g} V, 1 unit of efficacy = {self.siemens:g} S; "
            "synapses are ohmic, a negative efficacy costs as much as a positive one; drivers, "
            "converters, leakage and the writing of synapses are not counted"
        )


class EnergyMeter:
    """Reads the power of every layer that it knows, inside any model, while the context lasts.

        with stpn.EnergyMeter(model) as meter:
            model(x)
        meter.power            # mean over time, batch and calls, summed over the watched layers
        meter.per_step         # {layer: (T,) mean over the batch}
        print(meter)           # a table: layer, kind, synapses, power, share

    It knows all cores and cells of this package, `nn.Linear`, `nn.Conv1d`, `nn.Conv2d`, `nn.RNN`,
    `nn.LSTM`, `nn.GRU` and their cells. Other modules with parameters are listed in `unknown`.
    Outputs and gradients of the models are what they are without it.

    - models: one or more modules, or a dictionary of them by name.
    - only, skip: what to watch and what not, by name ("core", "encoder.*") or type, or a list of
      these. What holds for a module holds for all inside it.
    - ignore_inputs: input channels that cost nothing, such as a reward fed back: indices, if there
      is one recurrent layer (or one layer); else a dictionary of indices by the layer's name.
    - differentiable: keep the graph, so that `loss + beta * meter.power` can be trained on; `power`
      is a tensor then. Use one context, or `reset()`, per training step.
    - batch_first: how to read (B, T, I) into `nn.Linear`; None: as the recurrent layers do.
    - device: what a unit is in volts and siemens, for `watts`.

    A call with a sequence adds to the time steps 0 to T - 1; every other call (of a cell, of
    `step`, of a layer on (B, I)) counts as one time step, after those before it. Entered again, a
    meter goes on from where it was; `reset()` makes it forget. Compiled modules ignore hooks that
    come later: measure the module that was compiled.
    """

    def __init__(
        self,
        *models: nn.Module | Mapping[str, nn.Module] | Iterable[nn.Module],
        only: Selector | Iterable[Selector] | None = None,
        skip: Selector | Iterable[Selector] | None = None,
        ignore_inputs: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        differentiable: bool = False,
        batch_first: bool | None = None,
        device: DeviceProfile | None = None,
    ) -> None:
        named = _named(models)
        found = _Found.inside(named, _Choice(only, "only"), _Choice(skip, "skip"))
        self.unknown = found.unknown
        """Modules with parameters of their own that the meter cannot read: name to type."""
        self.left_out = found.left_out
        """Layers that `only` and `skip` leave out: name to type."""
        self.differentiable = differentiable
        self.device = device
        self._layers = found.layers
        if not self._layers:
            raise ValueError(
                f"models: expected a layer to watch, found none in {', '.join(named)}"
                + (f"; unknown: {', '.join(found.unknown)}" if found.unknown else "")
                + (f"; left out: {', '.join(found.left_out)}" if found.left_out else "")
            )
        self._batch_first = found.batch_first if batch_first is None else batch_first
        self._ignored = _ignored(ignore_inputs, self._layers)
        self._hooks: ExitStack | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self._sums = {
            (layer.name, part): _Sum() for layer in self._layers for part in layer.parts()
        }

    def __enter__(self) -> EnergyMeter:
        if self._hooks is not None:
            raise RuntimeError("this meter is on already; for a nested one make another meter")
        with ExitStack() as hooks:  # so that a failure leaves nothing behind
            for layer in self._layers:
                hooks.callback(layer.watch(self._ignored.get(layer.name, ()), self._record, self))
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._hooks is not None
        hooks, self._hooks = self._hooks, None
        hooks.close()

    @property
    def power(self) -> Any:
        """Mean over time, batch and calls, summed over layers: a float, or a differentiable scalar.

        Layers that were not called add nothing.
        """
        called = [total for total in self._sums.values() if total.count]
        if not called:
            raise RuntimeError("nothing was measured: no watched layer was called inside the meter")
        power = sum(total.mean() for total in called)
        return power if isinstance(power, Tensor) and self.differentiable else float(power)

    @property
    def watts(self) -> float:
        """`power` on the device of the profile."""
        if self.device is None:
            raise ValueError("device: expected a DeviceProfile for watts, got None")
        return self.device.watts(float(self.power))

    @property
    def per_step(self) -> dict[str, Tensor]:
        """(T,) at each time step, mean over batch and calls, of each layer that was called."""
        return {name: total.per_step() for name, _, _, total in self._rows() if total.count}

    def _record(self, name: str, part: str, power: Tensor, lengths: Tensor | None) -> None:
        if not self.differentiable:
            power = power.detach()
        self._sums[name, part].add(power, lengths)

    def _rows(self) -> Iterator[tuple[str, str, int, _Sum]]:
        """Name, kind, synapses and measurements of every layer and direction."""
        for layer in self._layers:
            sizes = layer.parts()
            for part, synapses in sizes.items():
                name = f"{layer.name}.{part}" if part else layer.name
                yield name, type(layer.module).__name__, synapses, self._sums[layer.name, part]

    def __str__(self) -> str:
        rows = list(self._rows())
        total = sum(float(measured.mean()) for *_, measured in rows if measured.count)
        lines: list[tuple[str, ...]] = [("layer", "kind", "synapses", "power", "share", "watts")]
        for name, kind, synapses, measured in rows:
            power = float(measured.mean()) if measured.count else 0.0
            share = f"{power / total:.1%}" if total else "-"
            figures = (f"{power:.4g}", share) if measured.count else ("not called", "-")
            lines.append((name, kind, f"{synapses:,}", *figures, self._in_watts(power)))
        synapses = sum(count for _, _, count, _ in rows)
        lines.append(("total", "", f"{synapses:,}", f"{total:.4g}", "", self._in_watts(total)))
        text = _table(lines if self.device else [line[:-1] for line in lines])
        for title, names in (("unknown", self.unknown), ("left out", self.left_out)):
            if names:
                listed = ", ".join(f"{name} ({kind})" for name, kind in names.items())
                text += f"\n{title}: {listed}"
        for name, ignored in self._ignored.items():
            text += f"\nnot counted: inputs {', '.join(map(str, ignored))} of {name}"
        return text + (f"\ndevice: {self.device}" if self.device else "")

    def _in_watts(self, power: float) -> str:
        return f"{self.device.watts(power):.4g}" if self.device else ""

    def __repr__(self) -> str:
        return f"EnergyMeter({', '.join(layer.name for layer in self._layers)})"


class _Sum:
    """Power of one layer and direction, by time step."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # (T,) over batch and calls, of whole sequences
        self._counts = torch.zeros(0, dtype=torch.int64)  # (T,)
        self._steps: list[tuple[float | Tensor, int]] = []  # sum and count of each single step
        self._dtype = torch.get_default_dtype()

    @property
    def count(self) -> int:
        return int(self._counts.sum()) + sum(count for _, count in self._steps)

    def add(self, power: Tensor, lengths: Tensor | None) -> None:
        """power (B, T), 0 past the `lengths` (B,)."""
        batch, steps = power.shape
        self._dtype = power.dtype
        sums = power.sum(0, dtype=torch.float64)
        if steps == 1:
            total = sums.squeeze(0)
            self._steps.append((total if total.requires_grad else float(total), batch))
            return
        if lengths is None:
            counts = torch.full((steps,), batch)
        else:
            counts = (torch.arange(steps) < lengths.cpu().unsqueeze(1)).sum(0)
        self._sums = sums if self._sums is None else _added(self._sums, sums)
        self._counts = _added(self._counts, counts)

    def mean(self) -> Tensor:
        sums, counts = self._totals()
        return (sums.sum() / counts.sum()).to(self._dtype)

    def per_step(self) -> Tensor:
        sums, counts = self._totals()
        return (sums / counts).to(self._dtype)

    def _totals(self) -> tuple[Tensor, Tensor]:
        sums, counts = self._sums, self._counts
        if self._steps:
            singles = torch.stack([torch.as_tensor(s, dtype=torch.float64) for s, _ in self._steps])
            sums = singles if sums is None else _added(sums, singles)
            counts = _added(counts, torch.tensor([count for _, count in self._steps]))
        assert sums is not None
        return sums, counts.to(sums.device)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two vectors, the shorter one filled up with 0."""
    steps = max(len(a), len(b))
    a, b = (nn.functional.pad(value, (0, steps - len(value))) for value in (a, b))
    return a + b


# (layer, part, power (B, T), lengths (B,) | None)
_Record: TypeAlias = Callable[[str, str, Tensor, Tensor | None], None]


@dataclass(frozen=True)
class _Layer:
    """One watched module."""

    name: str
    module: nn.Module

    @property
    def recurrent(self) -> bool:
        return isinstance(self.module, (Recurrence, *torch_power.RECURRENT, *torch_power.CELLS))

    def parts(self) -> dict[str, int]:
        """Layers and directions inside, with their numbers of synapses; "" if it is only one."""
        module = self.module
        if isinstance(module, Recurrence):
            found = {_part(suffix): _synapses(module, suffix) for _, suffix in module._layers()}
        else:
            found = torch_power.parts(module)
        return found if len(found) > 1 else {"": sum(found.values())}

    def watch(self, ignored: tuple[int, ...], record: _Record, meter: EnergyMeter) -> Any:
        """Begin to record, and return what ends it."""
        if isinstance(self.module, Recurrence):
            return self._observe(self.module, ignored, record)
        return self._hook(ignored, record, meter)

    def _observe(self, core: Recurrence, ignored: tuple[int, ...], record: _Record) -> Any:
        single = len(self.parts()) == 1

        def observer(power: Tensor, lengths: Tensor | None, suffix: str) -> None:
            record(self.name, "" if single else _part(suffix), power, lengths)

        observers = core._power_observer
        if observers is None:
            observers = _Observers()
            core._power_observer, core._ignored_inputs = observers, ignored
        elif not isinstance(observers, _Observers):
            raise RuntimeError(f"{self.name} has a power observer that is not a meter's")
        elif tuple(core._ignored_inputs) != ignored:
            raise ValueError(
                f"ignore_inputs: expected {list(core._ignored_inputs)} for {self.name}, as in the "
                f"meter around this one, got {list(ignored)}"
            )
        observers.append(observer)

        def end() -> None:
            observers.remove(observer)
            if not observers:
                del core._power_observer, core._ignored_inputs

        return end

    def _hook(self, ignored: tuple[int, ...], record: _Record, meter: EnergyMeter) -> Any:
        rng: Tensor | None = None  # state of the random generator before the call

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal rng
            rng = torch.get_rng_state() if torch_power.needs_rng(module) else None

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = torch_power.Call(args, kwargs, output, rng)
            graph = meter.differentiable and torch.is_grad_enabled()
            with torch.set_grad_enabled(graph), _full_precision(module):
                for reading in torch_power.read(
                    module, call, ignored=ignored, batch_first=meter._batch_first
                ):
                    record(self.name, reading.part, reading.power, reading.lengths)

        hooks = (
            self.module.register_forward_pre_hook(before, with_kwargs=True),
            self.module.register_forward_hook(after, with_kwargs=True),
        )

        def end() -> None:
            for hook in hooks:
                hook.remove()

        return end


class _Observers(list[Callable[[Tensor, Tensor | None, str], None]]):
    """Several meters on one core."""

    def __call__(self, power: Tensor, lengths: Tensor | None, suffix: str) -> None:
        for observer in self:
            observer(power, lengths, suffix)


def _full_precision(module: nn.Module) -> torch.autocast:
    kind = next(module.parameters()).device.type
    return torch.autocast(kind, enabled=False)


def _part(suffix: str) -> str:
    return suffix.removeprefix("_")


def _synapses(core: Recurrence, suffix: str) -> int:
    matrices = [
        parameter.numel()
        for name, parameter in core.named_parameters()
        if name in (f"weight{suffix}", f"weight_ih{suffix}", f"weight_hh{suffix}")
    ]
    fast = core.hidden_size**2 if isinstance(core, (FastWeights, FastWeightsCell)) else 0
    return sum(matrices) + fast


class _Choice:
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
class _Found:
    """What there is to watch in some models."""

    layers: list[_Layer] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    orders: set[bool] = field(default_factory=set)  # batch_first of the recurrent layers

    @property
    def batch_first(self) -> bool:
        return self.orders != {False}

    @classmethod
    def inside(cls, models: Mapping[str, nn.Module], only: _Choice, skip: _Choice) -> _Found:
        found, seen, names = cls(), set[int](), list[str]()

        def visit(name: str, path: str, module: nn.Module, chosen: bool, dropped: bool) -> None:
            if id(module) in seen:
                return
            seen.add(id(module))
            names.append(name)
            chosen = only.includes(name, module) or chosen
            dropped = skip.includes(name, module) or dropped
            kind = type(module).__name__
            known = isinstance(module, (Recurrence, *torch_power.KNOWN))
            watched = chosen and not dropped
            if known:
                if watched:
                    found.layers.append(_Layer(name, module))
                else:
                    found.left_out[name] = kind
                if isinstance(module, (RecurrentCore, *torch_power.RECURRENT)):
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


def _named(models: tuple[Any, ...]) -> dict[str, nn.Module]:
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


def _ignored(
    inputs: Sequence[int] | Mapping[str, Sequence[int]] | None, layers: list[_Layer]
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
            module.input_size if isinstance(module, Recurrence) else torch_power.input_size(module)
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


def _table(lines: list[tuple[str, ...]]) -> str:
    """Columns of text, the first two flush left, a rule below the head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in lines:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(cells).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    text.insert(-1, text[1])
    return "\n".join(text)
