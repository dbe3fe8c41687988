"""Figures 5 and 6: the efficacies of a network while it reads, and the rates that it has learnt.

For STPNs: any run with a checkpoint, and networks of the package. What is read depends on the task:
a sequence of letters and digits for associative retrieval, the first vectors of a stream for
familiarity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stpn.errors import ConfigError, StpnError
from stpn.report.figures import TEXT_WIDTH, new_figure, paper_style
from stpn.report.statistics import Array
from stpn.report.style import model_style
from stpn.zoo import card_of, is_shipped, network, settings_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from stpn.nn.core import RecurrentCore

EXAMPLE = "c9k8j3??k"
FAMILIARITY_STEPS = 20

# The same two colours as in the page's viewer: negative blue, positive orange, zero nearly white.
_NEGATIVE, _ZERO, _POSITIVE = "#2166AC", "#F7F7F7", "#D66021"

# Okabe and Ito's colours for neurons, which must not look like models; with markers for more.
_NEURON_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#B8A900",
)  # fmt: skip
_NEURON_MARKERS = "os^DvPX*"

RATES = (
    "λ is the part of F that a synapse keeps from step to step, not limited to 0 to 1: beyond 1 it "
    "amplifies F, which the normalisation holds, and below 0 it turns its sign. γ is what an "
    "association adds."
)

GATES = ("input", "forget", "cell", "output")


@dataclass(frozen=True)
class Reading:
    """Efficacies of one layer while a sequence is read."""

    g: Array  # (T, R, D)
    steps: tuple[str, ...]  # a name for each time step, (T)
    groups: tuple[tuple[int, str], ...]  # first column of each group of synapses, and its name
    rows: tuple[str, ...]  # a name for each row of synapses, (R)
    key: str = ""  # what the names of the steps mean, where they do not say it themselves


@dataclass(frozen=True)
class Rates:
    """Lambda and gamma of one layer, as many as were learnt: (R, P), (R, 1) or (1, 1)."""

    lambda_: Array
    gamma: Array
    rows: tuple[str, ...]


def read_synapses(source: str | Path, sequence: str | None = None, *, layer: int = 1) -> Reading:
    """Let the network of a run, or one of the package, read a sequence."""
    from stpn.tasks import familiarity

    config = settings_of(source)
    task = str(config["task"])
    if task == "art":
        return read_art(_core(source), EXAMPLE if sequence is None else sequence, layer=layer)
    if not task.startswith("familiarity"):
        raise StpnError(
            f"a {task} network reads what its environment shows it, so there is no sequence to "
            "draw; `stpn figure rates` works for every task"
        )
    if sequence is not None:
        raise ConfigError("a sequence can be given for associative retrieval only")
    stream = familiarity.sequence(
        FAMILIARITY_STEPS, config["input_size"], config["distance"], config["probability"]
    )
    steps = tuple("r" if label else "n" for label in stream.labels.tolist())
    reading = _trace(_core(source), stream.x, steps, ((0, "inputs"),), layer)
    return replace(reading, key="n: a new vector, r: one that is repeated")


def read_art(core: RecurrentCore, text: str = EXAMPLE, *, layer: int = 1) -> Reading:
    """Let the core of an associative retrieval network read a sequence."""
    from stpn.tasks import art

    try:
        x = art.one_hot(art.encode(text))  # (T, I)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not text:
        raise ConfigError("the sequence is empty")
    return _trace(core, x, tuple(text), ((0, "a–z"), (26, "0–9"), (36, "?")), layer)


def _trace(
    core: RecurrentCore,
    x: Tensor,  # (T, I)
    steps: tuple[str, ...],
    groups: tuple[tuple[int, str], ...],
    layer: int,
) -> Reading:
    from stpn.plasticity import trace

    traced = trace(core, x)
    _check_layer(layer, len(traced.layers))
    g = traced.layers[layer - 1].g.double().numpy()
    size = core.input_size if layer == 1 else core.hidden_size
    if layer > 1:
        groups = ((0, "layer below"),)
    if g.shape[-1] > size:
        groups = (*groups, (size, "h"))
    return Reading(g, steps, groups, _row_names(core, g.shape[1]))


def read_rates(source: str | Path, *, layer: int = 1) -> Rates:
    """The learnt lambda and gamma of a run, or of a network of the package."""
    return rates_of(_core(source), layer=layer)


def rates_of(core: RecurrentCore, *, layer: int = 1) -> Rates:
    """Lambda and gamma of one layer of a core."""
    _check_layer(layer, len(core.layers))
    p = core.layer_parameters(core.layers[layer - 1].suffix)
    return Rates(
        p["lambda"].detach().double().numpy(),
        p["gamma"].detach().double().numpy(),
        _row_names(core, p["weight"].shape[0]),
    )


def draw_synapses(reading: Reading) -> Figure:
    """One panel a neuron: synapses down, time across, colour = G."""
    _, rows, columns = reading.g.shape
    across = min(6, max(4, math.ceil(math.sqrt(rows))))
    down = math.ceil((rows + 1) / across)  # one place more, for the colour scale
    with paper_style():
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize

        colours = LinearSegmentedColormap.from_list("g", [_NEGATIVE, _ZERO, _POSITIVE])
        limit = float(np.abs(reading.g).max()) or 1.0
        norm = Normalize(-limit, limit)
        figure = new_figure(TEXT_WIDTH, 0.3 + 1.75 * down)
        places = list(figure.subplots(down, across, squeeze=False).flat)
        for row, axes in enumerate(places[:rows]):
            axes.imshow(
                reading.g[:, row].T, aspect="auto", cmap=colours, norm=norm,
                interpolation="nearest", rasterized=True,
            )  # fmt: skip
            axes.set_title(reading.rows[row], loc="left", fontsize=7)
            axes.grid(visible=False)
            _label_steps(axes, reading.steps)
            _label_groups(axes, reading.groups, columns, named=row % across == 0)
        scale = ScalarMappable(norm, colours)
        spare = places[rows]
        spare.axis("off")
        inset = spare.inset_axes((0.05, 0.45, 0.9, 0.09))
        bar = figure.colorbar(scale, cax=inset, orientation="horizontal", label="efficacy G")
        bar.set_ticks([-limit, 0.0, limit], labels=[f"−{limit:.2g}", "0", f"{limit:.2g}"])
        for axes in places[rows + 1 :]:
            axes.remove()
        if reading.key:
            figure.supxlabel(reading.key, fontsize=6.5)
        return figure


def draw_rates(rates: Rates) -> Figure:
    """One dot a synapse, one colour a neuron, as far as neurons can be told apart."""
    with paper_style():
        from matplotlib.lines import Line2D

        count = len(rates.lambda_)
        told_apart = count <= 2 * len(_NEURON_COLOURS)
        figure = new_figure(TEXT_WIDTH / 2 + 0.9 * (count > 1), 2.7)
        axes = figure.subplots()
        size = 12 if rates.lambda_.size < 1000 else 5
        handles = []
        if not told_apart:
            axes.scatter(
                rates.lambda_, rates.gamma, s=4, color=_NEURON_COLOURS[0], alpha=0.3, linewidth=0,
                zorder=2,
            )  # fmt: skip
            label = f"all {count} neurons"
            handles.append(Line2D([], [], color=_NEURON_COLOURS[0], marker="o", linestyle="none",
                                  markersize=3.5, label=label))  # fmt: skip
        for row in range(count if told_apart else 0):
            colour = _NEURON_COLOURS[row % len(_NEURON_COLOURS)]
            marker = _NEURON_MARKERS[row // len(_NEURON_COLOURS) % len(_NEURON_MARKERS)]
            axes.scatter(
                rates.lambda_[row], rates.gamma[row], s=size, color=colour, marker=marker,
                alpha=0.75, linewidth=0, zorder=2,
            )  # fmt: skip
            handles.append(
                Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=3.5,
                       label=rates.rows[row])
            )  # fmt: skip
        axes.axhline(0, color="#888888", linewidth=0.6, zorder=1)
        axes.axvline(0, color="#888888", linewidth=0.6, zorder=1)
        axes.axvline(1, color="#888888", linewidth=0.6, linestyle=":", zorder=1)
        axes.set_xlabel("λ: part of F that is kept (dotted: all)")
        axes.set_ylabel("γ: how strongly F grows")
        if count > 1:
            figure.legend(handles=handles, loc="outside right center", fontsize=6.5)
        return figure


def describe(source: str | Path, what: str) -> str:
    """Caption of a figure of one network."""
    config = settings_of(source)
    name = model_style(str(config["model"])).name
    origin = "Run" if card_of(source) is None else "Network"
    origin = "Network of the package" if is_shipped(source) else origin
    return f"{what} {name} on {config['task']}, seed {config['seed']}. {origin}: {source}."


def _core(source: str | Path) -> RecurrentCore:
    from stpn.nn.stpn import STPNf, STPNl, STPNr

    found: Any = network(source)
    core = getattr(found, "core", None)
    if not isinstance(core, STPNf | STPNr | STPNl):
        raise StpnError(
            f"{source} is of the model {found.config.model}, which has no synapses with lambda "
            "and gamma; the models stpnr, stpnf, stpnl, ustpnr and ustpnf have"
        )
    return core


def _check_layer(layer: int, count: int) -> None:
    if not 1 <= layer <= count:
        raise ConfigError(f"layer must be between 1 and {count}, not {layer}")


def _row_names(core: RecurrentCore, rows: int) -> tuple[str, ...]:
    hidden = core.hidden_size
    if rows == hidden:
        return tuple(f"neuron {row + 1}" for row in range(rows))
    return tuple(f"{row % hidden + 1}, {GATES[row // hidden]} gate" for row in range(rows))


def _label_steps(axes: Axes, names: tuple[str, ...]) -> None:
    axes.set_xticks(range(len(names)), names, fontsize=6 if len(names) <= 12 else 4.5)
    axes.tick_params(axis="x", length=0, pad=1.5)


def _label_groups(
    axes: Axes, groups: tuple[tuple[int, str], ...], columns: int, *, named: bool
) -> None:
    starts = [start for start, _ in groups]
    for start in starts[1:]:
        axes.axhline(start - 0.5, color="#555555", linewidth=0.4)
    ends = [*starts[1:], columns]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axes.set_yticks(middles, [name for _, name in groups] if named else [""] * len(groups))
    axes.tick_params(axis="y", length=0, pad=1.5)
