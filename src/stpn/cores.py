"""Every recurrent core by name: which class it is, what it is called and how it is drawn.

This is the one list: `stpn.build`, `stpn train --model`, `stpn list` and the report read it. A core
of one's own joins it from anywhere:

    stpn.register_core("leaky", Leaky, title="Leaky RNN", colour="#2A8716")
    core = stpn.build("leaky", 37, 20, leak=0.8)

How to write one is in `stpn.nn.base`; `stpn.testing.check_core("leaky")` tries everything that a
core promises. `stpn.plugins` says how commands get to know it.

Options of a core are the keyword arguments of its `configure`. `core_options(name)` lists them with
type, default and a line of text, for a command line to offer them.

Nothing here needs torch: the package's own classes are named by strings until they are needed.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from stpn import plugins
from stpn.errors import unknown

if TYPE_CHECKING:
    from stpn.nn.core import RecurrentCore
    from stpn.nn.options import Option

Dashes: TypeAlias = tuple[float, ...]
SOLID: Dashes = ()
DASHED: Dashes = (5.0, 2.0)
DOTTED: Dashes = (1.2, 1.8)
DASH_DOT: Dashes = (6.0, 1.8, 1.2, 1.8)
GREY = "#767676"


@dataclass(frozen=True)
class Core:
    """One name of the list."""

    name: str
    cls: type[RecurrentCore] | str
    """The class, or "module:Class"."""
    title: str
    colour: str
    marker: str = "h"
    """matplotlib's"""
    dashes: Dashes = DOTTED
    """Lengths on, off, ... in points; empty: a solid line."""
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the name stands for beside the class; cannot be given again."""
    variant_of: str = ""
    """The core that it is with other options: it has its hidden size, and is in no list."""
    stpn: bool = False
    """Whether it has the options of STPNs: norm, clamp, rule, ..."""

    def load(self) -> type[RecurrentCore]:
        """The class."""
        if isinstance(self.cls, str):
            module, _, name = self.cls.partition(":")
            found: type[RecurrentCore] = getattr(importlib.import_module(module), name)
            return found
        return self.cls


def _stpn(
    name: str, cls: str, title: str, colour: str, marker: str, dashes: Dashes, text: str,
    **options: Any,
) -> Core:  # fmt: skip
    module = f"stpn.nn.stpn:{cls}"
    return Core(name, module, title, colour, marker, dashes, text, options, stpn=True)


def _torch(name: str, cls: str, colour: str, marker: str, dashes: Dashes, text: str) -> Core:
    return Core(name, f"stpn.nn.torch_cores:{cls}", cls, colour, marker, dashes, text)


def _modulated(name: str, title: str, colour: str, marker: str, dashes: Dashes, text: str) -> Core:
    options = {"modulated": name == "modplast"}
    return Core(name, "stpn.nn.modulated:ModPlast", title, colour, marker, dashes, text, options)


# Colours were searched for, so that those of one panel can be told apart: see `report/style.py`.
_cores: dict[str, Core] = {
    core.name: core
    for core in (
        _stpn(
            "stpnr", "STPNr", "STPNr", "#D9480F", "o", SOLID,
            "STPN, recurrent: one lambda and gamma per synapse",
        ),
        _stpn(
            "stpnf", "STPNf", "STPNf", "#BD8A4A", "s", SOLID, "STPN, feed-forward synapses only"
        ),
        _stpn("stpnl", "STPNl", "STPNl", "#E70556", "^", SOLID, "STPN with the gates of an LSTM"),
        _stpn(
            "ustpnr", "STPNr", "STPNr uniform", "#C94BA0", "o", DASHED,
            "STPNr with one lambda and one gamma for the layer", stp="uniform",
        ),
        _stpn(
            "ustpnf", "STPNf", "STPNf uniform", "#5F6935", "s", DASHED,
            "STPNf with one lambda and one gamma for the layer", stp="uniform",
        ),
        Core(
            "hebbff", "stpn.nn.hebbff:HebbFF", "HebbFF", "#3DA880", ">", DASH_DOT,
            "HebbFF (Tyulmankov et al. 2022)",
        ),
        _torch("lstm", "LSTM", "#2F62E0", "P", DASHED, "LSTM"),
        _torch("gru", "GRU", "#7A58AC", "p", DASH_DOT, "GRU"),
        _torch("rnn", "RNN", "#0A9CDD", "X", DOTTED, "vanilla RNN"),
        _modulated(
            "modplast", "ModPlast", "#A6308A", "v", DASH_DOT,
            "modulated plasticity (Miconi et al. 2019)",
        ),
        _modulated(
            "plastic", "Plastic RNN", "#2A8716", "<", DOTTED,
            "plasticity without a modulator (Miconi et al. 2018)",
        ),
        Core(
            "modul", "stpn.nn.modulated:Retroactive", "ModPlast retroactive", "#6B7F12", "d",
            DASH_DOT, "modulated plasticity with eligibility traces (Miconi et al. 2019)",
        ),
        Core(
            "fastweights", "stpn.nn.fast_weights:FastWeights", "Fast Weights", "#1C7A50", "H",
            DASHED, "Fast Weights (Ba et al. 2016)",
        ),
        Core(
            "gradplast", "stpn.nn.gradient_plasticity:GradientPlasticity", "Gradient RNN",
            "#8A6A00", "d", DOTTED, "gradient-based plasticity (Duan et al. 2023)",
        ),
        Core(
            "fwp", "stpn.nn.fast_weight_programmer:FastWeightProgrammer", "FWP", "#00798C", "<",
            SOLID, "linear fast-weight programmer, DPFP (Schlag et al. 2021)",
        ),
        Core(
            "gla", "stpn.nn.gated_linear_attention:GatedLinearAttention", "GLA", "#5B5BD6", "8",
            DASHED, "gated linear attention (Yang et al. 2024)",
        ),
        Core(
            "deltanet", "stpn.nn.deltanet:DeltaNet", "DeltaNet", "#B5179E", "D", DASH_DOT,
            "DeltaNet (Yang et al. 2024)",
        ),
        Core(
            "gateddeltanet", "stpn.nn.gated_deltanet:GatedDeltaNet", "Gated DeltaNet", "#C1121F",
            "d", DASHED, "Gated DeltaNet (Yang et al. 2025)",
        ),
        _torch("mlp", "MLP", "#8C8C8C", "*", DOTTED, "feed-forward layer, no memory"),
    )
}  # fmt: skip


def _variant(of: str, kind: str, title: str, **options: Any) -> Core:
    base = _cores[of]
    return replace(
        base,
        name=f"{of}-{kind}",
        title=f"{base.title}, {title}",
        dashes=(2.0, 1.0),
        description=f"{base.description}; {title}",
        options={**base.options, **options},
        variant_of=of,
    )


KINDS = ("normalized", "public")
# Controls: cores of the list with other options, under names of their own so that their runs and
# results are kept apart. The paper trained its baselines with normalised weights, too; "public" is
# what the public code computes where it is not what the paper says.
_variants = {
    core.name: core
    for core in (
        *(
            _variant(name, "normalized", "normalised weights", normalize=True)
            for name in ("lstm", "gru", "rnn", "modplast", "fastweights", "hebbff", "mlp")
        ),
        _variant("stpnr", "public", "new h associated", associate="new"),
        _variant("fastweights", "public", "updated twice a step", decay=0.81, rate=0.95),
        _variant(
            "ustpnr", "public", "gamma from 0.001 / H of familiarity", gamma_min=-0.001 / 62,
            gamma_max=0.001 / 62,
        ),
    )
}  # fmt: skip


def base(name: str) -> str:
    """The core that a variant is one of; of any other its own name.

    A plugin's core that is named like a variant is one, and stays one where the plugin is missing.
    """
    core = find(name)
    if core is not None and core.variant_of:
        return core.variant_of
    of, _, kind = name.rpartition("-")
    return of if kind in KINDS and of in _cores else name


def variants() -> list[str]:
    """Names of the cores of the list with other options, for controls."""
    return list(_variants)


def register_core(
    name: str,
    cls: type[RecurrentCore],
    *,
    title: str | None = None,
    colour: str = GREY,
    description: str = "",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Make a core known by name, to `stpn.build`, `stpn train --model`, `stpn list`, the report.

        stpn.register_core("leaky", Leaky, title="Leaky RNN", colour="#2A8716",
                           description="an RNN whose units leak", options={"leak": 0.9})

    - name: lower-case letters, digits, "-" and "_": runs are stored under it.
    - cls: a subclass of `stpn.nn.RecurrentCore`.
    - title, colour ("#rrggbb"), description: how tables, plots and lists show it.
    - options: what the name stands for beside the class; `build` does not take them again.

    The same name for another class is an error; for the same class it replaces the entry.
    """
    from stpn.nn.core import RecurrentCore
    from stpn.nn.options import check_options
    from stpn.nn.stpn import Plasticity

    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ValueError(
            f"name: expected lower-case letters, digits, '-' and '_', a letter first, got {name!r}"
        )
    if not isinstance(cls, type) or not issubclass(cls, RecurrentCore):
        raise TypeError(f"cls: expected a subclass of stpn.nn.RecurrentCore, got {cls!r}")
    if name in _cores and _cores[name].load() is not cls:
        raise ValueError(f"name: {name!r} is taken by {_cores[name].load().__name__}")
    if not isinstance(colour, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
        raise ValueError(f"colour: expected '#rrggbb', got {colour!r}")
    check_options(cls, options or {})
    _cores[name] = Core(
        name,
        cls,
        title or cls.__name__,
        colour,
        description=description or (cls.__doc__ or "").strip().partition("\n")[0],
        options=dict(options or {}),
        stpn=issubclass(cls, Plasticity),
    )


def names() -> list[str]:
    """All names, in the order in which tables show them."""
    plugins.load()
    return list(_cores)


def find(name: str) -> Core | None:
    """The core of that name, if there is one."""
    if name not in _cores and name not in _variants:
        plugins.load()
    return _cores.get(name) or _variants.get(name)


def get(name: object) -> Core:
    """The core of that name."""
    if not isinstance(name, str):
        raise TypeError(f"model: expected one of {', '.join(names())}, got {type(name).__name__}")
    core = find(name)
    if core is None:
        raise ValueError(unknown("model", name, names()))
    return core


def core_options(name: str) -> dict[str, Option]:
    """The options of a core that are still open, by name, each with type, default and text.

        for option in stpn.core_options("fastweights").values():
            parser.add_argument(f"--core.{option.name}", default=option.default, help=option.doc)
        stpn.build("fastweights", 37, 20, steps=2)

    `option.type` is an annotation (float, int, bool, a Literal, a union), as dataclasses and tyro
    take it. What the name stands for (`stp` of "ustpnr") is not among them.
    """
    from stpn.nn.options import options_of

    core = get(name)
    return {
        option: found
        for option, found in options_of(core.load()).items()
        if option not in core.options
    }


class _StpnNames:
    """The names of the STPNs, those registered later included."""

    def __contains__(self, name: object) -> bool:
        core = find(name) if isinstance(name, str) else None
        return core is not None and core.stpn

    def __iter__(self) -> Iterator[str]:
        return (core.name for core in list(_cores.values()) if core.stpn)


STPN = _StpnNames()
