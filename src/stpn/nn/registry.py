"""Cores by name, from `stpn.cores`: any of them in the place of any other."""

from __future__ import annotations

from typing import Any

from stpn import cores
from stpn.nn import checks
from stpn.nn.core import RecurrentCore


def models() -> list[str]:
    """The names that `build` knows."""
    return cores.names()


def build(name: str, input_size: int, hidden_size: int, **options: Any) -> RecurrentCore:
    """The core of that name, with the options of its class.

    core = stpn.build("ustpnr", 37, 20, batch_first=True)
    """
    core = cores.get(name)
    for option, value in core.options.items():
        if options.get(option, value) != value:
            raise ValueError(
                f"{option}: {name!r} stands for {option}={value!r}, got {options[option]!r}"
            )
    return core.load()(input_size, hidden_size, **{**options, **core.options})


def hidden_size_for(
    model: str, *, parameters: int, input_size: int, output_size: int = 0, **options: Any
) -> int:
    """The hidden size with which `model` comes nearest to a number of trainable parameters.

    stpn.hidden_size_for("lstm", parameters=1977, input_size=37, output_size=37)    # 9

    With `output_size` the number is that of the network: the core and a linear readout with bias
    to so many outputs. The paper chose its hidden sizes so. Of two sizes equally near, the smaller.
    """
    checks.positive_int("parameters", parameters)
    if output_size:
        checks.positive_int("output_size", output_size)

    def count(hidden_size: int) -> int:
        core = build(model, input_size, hidden_size, device="meta", **options)
        readout = output_size * (hidden_size * core.num_directions + 1)
        return sum(parameter.numel() for parameter in core.parameters()) + readout

    above = 1
    while count(above) < parameters:
        above *= 2
    below = above // 2
    while above - below > 1:  # count(below) < parameters <= count(above)
        middle = (below + above) // 2
        if count(middle) < parameters:
            below = middle
        else:
            above = middle
    if below and parameters - count(below) <= count(above) - parameters:
        return below
    return above
