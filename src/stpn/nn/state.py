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


class STPNState(NamedTuple):
    """Of `STPNf`, `STPNr` and `HebbFF`."""

    h: Tensor
    """(B, H) activations of the last step."""
    f: Tensor
    """(B, H, D) short-term weights, columns: inputs, then hidden units."""

    def detach(self) -> STPNState:
        return STPNState(*(value.detach() for value in self))

    def clone(self) -> STPNState:
        return STPNState(*(value.clone() for value in self))

    def to(self, *args: Any, **kwargs: Any) -> STPNState:
        return STPNState(*(value.to(*args, **kwargs) for value in self))


class STPNlState(NamedTuple):
    """Of `STPNl`."""

    h: Tensor
    """(B, H) activations of the last step."""
    c: Tensor
    """(B, H) cell."""
    f: Tensor
    """(B, 4H, D) short-term weights, rows by gate: i, f, g, o."""

    def detach(self) -> STPNlState:
        return STPNlState(*(value.detach() for value in self))

    def clone(self) -> STPNlState:
        return STPNlState(*(value.clone() for value in self))

    def to(self, *args: Any, **kwargs: Any) -> STPNlState:
        return STPNlState(*(value.to(*args, **kwargs) for value in self))


class RNNState(NamedTuple):
    """Of `RNN` and `GRU`."""

    h: Tensor
    """(B, H)"""

    def detach(self) -> RNNState:
        return RNNState(self.h.detach())

    def clone(self) -> RNNState:
        return RNNState(self.h.clone())

    def to(self, *args: Any, **kwargs: Any) -> RNNState:
        return RNNState(self.h.to(*args, **kwargs))


class LSTMState(NamedTuple):
    """Of `LSTM`."""

    h: Tensor
    """(B, H)"""
    c: Tensor
    """(B, H)"""

    def detach(self) -> LSTMState:
        return LSTMState(*(value.detach() for value in self))

    def clone(self) -> LSTMState:
        return LSTMState(*(value.clone() for value in self))

    def to(self, *args: Any, **kwargs: Any) -> LSTMState:
        return LSTMState(*(value.to(*args, **kwargs) for value in self))


class MLPState(NamedTuple):
    """Of `MLP`, which remembers nothing."""

    def detach(self) -> MLPState:
        return self

    def clone(self) -> MLPState:
        return self

    def to(self, *args: Any, **kwargs: Any) -> MLPState:
        return self


class FastWeightsState(NamedTuple):
    """Of `FastWeights`."""

    h: Tensor
    """(B, H)"""
    a: Tensor
    """(B, H, H) fast weights."""

    def detach(self) -> FastWeightsState:
        return FastWeightsState(*(value.detach() for value in self))

    def clone(self) -> FastWeightsState:
        return FastWeightsState(*(value.clone() for value in self))

    def to(self, *args: Any, **kwargs: Any) -> FastWeightsState:
        return FastWeightsState(*(value.to(*args, **kwargs) for value in self))


class ModPlastState(NamedTuple):
    """Of `ModPlast`."""

    h: Tensor
    """(B, H)"""
    hebb: Tensor
    """(B, H, H) Hebbian trace of the recurrent synapses."""

    def detach(self) -> ModPlastState:
        return ModPlastState(*(value.detach() for value in self))

    def clone(self) -> ModPlastState:
        return ModPlastState(*(value.clone() for value in self))

    def to(self, *args: Any, **kwargs: Any) -> ModPlastState:
        return ModPlastState(*(value.to(*args, **kwargs) for value in self))


add_safe_globals(
    [STPNState, STPNlState, RNNState, LSTMState, MLPState, FastWeightsState, ModPlastState]
)

StateT = TypeVar("StateT", bound=tuple[Tensor, ...])


def rebuilt(state: StateT, values: Iterable[Tensor]) -> StateT:
    """A state of the same type with other tensors."""
    return type(state)(*values)
