"""Short-Term Plasticity Neurons for PyTorch: layers, baselines, power meter, experiments.

    layer = stpn.STPNr(input_size=37, hidden_size=64, batch_first=True)
    y, state = layer(x)

Names are loaded when they are first used, so that commands which need no torch start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stpn.cores import core_options as core_options
    from stpn.cores import register_core as register_core
    from stpn.counting import flops as flops
    from stpn.energy import DeviceProfile as DeviceProfile
    from stpn.energy import EnergyMeter as EnergyMeter
    from stpn.nn import GRU as GRU
    from stpn.nn import LSTM as LSTM
    from stpn.nn import MLP as MLP
    from stpn.nn import RNN as RNN
    from stpn.nn import DeltaNet as DeltaNet
    from stpn.nn import DeltaNetCell as DeltaNetCell
    from stpn.nn import FastWeightProgrammer as FastWeightProgrammer
    from stpn.nn import FastWeightProgrammerCell as FastWeightProgrammerCell
    from stpn.nn import FastWeights as FastWeights
    from stpn.nn import FastWeightsCell as FastWeightsCell
    from stpn.nn import FastWeightsState as FastWeightsState
    from stpn.nn import GatedDeltaNet as GatedDeltaNet
    from stpn.nn import GatedDeltaNetCell as GatedDeltaNetCell
    from stpn.nn import GatedLinearAttention as GatedLinearAttention
    from stpn.nn import GatedLinearAttentionCell as GatedLinearAttentionCell
    from stpn.nn import GradientPlasticity as GradientPlasticity
    from stpn.nn import GradientPlasticityCell as GradientPlasticityCell
    from stpn.nn import GradientPlasticityState as GradientPlasticityState
    from stpn.nn import GRUCell as GRUCell
    from stpn.nn import HebbFF as HebbFF
    from stpn.nn import HebbFFCell as HebbFFCell
    from stpn.nn import LSTMCell as LSTMCell
    from stpn.nn import LSTMState as LSTMState
    from stpn.nn import MemoryState as MemoryState
    from stpn.nn import MLPCell as MLPCell
    from stpn.nn import MLPState as MLPState
    from stpn.nn import ModPlast as ModPlast
    from stpn.nn import ModPlastCell as ModPlastCell
    from stpn.nn import ModPlastState as ModPlastState
    from stpn.nn import Retroactive as Retroactive
    from stpn.nn import RetroactiveCell as RetroactiveCell
    from stpn.nn import RetroactiveState as RetroactiveState
    from stpn.nn import RNNCell as RNNCell
    from stpn.nn import RNNState as RNNState
    from stpn.nn import STPNf as STPNf
    from stpn.nn import STPNfCell as STPNfCell
    from stpn.nn import STPNl as STPNl
    from stpn.nn import STPNlCell as STPNlCell
    from stpn.nn import STPNlState as STPNlState
    from stpn.nn import STPNr as STPNr
    from stpn.nn import STPNrCell as STPNrCell
    from stpn.nn import STPNState as STPNState
    from stpn.nn.registry import build as build
    from stpn.nn.registry import hidden_size_for as hidden_size_for
    from stpn.nn.registry import models as models
    from stpn.nn.stream import Stream as Stream
    from stpn.ops.backends import Backend as Backend
    from stpn.ops.backends import backends as backends
    from stpn.ops.backends import register_backend as register_backend
    from stpn.ops.backends import use_backend as use_backend
    from stpn.plasticity import frozen_plasticity as frozen_plasticity
    from stpn.plasticity import trace as trace
    from stpn.tasks.registry import build_network as build_network
    from stpn.tasks.registry import register_task as register_task
    from stpn.training.algorithms import register_algorithm as register_algorithm
    from stpn.zoo import load as load
    from stpn.zoo import pretrained as pretrained

_HOMES = {
    "stpn.cores": ("core_options", "register_core"),
    "stpn.counting": ("flops",),
    "stpn.energy": ("DeviceProfile", "EnergyMeter"),
    "stpn.nn": (
        "DeltaNet", "DeltaNetCell", "FastWeightProgrammer", "FastWeightProgrammerCell",
        "GatedDeltaNet", "GatedDeltaNetCell", "GatedLinearAttention", "GatedLinearAttentionCell",
        "GradientPlasticity", "GradientPlasticityCell", "GradientPlasticityState", "MemoryState",
        "FastWeights", "FastWeightsCell", "FastWeightsState", "GRU", "GRUCell", "HebbFF",
        "HebbFFCell", "LSTM", "LSTMCell", "LSTMState", "MLP", "MLPCell", "MLPState",
        "ModPlast", "ModPlastCell", "ModPlastState", "Retroactive", "RetroactiveCell",
        "RetroactiveState", "RNN", "RNNCell", "RNNState",
        "STPNState", "STPNf", "STPNfCell", "STPNl", "STPNlCell", "STPNlState", "STPNr",
        "STPNrCell",
    ),
    "stpn.nn.registry": ("build", "hidden_size_for", "models"),
    "stpn.nn.stream": ("Stream",),
    "stpn.ops.backends": ("Backend", "backends", "register_backend", "use_backend"),
    "stpn.plasticity": ("frozen_plasticity", "trace"),
    "stpn.tasks.registry": ("build_network", "register_task"),
    "stpn.training.algorithms": ("register_algorithm",),
    "stpn.zoo": ("load", "pretrained"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBMODULES = (
    "analog",
    "energy",
    "exports",
    "hub",
    "nn",
    "ops",
    "results",
    "runs",
    "tasks",
    "testing",
    "training",
)

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
