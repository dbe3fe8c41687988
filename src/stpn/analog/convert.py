"""`convert`: a network on devices."""

from __future__ import annotations

import copy
import hashlib
import math
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from stpn import nn as own
from stpn.analog import cores, layers, lines
from stpn.analog.cells import Cells
from stpn.energy import DeviceProfile
from stpn.nn.base import Recurrence

Module = TypeVar("Module", bound=nn.Module)

# A family of cores: its classes, what only changes parameters, and its plain step.
_FAMILIES: tuple[tuple[tuple[type[Any], ...], type[cores.Analog], type[cores.Analog]], ...] = (
    ((own.STPNr, own.STPNrCell), cores.AnalogSynapses, cores.NeuronStep),
    ((own.STPNf, own.STPNfCell), cores.AnalogSynapses, cores.NeuronStep),
    ((own.STPNl, own.STPNlCell), cores.AnalogSynapses, cores.GatedStep),
    ((own.HebbFF, own.HebbFFCell), cores.AnalogSynapses, cores.HebbFFStep),
    ((own.ModPlast, own.ModPlastCell), cores.Analog, cores.ModPlastStep),
    ((own.FastWeights, own.FastWeightsCell), cores.Analog, cores.FastWeightsStep),
    ((own.RNN, own.RNNCell), cores.Analog, cores.RNNStep),
    ((own.LSTM, own.LSTMCell), cores.Analog, cores.LSTMStep),
    ((own.GRU, own.GRUCell), cores.Analog, cores.GRUStep),
    ((own.MLP, own.MLPCell), cores.Analog, cores.MLPStep),
)
_OTHERS = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Embedding)


def convert(
    model: Module,
    profile: DeviceProfile,
    seed: int = 0,
    *,
    time: float = 0.0,
    inplace: bool = False,
) -> Module:
    """The same network on devices of this profile, drawn by `seed`, `time` seconds after W was
    programmed.

    All cores of the package, linear layers and convolutions are converted; norms and biases are
    digital and stay exact. A copy, unless `inplace`, in which parameters stay the objects that
    they are (an optimizer goes on). One that is converted already gets new devices.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch module, got {type(model).__name__}")
    if not isinstance(profile, DeviceProfile):
        raise TypeError(
            "profile: expected a stpn.DeviceProfile, such as stpn.energy.profile('pcm'), got "
            f"{profile!r}"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed: expected a whole number, got {seed!r}")
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(f"time: expected seconds, got {time!r}")
    if not 0 <= time < math.inf:
        raise ValueError(f"time: expected seconds since W was programmed, got {time!r}")
    model = model if inplace else copy.deepcopy(model)
    found = list(_layers(model, ""))
    if not found:
        raise ValueError(
            f"model: expected a core of this package, nn.Linear or a convolution to put on "
            f"devices, found none in {type(model).__name__}"
        )
    for name, module in found:
        generator = _stream(seed, name)
        if isinstance(module, Recurrence):
            core: Any = module
            kinds: tuple[Any, Any] = (_plain(type(module)), _family(module, profile))
            core.__class__ = _core(*kinds)
            core.set_up(profile, generator, float(time))
        else:
            kind = next(base for base in layers.ANALOG if isinstance(module, base))
            module.__class__ = layers.ANALOG[kind]
            layer: Any = module
            weight = layer.weight
            shape = (weight.shape[0], weight[0].numel())
            layer.profile = profile
            layer.cells = Cells(profile, shape, generator, float(time)).to(weight.device)
        module.train(module.training)  # what is new inside follows
    return model


def _layers(module: nn.Module, name: str) -> Any:
    """Name and module of each layer to convert."""
    if isinstance(module, Recurrence):
        yield name, module
        return
    if isinstance(module, tuple(layers.ANALOG)):
        if type(module) not in (*layers.ANALOG, *layers.ANALOG.values()):
            raise ValueError(
                f"model: {name or type(module).__name__} is a {type(module).__name__}, whose own "
                f"rule would be lost; expected a plain layer"
            )
        yield name, module
        return
    if isinstance(module, _OTHERS):
        raise ValueError(
            f"model: {name or 'it'} is a {type(module).__name__}, which has no form on devices "
            "here; use the core of this package (stpn.LSTM, stpn.GRU, stpn.RNN have the same "
            "parameters)"
        )
    for weight, parameter in module.named_parameters(recurse=False):
        if parameter.dim() > 1:
            raise ValueError(
                f"model: {name or 'it'} is a {type(module).__name__} whose {weight} would stay as "
                "it is, as if on perfect devices; expected all weights in cores of this package, "
                "nn.Linear or convolutions"
            )
    for child, inner in module.named_children():
        yield from _layers(inner, f"{name}.{child}" if name else child)


_UNKNOWN = ("normalize", "layer_norm", "plastic_bias")  # options that the steps here do not have


def _family(module: Recurrence, profile: DeviceProfile) -> type[cores.Analog]:
    plain = _plain(type(module))
    for option, value in module.configuration.items():
        if (option in _UNKNOWN and value) or (option, value) == ("norm", "f"):
            raise ValueError(
                f"model: {plain.__name__} with {option}={value!r} has no form on devices"
            )
    for (base, cell), parameters, step in _FAMILIES:
        if issubclass(plain, (base, cell)):
            if plain.run is not base.run or plain.run_in_place is not base.run_in_place:
                break
            stepwise = lines.in_step(profile, rates=step.rates_in_step)
            return step if stepwise else parameters
    raise ValueError(
        f"model: {plain.__name__} has no form on devices: it is not one of the package's cores, or "
        "changes the rule of one"
    )


def _plain(kind: type[Any]) -> type[Any]:
    """The class before conversion."""
    return getattr(kind, "_converted_from", kind)


@cache
def _core(plain: type[Any], family: type[cores.Analog]) -> type[Any]:
    """One class for each core and family, so that converted cores compare as others do."""
    return type(f"Analog{plain.__name__}", (family, plain), {"_converted_from": plain})


def _stream(seed: int, name: str) -> torch.Generator:
    """The draws of a layer depend on the seed and its name alone."""
    digest = hashlib.sha256(f"{seed}/devices/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
