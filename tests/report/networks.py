"""Small networks with every option that the page's viewer claims to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stpn.energy import EnergyMeter
from stpn.nn.core import RecurrentCore
from stpn.nn.fast_weights import FastWeights
from stpn.nn.hebbff import HebbFF
from stpn.nn.modulated import ModPlast
from stpn.nn.stpn import STPNf, STPNl, STPNr
from stpn.nn.torch_cores import LSTM, MLP, RNN
from stpn.plasticity import trace
from stpn.report.network import export
from stpn.tasks import art
from stpn.training.supervised import SequenceModel

OPTIONS: dict[str, tuple[type[RecurrentCore], dict[str, Any]]] = {
    "stpnr": (STPNr, {}),
    "stpnf": (STPNf, {}),
    "stpnl": (STPNl, {}),
    "uniform": (STPNr, {"stp": "uniform"}),
    "neuron": (STPNf, {"stp": "neuron"}),
    "input": (STPNr, {"plastic": "input"}),
    "hidden": (STPNr, {"plastic": "hidden", "stp": "neuron"}),
    "post": (STPNr, {"norm": "post", "clamp": 0.3}),
    "no norm": (STPNf, {"norm": None, "clamp": 0.1}),
    "whole layer": (STPNr, {"norm_over": "layer"}),
    "whole layer after": (STPNl, {"norm": "post", "norm_over": "layer"}),
    "scaled": (STPNr, {"norm_scale": True}),
    "oja": (STPNr, {"rule": "oja"}),
    "oja without norm": (STPNf, {"rule": "oja", "norm": None, "clamp": 0.5}),
    "new h": (STPNr, {"associate": "new"}),
    "new h, gates": (STPNl, {"associate": "new", "decay": "after", "rule": "oja"}),
    "f alone": (STPNr, {"norm": "f", "clamp": 0.4}),
    "f of the layer": (STPNf, {"norm": "f", "norm_over": "layer"}),
    "standardised": (STPNr, {"layer_norm": True}),
    "standardised gates": (STPNl, {"layer_norm": True, "bias": False}),
    "sigmoid": (STPNr, {"nonlinearity": "sigmoid"}),
    "relu": (STPNr, {"nonlinearity": "relu"}),
    "without bias": (STPNl, {"bias": False}),
    "three layers": (STPNr, {"num_layers": 3}),
    "two gated layers": (STPNl, {"num_layers": 2}),
    "hebbff": (HebbFF, {}),
    "clipped hebbff": (HebbFF, {"constraint": "clipped"}),
    "rnn": (RNN, {"nonlinearity": "relu", "num_layers": 2}),
    "lstm": (LSTM, {}),
    "normalised lstm": (LSTM, {"normalize": True}),
    "mlp": (MLP, {}),
    "modplast": (ModPlast, {}),
    "plastic": (ModPlast, {"modulated": False, "bias": False, "num_layers": 2}),
    "fastweights": (FastWeights, {}),
    "fast turns": (FastWeights, {"steps": 3, "decay": 0.7, "rate": 0.2, "num_layers": 2}),
}


class Network(SequenceModel):
    """A network in double precision, but with weights that float32 can hold."""

    def __init__(self, name: str, hidden_size: int = 6) -> None:
        kind, options = OPTIONS[name]
        torch.manual_seed(sum(map(ord, name)))
        core = kind(art.NUM_SYMBOLS, hidden_size, batch_first=True, **options)
        super().__init__(core, art.NUM_SYMBOLS, last_only=True)
        with torch.no_grad():
            for parameter_name, parameter in self.named_parameters():
                if "gamma" in parameter_name:
                    parameter.uniform_(-1, 1)  # at their start synapses hardly move
                if parameter_name.startswith(("core.alpha", "core.eta")):
                    parameter.uniform_(-1, 1)
                if "norm_scale" in parameter_name or "ln_weight" in parameter_name:
                    parameter.uniform_(0.5, 2)
            self.readout.weight.mul_(5)
        self.double()

    def read(self, texts: list[str]) -> dict[str, Any]:
        """What the page must find when it reads these sequences, all of the same length."""
        x = art.one_hot(torch.stack([art.encode(text) for text in texts]), torch.float64)
        with torch.no_grad(), EnergyMeter(self.core) as meter:
            y, _ = self.core(x)  # (B, T, H)
        with torch.no_grad():
            probabilities = self.readout(y).softmax(-1)  # (B, T, 37)
        return {
            "h": y.tolist(),
            "power": sum(meter.per_step.values()).tolist(),  # (T,) mean over the sequences
            "probabilities": probabilities.tolist(),
            "answers": [art.decode(row) for row in probabilities.argmax(-1)],
        }

    def efficacies(self, text: str) -> list[np.ndarray]:
        """G of every layer at every step, (T, R, D) each."""
        if isinstance(self.core, RNN | LSTM | MLP):
            return [self._constant(suffix, len(text)) for _, suffix in self.core.layers]
        if isinstance(self.core, FastWeights):
            return self._slow_and_fast(text)
        traced = trace(self.core, art.one_hot(art.encode(text), torch.float64))
        return [layer.g.numpy() for layer in traced.layers]

    def _slow_and_fast(self, text: str) -> list[np.ndarray]:
        """Slow synapses and, beside them, the fast ones that each step used."""
        x = art.one_hot(art.encode(text), torch.float64)
        weights = [getattr(self.core, f"weight{suffix}") for _, suffix in self.core.layers]
        with torch.no_grad():
            states = [self.core(x[: t + 1])[1] for t in range(len(text))]
        return [
            np.stack([torch.cat([weight, state[k].a], dim=1).detach() for state in states])
            for k, weight in enumerate(weights)
        ]

    def _constant(self, suffix: str, steps: int) -> np.ndarray:
        operands = self.core.operands(self.core.layer_parameters(suffix))
        weights = operands[:1] if isinstance(self.core, MLP) else operands[:2]
        return torch.cat(weights, dim=1).detach().expand(steps, -1, -1).numpy()

    def exported(self, name: str) -> dict[str, Any]:
        return {"name": name, "about": f"Test network {name}.", **export(self)}
