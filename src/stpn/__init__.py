"""Short-Term Plasticity Neurons for PyTorch: layers, rivals, power meter, experiments.

    layer = stpn.STPNr(input_size=37, hidden_size=64, batch_first=True)
    y, state = layer(x)

Names are loaded when they are first used, so that commands which need no torch start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stpn.energy import DeviceProfile as DeviceProfile
    from stpn.energy import EnergyMeter as EnergyMeter
    from stpn.nn.fast_weights import FastWeights as FastWeights
    from stpn.nn.fast_weights import FastWeightsCell as FastWeightsCell
    from stpn.nn.hebbff import HebbFF as HebbFF
    from stpn.nn.hebbff import HebbFFCell as HebbFFCell
    from stpn.nn.modulated import ModPlast as ModPlast
    from stpn.nn.modulated import ModPlastCell as ModPlastCell
    from stpn.nn.registry import build as build
    from stpn.nn.registry import hidden_size_for as hidden_size_for
    from stpn.nn.registry import models as models
    from stpn.nn.state import FastWeightsState as FastWeightsState
    from stpn.nn.state import LSTMState as LSTMState
    from stpn.nn.state import MLPState as MLPState
    from stpn.nn.state import ModPlastState as ModPlastState
    from stpn.nn.state import RNNState as RNNState
    from stpn.nn.state import STPNlState as STPNlState
    from stpn.nn.state import STPNState as STPNState
    from stpn.nn.stpn import STPNf as STPNf
    from stpn.nn.stpn import STPNfCell as STPNfCell
    from stpn.nn.stpn import STPNl as STPNl
    from stpn.nn.stpn import STPNlCell as STPNlCell
    from stpn.nn.stpn import STPNr as STPNr
    from stpn.nn.stpn import STPNrCell as STPNrCell
    from stpn.nn.torch_cores import GRU as GRU
    from stpn.nn.torch_cores import LSTM as LSTM
    from stpn.nn.torch_cores import MLP as MLP
    from stpn.nn.torch_cores import RNN as RNN
    from stpn.nn.torch_cores import GRUCell as GRUCell
    from stpn.nn.torch_cores import LSTMCell as LSTMCell
    from stpn.nn.torch_cores import MLPCell as MLPCell
    from stpn.nn.torch_cores import RNNCell as RNNCell
    from stpn.ops.backends import Backend as Backend
    from stpn.ops.backends import backends as backends
    from stpn.ops.backends import use_backend as use_backend
    from stpn.plasticity import frozen_plasticity as frozen_plasticity
    from stpn.plasticity import trace as trace
    from stpn.tasks.registry import build_network as build_network
    from stpn.tasks.registry import register_task as register_task
    from stpn.zoo import load as load
    from stpn.zoo import pretrained as pretrained

_HOMES = {
    "stpn.energy": ("DeviceProfile", "EnergyMeter"),
    "stpn.nn.fast_weights": ("FastWeights", "FastWeightsCell"),
    "stpn.nn.hebbff": ("HebbFF", "HebbFFCell"),
    "stpn.nn.modulated": ("ModPlast", "ModPlastCell"),
    "stpn.nn.torch_cores": (
        "GRU", "LSTM", "MLP", "RNN", "GRUCell", "LSTMCell", "MLPCell", "RNNCell",
    ),
    "stpn.nn.registry": ("build", "hidden_size_for", "models"),
    "stpn.nn.state": (
        "FastWeightsState", "LSTMState", "MLPState", "ModPlastState", "RNNState", "STPNlState",
        "STPNState",
    ),
    "stpn.nn.stpn": ("STPNf", "STPNfCell", "STPNl", "STPNlCell", "STPNr", "STPNrCell"),
    "stpn.ops.backends": ("Backend", "backends", "use_backend"),
    "stpn.plasticity": ("frozen_plasticity", "trace"),
    "stpn.tasks.registry": ("build_network", "register_task"),
    "stpn.zoo": ("load", "pretrained"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBMODULES = ("energy", "nn", "ops", "results", "runs", "tasks", "training")

__all__ = ["__version__", *_HOME_OF, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"stpn.{name}")
    else:
        raise AttributeError(f"module 'stpn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
