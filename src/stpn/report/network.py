"""A trained network as JSON, so that a page in the browser can run it.

The page's code (`assets/network.js`) knows three recurrences: rows of plastic synapses with or
without the gates of an LSTM, modulated plasticity, and fast weights. The first one covers all STPNs
with all their options but `plastic_bias`, HebbFF (no norm, one lambda and one gamma), and RNN, LSTM
and MLP without layer norm, whose synapses never change. Other cores are named with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stpn.errors import StpnError
from stpn.report.grid import Grid, run_reach
from stpn.report.style import model_rank, model_style
from stpn.report.verdicts import percent
from stpn.results import RunResult, kept_run

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stpn.nn.core import RecurrentCore
    from stpn.nn.fast_weights import FastWeights
    from stpn.nn.modulated import ModPlast
    from stpn.ops.reference import STPNOptions
    from stpn.training.supervised import SequenceModel
    from stpn.zoo import Card, Shelf

TASK = "art"


class NotShown(StpnError):
    """A network that the page cannot run."""


@dataclass(frozen=True)
class Found:
    """A trained network and where it comes from."""

    name: str
    about: str
    network: SequenceModel


def find(grid: Grid, shelf: Shelf | None = None) -> tuple[dict[str, Found], dict[str, str]]:
    """For each model of ART its best network, and for the others the reason why there is none.

    A model without a checkpoint is stood in for by the network of `shelf`, if it is there.
    """
    cards = {card.model: card for card in (shelf.cards() if shelf else ()) if card.task == TASK}
    found, reasons = {}, {}
    for model in sorted({*grid.models(TASK), *cards}, key=model_rank):
        used = grid.group(TASK, model).used
        saved = [run for run in used if kept_run(run.path).checkpoint.is_file()]
        try:
            if saved:
                best = max(saved, key=lambda run: run.summary.proficiency or 0.0)
                found[model] = _restore(best, grid.name(best))
            elif shelf is not None and model in cards:
                found[model] = _take(shelf, cards[model])
            else:
                reasons[model] = "no checkpoint beside its results"
        except StpnError as error:
            reasons[model] = str(error)
    return found, reasons


def networks(
    found: Mapping[str, Found], reasons: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the page can run, and a sentence for each model that it cannot."""
    exported, left_out = [], dict(reasons)
    for model, source in found.items():
        try:
            exported.append({"name": source.name, "about": source.about, **export(source.network)})
        except NotShown as error:
            left_out[model] = str(error)
    return exported, [f"{model_style(model).name}: {why}" for model, why in left_out.items()]


def _restore(run: RunResult, name: str) -> Found:
    from stpn.zoo import load

    network: Any = load(kept_run(run.path).path)
    accuracy = run.summary.proficiency
    reach = run_reach(run)
    about = f"Run {name}: {network.core.hidden_size} hidden units"
    about += "" if accuracy is None else f", accuracy {accuracy:.2f}%"
    about += "" if reach >= 1 else f", trained for {percent(reach)} of the paper's length"
    return Found(f"{model_style(run.model).name}, seed {run.seed}", f"{about}.", network)


def _take(shelf: Shelf, card: Card) -> Found:
    network: Any = shelf(card.name)
    about = (
        f"{card.name} of the package: seed {card.seed}, {card.hidden_size} hidden units, "
        f"accuracy {card.proficiency:.2f}%."
    )
    return Found(f"{model_style(card.model).name}, from the package", about, network)


def export(model: SequenceModel) -> dict[str, Any]:
    """A network as the page reads it."""
    from stpn.tasks.art import ALPHABET

    return {"symbols": ALPHABET, **export_core(model.core, model.readout)}


def export_core(core: RecurrentCore, readout: nn.Linear) -> dict[str, Any]:
    """A core and what reads it out, for `Network.load` and `Network.advance` in a browser."""
    from stpn.nn.stpn import Plasticity

    unknown = "plastic_bias" if isinstance(core, Plasticity) else "layer_norm"
    if core.configuration.get(unknown):
        raise NotShown(f"the page cannot run {type(core).__name__} with {unknown}=True")
    if core.bidirectional:
        raise NotShown("it reads the sequence from both ends, so it has no steps to show")
    return {
        "layers": [_layer(core, size, suffix) for size, suffix in core.layers],
        "readout": {"weight": _base64(readout.weight), "bias": _base64(readout.bias)},
    }


