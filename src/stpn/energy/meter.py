"""`EnergyMeter`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from stpn.energy.calls import Reading
from stpn.energy.device import DeviceProfile
from stpn.energy.readings import Sum
from stpn.energy.selection import Choice, Found, Selector, ignored_inputs, named
from stpn.energy.tables import table
from stpn.energy.terms import Energy, Terms, terms_of


class EnergyMeter:
    """Reads the power of every layer that it knows, inside any model, while the context lasts.

        with stpn.EnergyMeter(model) as meter:
            model(x)
        meter.power            # mean over time, batch and calls, summed over the watched layers
        meter.per_step         # {layer: (T,) mean over the batch}
        print(meter)           # a table: layer, kind, synapses, power, share

    It knows all cores and cells of this package, `nn.Linear`, `nn.Embedding`, PyTorch's
    convolutions (transposed too), `nn.RNN`, `nn.LSTM`, `nn.GRU` and their cells, and the
    projections of `nn.MultiheadAttention`, whose other products have no synapses. What it does not
    know, such as a norm, or weights that a module multiplies by itself, and layers that were not
    called are in `unmeasured`; `power` warns of them once. `only` and `skip` say what is meant to
    be left out. Outputs and gradients of the models are what they are without it.

    - models: one or more modules, or a dictionary of them by name.
    - only, skip: what to watch and what not, by name ("core", "encoder.*") or type, or a list of
      these. What holds for a module holds for all inside it.
    - ignore_inputs: input channels that cost nothing, such as a reward fed back: indices, if there
      is one recurrent layer (or one layer); else a dictionary of indices by the layer's name.
    - differentiable: keep the graph, so that `loss + beta * meter.power` can be trained on; `power`
      is a tensor then. Use one context, or `reset()`, per training step.
    - batch_first: how to read (B, T, I) into `nn.Linear`; None: as the recurrent layers and
      attention do.
    - device: what a unit is in volts and siemens, for `watts`, and what else a device costs, for
      `energy`.

    A call with a sequence adds to the time steps 0 to T - 1; every other call (of a cell, of
    `step`, of a layer on (B, I)) counts as one time step, after those before it. `per_step` keeps
    the first 65,536 of these; the mean has all, so a stream may be endless. Entered again, a meter
    goes on from where it was; `reset()` makes it forget. Compiled modules ignore hooks that come
    later: measure the module that was compiled.
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
        if device is not None and not isinstance(device, DeviceProfile):
            raise TypeError(
                "device: expected a stpn.DeviceProfile(volts, siemens), which says what a unit is "
                f"in hardware, got {device!r}"
            )
        by_name = named(models)
        found = Found.inside(by_name, Choice(only, "only"), Choice(skip, "skip"))
        self.unknown = found.unknown
        """Modules with parameters of their own that the meter cannot read: name to type."""
        self.left_out = found.left_out
        """Layers that `only` and `skip` leave out: name to type."""
        self.differentiable = differentiable
        self.device = device
        self._layers = found.layers
        if not self._layers:
            raise ValueError(
                f"models: expected a layer to watch, found none in {', '.join(by_name)}"
                + (f"; unknown: {', '.join(found.unknown)}" if found.unknown else "")
                + (f"; left out: {', '.join(found.left_out)}" if found.left_out else "")
            )
        self._batch_first = found.batch_first if batch_first is None else batch_first
        self._ignored = ignored_inputs(ignore_inputs, self._layers)
        self._hooks: ExitStack | None = None
        self._warned = False
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self._sums = {(layer.name, part): Sum() for layer in self._layers for part in layer.parts()}

    def __enter__(self) -> EnergyMeter:
        if self._hooks is not None:
            raise RuntimeError("this meter is on already; for a nested one make another meter")
        with ExitStack() as hooks:  # so that a failure leaves nothing behind
            for layer in self._layers:
                end = layer.watch(
                    self._record,
                    ignored=self._ignored.get(layer.name, ()),
                    keeps_graph=lambda: self.differentiable,
                    batch_first=self._batch_first,
                )
                hooks.callback(end)
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._hooks is not None
        hooks, self._hooks = self._hooks, None
        hooks.close()

    @property
    def power(self) -> Any:
        """Mean over time, batch and calls, summed over layers: a float, or a differentiable scalar.

        It is that of the layers that were measured: if there are others, it warns, once.
        """
        called = [total for total in self._sums.values() if total.called]
        if not called:
            raise RuntimeError("nothing was measured: no watched layer was called inside the meter")
        if not self._warned and self.unmeasured:
            self._warned = True
            missing = ", ".join(f"{name} ({why})" for name, why in self.unmeasured.items())
            warnings.warn(
                f"power without what was not measured: {missing}; leave it out by `skip` or `only` "
                "if that is meant",
                stacklevel=2,
            )
        power = torch.stack([total.mean() for total in called]).sum()
        return power if self.differentiable else power.item()

    @property
    def unmeasured(self) -> dict[str, str]:
        """What has parameters and is not in `power`: name to type, and why if the type is known."""
        called = {name for (name, _), total in self._sums.items() if total.called}
        return self.unknown | {
            layer.name: f"{type(layer.module).__name__}, not called"
            for layer in self._layers
            if layer.name not in called
        }

    @property
    def watts(self) -> float:
        """`power` on the device of the profile."""
        if self.device is None:
            raise ValueError("device: expected a DeviceProfile for watts, got None")
        power = self.power
        return self.device.watts(power.item() if isinstance(power, Tensor) else power)

    @property
    def per_step(self) -> dict[str, Tensor]:
        """(T,) at each time step, mean over batch and calls, of each layer that was called."""
        return {name: total.per_step() for name, _, _, total in self._rows() if total.called}

    def energy(self, device: DeviceProfile | None = None) -> Energy:
        """Joules per time step by term: array, dac, adc, write, digital, leakage.

            print(meter.energy(stpn.energy.profile("pcm")))

        `device` is the meter's own by default. What was not measured is missing here as it is in
        `power`, which warns.
        """
        device = device or self.device
        if not isinstance(device, DeviceProfile):
            raise TypeError(
                "device: expected a stpn.DeviceProfile, such as stpn.energy.profile('pcm'), got "
                f"{device!r}"
            )
        _ = self.power  # says what is missing
        layers, writes, normalised = {}, 0.0, 0.0
        for name, _, _, measured in self._rows():
            if not measured.called:
                continue
            terms = Terms(array=device.array(measured.mean().item()))
            for operations, share in measured.operations():
                terms += terms_of(operations, device) * share
                writes += operations.writes * share
                normalised += operations.normalised * share
            layers[name] = terms
        return Energy(device, layers, writes, normalised)

    def _record(self, name: str, reading: Reading) -> None:
        power = reading.power if self.differentiable else reading.power.detach()
        self._sums[name, reading.part].add(power, reading.lengths, reading.operations)

    def _rows(self) -> Iterator[tuple[str, str, int, Sum]]:
        """Name, kind, synapses and measurements of every layer and direction."""
        for layer in self._layers:
            sizes = layer.parts()
            for part, synapses in sizes.items():
                name = f"{layer.name}.{part}" if part else layer.name
                yield name, type(layer.module).__name__, synapses, self._sums[layer.name, part]

    def __str__(self) -> str:
        rows = list(self._rows())
        powers = [measured.mean().item() if measured.called else 0.0 for *_, measured in rows]
        total = sum(powers)
        lines: list[tuple[str, ...]] = [("layer", "kind", "synapses", "power", "share", "watts")]
        for (name, kind, synapses, measured), power in zip(rows, powers, strict=True):
            share = f"{power / total:.1%}" if total else "-"
            numbers = (f"{power:.4g}", share) if measured.called else ("not called", "-")
            watts = self._in_watts(power) if measured.called else ""
            lines.append((name, kind, f"{synapses:,}", *numbers, watts))
        all_of_them = f"{sum(count for _, _, count, _ in rows):,}"
        if any(measured.called for *_, measured in rows):
            lines.append(("total", "", all_of_them, f"{total:.4g}", "", self._in_watts(total)))
        else:
            lines.append(("total", "", all_of_them, "not measured", "", ""))
        notes = [table(lines if self.device else [line[:-1] for line in lines])]
        for title, kinds in (("not measured, unknown", self.unknown), ("left out", self.left_out)):
            if kinds:
                listed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
                notes.append(f"{title}: {listed}")
        attention = [n.name for n in self._layers if isinstance(n.module, nn.MultiheadAttention)]
        if attention:
            listed = ", ".join(attention)
            notes.append(f"no synapses: query by key and weights by value in {listed}")
        for name, ignored in self._ignored.items():
            notes.append(f"not counted: inputs {', '.join(map(str, ignored))} of {name}")
        if self.device:
            notes.append(f"device: {self.device}")
        return "\n".join(notes)

    def _in_watts(self, power: float) -> str:
        return f"{self.device.watts(power):.4g}" if self.device else ""

    def __repr__(self) -> str:
        return f"EnergyMeter({', '.join(layer.name for layer in self._layers)})"
