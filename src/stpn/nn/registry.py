"""Recurrent cores by name: any model of the paper's comparison in the place of any other."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from stpn.nn import checks
from stpn.nn.core import RecurrentCore
from stpn.nn.fast_weights import FastWeights
from stpn.nn.hebbff import HebbFF
from stpn.nn.modulated import ModPlast
from stpn.nn.stpn import STPNf, STPNl, STPNr
from stpn.nn.torch_cores import GRU, LSTM, MLP, RNN


@dataclass(frozen=True)
class _Model:
    core: type[RecurrentCore]
    options: dict[str, Any] = field(default_factory=dict)
    """What the name stands for beside the class; cannot be given again."""


_MODELS = {
    "stpnr": _Model(STPNr),
    "stpnf": _Model(STPNf),
    "stpnl": _Model(STPNl),
    "ustpnr": _Model(STPNr, {"stp": "uniform"}),
    "ustpnf": _Model(STPNf, {"stp": "uniform"}),
    "rnn": _Model(RNN),
    "lstm": _Model(LSTM),
    "gru": _Model(GRU),
    "mlp": _Model(MLP),
    "fastweights": _Model(FastWeights),
    "modplast": _Model(ModPlast, {"modulated": True}),
    "plastic": _Model(ModPlast, {"modulated": False}),
    "hebbff": _Model(HebbFF),
}


def models() -> list[str]:
    """The names that `build` knows."""
    return list(_MODELS)


def build(name: str, input_size: int, hidden_size: int, **options: Any) -> RecurrentCore:
    """The core of that name, with the options of its class.

    core = stpn.build("ustpnr", 37, 20, batch_first=True)
    """
    model = _model(name)
    for option, value in model.options.items():
        if options.get(option, value) != value:
            raise ValueError(
                f"{option}: {name!r} stands for {option}={value!r}, got {options[option]!r}"
            )
    return model.core(input_size, hidden_size, **{**options, **model.options})


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


def _model(name: object) -> _Model:
    if isinstance(name, str) and name in _MODELS:
        return _MODELS[name]
    known = ", ".join(_MODELS)
    if not isinstance(name, str):
        raise TypeError(f"model: expected one of {known}, got {type(name).__name__}")
    near = difflib.get_close_matches(name.lower(), _MODELS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"model: expected one of {known}, got {name!r}.{hint}")