def _layer(core: RecurrentCore, input_size: int, suffix: str) -> dict[str, Any]:
    from stpn.nn.fast_weights import FastWeights
    from stpn.nn.modulated import ModPlast

    if isinstance(core, ModPlast):
        layer = _modulated(core, suffix)
    elif isinstance(core, FastWeights):
        layer = _fast(core, suffix)
    else:
        layer = _plastic(core, suffix)
    return {"input_size": input_size, "hidden_size": core.hidden_size, **layer}


def _plastic(core: RecurrentCore, suffix: str) -> dict[str, Any]:
    """One layer; lambda and gamma (R, D), zero at synapses that are not plastic."""
    weight, bias, lambda_, gamma, options = _synapses(core, suffix)
    p = core.layer_parameters(suffix)
    return {
        "kind": "stpn",
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "recurrent": options.recurrent,
        "gated": weight.shape[0] == 4 * core.hidden_size,
        "norm": options.norm,
        "norm_over": options.norm_over,
        "clamp": options.clamp,
        "rule": options.rule,
        "associate": options.associate,
        "nonlinearity": options.nonlinearity,
        "weight": _base64(weight),
        "bias": _base64(bias),
        "lambda": _base64(lambda_.expand_as(weight)),
        "gamma": _base64(gamma.expand_as(weight)),
        "norm_scale": _base64(p.get("norm_scale")),
        "layer_norm": _base64(p.get("ln_weight")),
    }


def _modulated(core: ModPlast, suffix: str) -> dict[str, Any]:
    """Synapses (H, I+H), of which the recurrent ones are plastic to the degree of alpha (H, H)."""
    import torch

    p = core.layer_parameters(suffix)
    weight = torch.cat(core.weights(p), dim=1)
    rate, offset = p["eta"], p["modulator_bias"]
    return {
        "kind": "modplast",
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "weight": _base64(weight),
        "bias": _base64(p["bias"]),
        "alpha": _base64(p["alpha"]),
        "modulator": _base64(p["modulator_weight"]),
        "modulator_bias": None if offset is None else offset.item(),
        "eta": None if rate is None else rate.item(),
    }


def _fast(core: FastWeights, suffix: str) -> dict[str, Any]:
    """Slow synapses (H, I+H), and beside them columns for the fast ones (H, H)."""
    p = core.layer_parameters(suffix)
    weight = core.slow_weight(p)
    return {
        "kind": "fastweights",
        "rows": weight.shape[0],
        "columns": weight.shape[1] + core.hidden_size,
        "weight": _base64(weight),
        "bias": _base64(p["bias"]),
        "ln_weight": _base64(p["ln_weight"]),
        "ln_bias": _base64(p["ln_bias"]),
        "decay": core.decay,
        "rate": core.rate,
        "steps": core.steps,
        "eps": core.eps,
    }


def _synapses(
    core: RecurrentCore, suffix: str
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, STPNOptions]:
    """weight, bias, lambda, gamma and options, as an STPN has them."""
    import torch

    from stpn.nn.hebbff import HebbFF
    from stpn.nn.stpn import STPNf, STPNl, STPNr
    from stpn.nn.torch_cores import LSTM, MLP, RNN
    from stpn.ops.reference import STPNOptions

    p = core.layer_parameters(suffix)
    if isinstance(core, STPNf | STPNr | STPNl | HebbFF):
        return (*core.operands(p), core.stpn_options)
    if isinstance(core, MLP):
        weight, bias = core.operands(p)
        options = STPNOptions(recurrent=False, norm=None)
    elif isinstance(core, RNN | LSTM):
        weight_ih, weight_hh, *biases = core.operands(p)
        weight, bias = torch.cat([weight_ih, weight_hh], dim=1), None
        if biases:
            bias = biases[0] + biases[1]
        options = STPNOptions(recurrent=True, norm=None)
        if isinstance(core, RNN):
            options = replace(options, nonlinearity=core.nonlinearity)
    else:
        raise NotShown(f"the page cannot run {type(core).__name__}")
    constant = weight.new_zeros(1, 1)
    return weight, bias, constant, constant, options


def _base64(tensor: Tensor | None) -> str | None:
    """Little-endian float32, row by row."""
    if tensor is None:
        return None
    array = tensor.detach().cpu().float().contiguous().numpy().astype("<f4")
    return base64.b64encode(array.tobytes()).decode("ascii")
