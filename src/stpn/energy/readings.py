"""What a meter keeps of the readings of one layer: sums and counts by time step."""

from __future__ import annotations

import warnings
from array import array
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from stpn.nn.operations import Operations

_PENDING = 16  # calls; in a small network one more operation per call can be felt
STREAM = 65_536
"""Single steps that are kept apart; later ones count in the mean alone, so that an endless stream
needs no more memory."""


class Sum:
    """Power of one layer and direction, by time step."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # (T,) over batch and calls, of whole sequences
        self._pending: list[Tensor] = []  # (B, T) of calls not in the sums yet, all of one length
        self._batches: Counter[int] = Counter()  # steps to sequences that all have that many
        self._counts = torch.zeros(0, dtype=torch.int64)  # (T,) of sequences with lengths
        self._steps = array("d")  # sum of each single step over its batch, and the batch
        self._step_batches = array("q")
        self._graphs: dict[int, Tensor] = {}  # the sums of those steps that have gradients
        self._later, self._later_batches = 0.0, 0  # of single steps beyond STREAM
        self._dtype = torch.get_default_dtype()
        self._operations: Counter[Operations] = Counter()  # what a step asked, how often

    @property
    def called(self) -> bool:
        return bool(self._sums is not None or self._pending or self._steps)

    def add(self, power: Tensor, lengths: Tensor | None, operations: Operations) -> None:
        """power (B, T), 0 past the `lengths` (B,)."""
        batch, steps = power.shape
        self._dtype = power.dtype
        if steps == 1:
            self._operations[operations] += batch
            self._add_step(power.sum(dtype=torch.float64), batch)
            return
        if lengths is None:
            self._batches[steps] += batch
            self._operations[operations] += batch * steps
        else:
            alive = (torch.arange(steps) < lengths.cpu().unsqueeze(1)).sum(0)
            self._counts = _added(self._counts, alive)
            self._operations[operations] += int(alive.sum())
        if self._pending and self._pending[0].shape[1] != steps:
            self._settle()
        self._pending.append(power)
        if len(self._pending) == _PENDING:
            self._settle()

    def _add_step(self, total: Tensor, batch: int) -> None:
        if total.requires_grad:
            self._graphs[len(self._steps)] = total
        elif len(self._steps) >= STREAM:
            self._later += total.item()
            self._later_batches += batch
            return
        self._steps.append(0.0 if total.requires_grad else total.item())
        self._step_batches.append(batch)

    def _settle(self) -> None:
        """Add up what is pending."""
        if self._pending:
            sums = torch.cat(self._pending).sum(0, dtype=torch.float64)
            self._sums = sums if self._sums is None else _added(self._sums, sums)
            self._pending.clear()

    def mean(self) -> Tensor:
        """Over time, batch and calls: ()."""
        sums, counts = self._totals()
        total, count = sums.sum() + self._later, counts.sum() + self._later_batches
        return (total / count).to(self._dtype)

    def per_step(self) -> Tensor:
        """Over batch and calls: (T,)."""
        if self._later_batches:
            warnings.warn(f"a stream is kept by step up to step {STREAM:,}", stacklevel=2)
        sums, counts = self._totals()
        return (sums / counts).to(self._dtype)

    def operations(self) -> Iterator[tuple[Operations, float]]:
        """What a step asked of hardware, and in which share of all steps."""
        total = self._operations.total()
        return ((operations, count / total) for operations, count in self._operations.items())

    def _totals(self) -> tuple[Tensor, Tensor]:
        self._settle()
        sums, counts = self._sums, self._counts
        for steps, batch in self._batches.items():
            counts = _added(counts, torch.full((steps,), batch))
        if self._steps:
            singles = torch.tensor(self._steps, dtype=torch.float64)
            if self._graphs:
                graphs = torch.stack(list(self._graphs.values()))
                places = torch.tensor(list(self._graphs), device=graphs.device)
                singles = singles.to(graphs.device).index_add(0, places, graphs)
            sums = singles if sums is None else _added(sums, singles.to(sums.device))
            counts = _added(counts, torch.tensor(self._step_batches))
        assert sums is not None
        return sums, counts.to(sums.device)


def _added(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two vectors, the shorter one filled up with 0."""
    if len(a) == len(b):
        return a + b
    steps = max(len(a), len(b))
    a, b = (functional.pad(value, (0, steps - len(value))) for value in (a, b))
    return a + b
