"""`Operations`: what one time step of a layer asks of the hardware that it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operations:
    """Counts for one layer and direction, one sample and one time step.

    Synapses are the crossings of an array: `inputs` lines drive it, `outputs` sums are read off it.
    """

    cells: int
    """Synapses that are stored."""
    reads: int
    """Synapses that are read; more than `cells` if an array is used again and again."""
    inputs: int
    """Values that are put on lines: digital to analog."""
    outputs: int
    """Sums that are read out: analog to digital."""
    fan_in: int
    """Lines that one sum runs over."""
    writes: int = 0
    """Synapses whose short-term part is updated."""
    normalised: int = 0
    """Values of which a norm is taken: efficacies, or the activations of a layer norm."""
    products: int = 0
    """Products of activations by activations, which no synapse computes."""
