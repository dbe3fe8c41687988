"""Break-even: at which write energy two networks cost the same.

    E(w) = rest + n w        rest: all terms but writing; n: synapses written in a step

so that the first, which writes more, costs less than the second below

    w* = (rest_2 - rest_1) / (n_1 - n_2)
"""

from __future__ import annotations

from dataclasses import dataclass

from stpn.energy.terms import Energy


@dataclass(frozen=True)
class Balance:
    """Of two networks on the same device."""

    first: Energy
    second: Energy
    write: float | None
    """Joules per update at which both cost the same; below it the one that writes more costs less.
    None: there is no such point, one costs less at any write energy."""
    budget: float | None
    """The same for writing and normalising a synapse together: what a synapse that is written may
    cost per step in all. None: neither writes more than the other."""


def balance(first: Energy, second: Energy) -> Balance:
    """Where the write energy decides which of two networks costs less."""
    if first.device != second.device:
        raise ValueError("balance: expected two measurements on the same device")
    share = first.device.write_share
    more = (first.writes - second.writes) * share
    if more == 0:
        return Balance(first, second, None, None)
    rests = [energy.total - energy.terms.write for energy in (first, second)]
    write = (rests[1] - rests[0]) / more
    norms = [energy.normalised * energy.device.norm for energy in (first, second)]
    budget = (rests[1] - norms[1] - rests[0] + norms[0]) / more
    return Balance(first, second, write if write > 0 else None, budget)
