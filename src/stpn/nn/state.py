"""The states of the cores: plain named tuples of tensors, one per layer and direction.

A layer takes and returns a tuple of these. They are values: nothing is kept on a module.
Shapes are for a batch; unbatched input goes without B.

`torch.save` and `torch.load` keep them, once this module has been imported, as by any core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from torch.serialization import add_safe_globals

StateT = TypeVar("StateT", bound=tuple[Tensor, ...])
TypeT = TypeVar("TypeT", bound=type)


def rebuilt(state: StateT, values: Iterable[Tensor]) -> StateT:
    """A state of the same type with other tensors."""
    return type(state)(*values)


def state(cls: TypeT) -> TypeT:
    """Make a named tuple of tensors a state, with `detach`, `clone` and `to`.

    A decorator, because a class beside `NamedTuple` would hide it from torch's own handling of
    tuples. The first field of a recurrent core is h, the activations.
    """

    def detach(self: StateT) -> StateT:
        return rebuilt(self, (value.detach() for value in self))

    def clone(self: StateT) -> StateT:
        return rebuilt(self, (value.clone() for value in self))

    def to(self: StateT, *args: Any, **kwargs: Any) -> StateT:
        return rebuilt(self, (value.to(*args, **kwargs) for value in self))

    for method in (detach, clone, to):
        setattr(cls, method.__name__, method)
    add_safe_globals([cls])
    return cls


@state
class STPNState(NamedTuple):
    """Of `STPNf`, `STPNr` and `HebbFF`."""

    h: Tensor
    """(B, H) activations of the last step."""
    f: Tensor
    """(B, H, D) short-term weights, columns: inputs, then hidden units."""


@state
class STPNlState(NamedTuple):
    """Of `STPNl`."""

    h: Tensor
    """(B, H) activations of the last step."""
    c: Tensor
    """(B, H) cell."""
    f: Tensor
    """(B, 4H, D) short-term weights, rows by gate: i, f, g, o."""


@state
class RNNState(NamedTuple):
    """Of `RNN` and `GRU`."""

    h: Tensor
    """(B, H)"""


@state
class LSTMState(NamedTuple):
    """Of `LSTM`."""

    h: Tensor
    """(B, H)"""
    c: Tensor
    """(B, H)"""


@state
class MLPState(NamedTuple):
    """Of `MLP`, which remembers nothing."""


@state
class FastWeightsState(NamedTuple):
    """Of `FastWeights`."""

    h: Tensor
    """(B, H)"""
    a: Tensor
    """(B, H, H) fast weights."""


@state
class ModPlastState(NamedTuple):
    """Of `ModPlast`."""

    h: Tensor
    """(B, H)"""
    hebb: Tensor
    """(B, H, H) Hebbian trace of the recurrent synapses."""


@state
class MemoryState(NamedTuple):
    """Of `DeltaNet`, `GatedDeltaNet`, `FastWeightProgrammer` and `GatedLinearAttention`."""

    s: Tensor
    """(B, N, V, K) memory of each head, rows: values, columns: keys."""
    window: Tensor
    """(B, L - 1, C) what the short convolution saw last."""


@state
class GradientPlasticityState(NamedTuple):
    """Of `GradientPlasticity`."""

    h: Tensor
    """(B, H)"""
    f: Tensor
    """(B, H, D) short-term weights, columns: inputs, hidden units, bias."""
    f_out: Tensor
    """(B, O, H + 1) short-term weights of the internal outputs."""


@state
class RetroactiveState(NamedTuple):
    """Of `Retroactive`."""

    h: Tensor
    """(B, H)"""
    hebb: Tensor
    """(B, H, H) Hebbian part of the recurrent synapses."""
    trace: Tensor
    """(B, H, H) eligibility: what the modulator may still take over."""
