"""The settings of a run: one flat dataclass a task, documented, checked before work starts.

The field docstrings are the help of `stpn train TASK --help`. `from_dict` is the only way in from
JSON: unknown names and wrong types are refused with a sentence. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from stpn import cores
from stpn._typed import describe, fits, type_hints
from stpn.errors import ConfigError as ConfigError
from stpn.errors import require as require
from stpn.errors import unknown
from stpn.runs import place
from stpn.tasks import registry

LARGEST = 10**9  # of any whole number but the seed

# Whether a setting matters to the experiment stands at its field: field(metadata=...). A setting
# without a mark makes another experiment.
IDENTITY = {"incidental": "identity"}  # which run it is
MACHINE = {"incidental": "machine"}  # where and how it is computed
MEASUREMENT = {"incidental": "measurement"}  # how often and how well it is looked at

STPN_MODELS = cores.STPN
STPN_SETTINGS = ("norm", "norm_over", "norm_scale", "clamp", "rule", "plastic")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every task has in common. Subclasses add their own fields, `total` and `check`."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")] = field(
        metadata=IDENTITY
    )
    """Name of the task (`stpn list`)."""
    model: str = field(default="stpnr", metadata=IDENTITY)
    """Name of the recurrent core (`stpn list`)."""
    seed: int = field(default=0, metadata=IDENTITY)
    """Seed of weights, data and order: with the same --threads it fixes the whole run."""
    hidden_size: int | None = None
    """Units of the core. None: the paper's size, or for a model outside the paper's grid the size
    with the nearest number of parameters."""
    num_layers: int = 1
    """Layers of the core."""
    norm: Literal["pre", "post", "f", "none"] = "pre"
    """STPN: where efficacies are normalised (pre: as in the paper's Algorithm 1; f: F alone)."""
    norm_over: Literal["neuron", "layer"] = "neuron"
    """STPN: norm of each neuron's synapses, or of the whole layer's."""
    norm_scale: bool = False
    """STPN: learn a scale of the norm for each neuron."""
    clamp: float | None = None
    """STPN: bound of the short-term component F after each update."""
    rule: Literal["hebb", "oja"] = "hebb"
    """STPN: Hebb's rule or Oja's."""
    plastic: Literal["all", "input", "hidden"] = "all"
    """STPN: which synapses are plastic."""
    core: tuple[str, ...] = ()
    """Other options of the model's class, KEY=VALUE each (steps=2 of fastweights), or one JSON
    object; `stpn train TASK --model MODEL --help` lists them."""
    optimizer: str = "Adam"
    """Any optimizer of torch.optim by name."""
    lr: float = 1e-3
    """Learning rate."""
    device: str = field(default="cpu", metadata=MACHINE)
    """Where the network learns: cpu, cuda, another device of torch (mps, xpu, cuda:1), or auto: a
    GPU where there is one. Agents act on the CPU and learn on it. A resumed run keeps it."""
    backend: str = field(default="auto", metadata=MACHINE)
    """Which implementation of the recurrence runs (`stpn.backends()` lists them); auto: the
    fastest."""
    threads: int | None = field(default=None, metadata=MACHINE)
    """Threads of torch and of the kernels. None: as many as torch would take. A resumed run keeps
    them, because sums in another order are other sums."""
    checkpoint_seconds: float = field(default=20.0, metadata=MACHINE)
    """Save at least this often; 0: after every update."""

    @property
    def total(self) -> int:
        """Length of the run, in the task's unit."""
        return int(getattr(self, self.total_field))

    total_field: typing.ClassVar[str] = "total"
    """Name of the field that holds the length: epochs, iterations, steps."""
    deciding: typing.ClassVar[tuple[str, ...]] = ()
    """Settings that decide which group of others there is."""
    renamed: typing.ClassVar[Mapping[str, str]] = {}
    """Names of settings in earlier versions, and what they are called now."""

    @property
    def unit(self) -> str:
        """What the length counts, in the singular."""
        return self.total_field.removesuffix("s")

    @property
    def core_options(self) -> dict[str, Any]:
        """`core` as keyword arguments of the model's class."""
        return keyword_arguments("core", self.core)

    @property
    def directory(self) -> Path:
        """Where the run lies below the root of all runs."""
        return place(self.task, self.model, self.seed)

    @property
    def title(self) -> str:
        """Which run it is, for people."""
        return f"{self.task} {self.model} seed {self.seed}"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work. Subclasses extend it."""
        if cores.find(self.model) is None:
            raise ConfigError(unknown("model", self.model, cores.names()))
        require(self.seed >= 0, "seed", ">= 0", self.seed)
        if self.hidden_size is not None:
            require(self.hidden_size >= 1, "hidden_size", ">= 1", self.hidden_size)
        require(1 <= self.num_layers <= 1000, "num_layers", "between 1 and 1,000", self.num_layers)
        for name, value in self.to_dict().items():  # before anything of that size is made
            if isinstance(value, int) and name != "seed":
                require(value <= LARGEST, name, f"at most {LARGEST:,}", value)
        require(0 <= self.lr < float("inf"), "lr", "finite and >= 0", self.lr)
        if self.clamp is not None:
            require(self.clamp > 0, "clamp", "> 0", self.clamp)
        if self.threads is not None:
            require(self.threads >= 1, "threads", ">= 1", self.threads)
        if not re.fullmatch(r"[a-z_]+(:\d+)?", self.device):
            raise ConfigError(f"device must be a name such as auto, cpu, cuda, not {self.device!r}")
        require(self.checkpoint_seconds >= 0, "checkpoint_seconds", ">= 0", self.checkpoint_seconds)
        require(self.total >= 1, self.total_field, ">= 1", self.total)
        for name in self.core_options.keys() & {*STPN_SETTINGS, "num_layers"}:
            raise ConfigError(f"{name} is a setting of its own: --{name.replace('_', '-')}")
        if self.model not in STPN_MODELS:
            for name in STPN_SETTINGS:
                if getattr(self, name) != _default(type(self), name):
                    raise ConfigError(
                        f"{name} is a setting of STPN models and means nothing for {self.model!r}"
                    )
        if self.model in ("stpnf", "ustpnf") and self.plastic != "all":
            raise ConfigError(f"{self.model} has input synapses only: plastic must be 'all'")

    @classmethod
    def incidental(cls, *marks: Mapping[str, str]) -> frozenset[str]:
        """Names of the settings with one of these marks."""
        kinds = {mark["incidental"] for mark in marks}
        fields = dataclasses.fields(cls)
        return frozenset(f.name for f in fields if f.metadata.get("incidental") in kinds)

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> dict[str, type[Any]]:
        """Fields that hold a group of settings, and its dataclass, as `values` decide. In JSON, in
        flags and in `default_config` the settings of a group stand among the others."""
        return {}

    @classmethod
    def migrated(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of an earlier version, under the names that settings have now."""
        if not cls.renamed.keys() & values.keys():
            return dict(values)
        # before they were renamed, every run had the settings of all groups
        return cls.relevant({cls.renamed.get(name, name): v for name, v in values.items()})

    @classmethod
    def relevant(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults of a task without those that belong to a group that is not chosen."""
        return dict(values)

    @classmethod
    def elsewhere(cls, name: str) -> str | None:
        """A sentence about a setting that belongs to a group that is not chosen."""
        return None

    def contradiction(self, other: Mapping[str, Any]) -> str | None:
        """The first setting in which `other` would be another experiment, as a sentence.

        A run may be lengthened, saved more often and computed elsewhere; nothing else may change.
        A None here has not been decided yet and contradicts nothing. A setting that `other` lacks
        is younger than that run, which therefore has its default.
        """
        may_differ = {self.total_field, *self.incidental(MACHINE)}
        other = self.migrated(other)
        groups = [self, *(getattr(self, name) for name in self.groups(other))]
        defaults = {
            f.name: _plain(f.default) for group in groups for f in dataclasses.fields(group)
        }
        for name, value in self.to_dict().items():
            undecided = name == "hidden_size" and value is None
            theirs = other.get(name, defaults[name])
            if name not in may_differ and not undecided and theirs != value:
                return f"its {name} is {theirs!r}, not {value!r}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        values: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                values |= dataclasses.asdict(value)
            else:
                values[f.name] = _plain(value)
        return values


def trusted(config: RunConfig, named: str | None, source: object) -> RunConfig:
    """A configuration that was read from a file, unless it would import what nobody asked for.

    "module:Name" as an environment imports the module, which may do anything. From a file it is
    taken only if the user `named` the same environment.
    """
    env = str(getattr(config, "env", ""))
    module, _, _ = env.rpartition(":")
    if named is not None and named != env:
        raise ConfigError(f"{source} plays in {env or config.task!r}, not in {named!r}")
    if module not in ("", "ale_py") and named is None:
        raise ConfigError(
            f"{source} plays in {env!r}, which imports the Python module {module!r}; if you trust "
            f"it, say so: --env {env}"
        )
    return config


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The checked configuration of the task that `values["task"]` names."""
    if not isinstance(values, Mapping) or not isinstance(values.get("task"), str):
        raise ConfigError('a configuration is an object that names its task, as in {"task": "art"}')
    cls = registry.get(values["task"]).config
    values = cls.migrated(values)
    groups = cls.groups(values)
    own, *others = (_hints(of) for of in (cls, *groups.values()))
    known = {name: hint for hints in (own, *others) for name, hint in hints.items()}
    for name in groups:
        del known[name], own[name]
    for name, value in values.items():
        if name not in known:
            elsewhere = cls.elsewhere(name)
            raise ConfigError(elsewhere or unknown(f"setting of {values['task']}", name, known))
        if not fits(value, known[name]):
            raise ConfigError(f"{name} must be {describe(known[name])}, not {value!r}")
    # JSON has lists only; tuples can be hashed, as a configuration must
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    fields: dict[str, Any] = {name: value for name, value in values.items() if name in own}
    for (name, group), hints in zip(groups.items(), others, strict=True):
        fields[name] = group(**{key: value for key, value in values.items() if key in hints})
    config = cls(**fields)
    config.check()
    return config


def keyword_arguments(name: str, words: Iterable[str]) -> dict[str, Any]:
    """What the words of a setting say: KEY=VALUE each, or JSON objects. A value that is no JSON is
    text."""
    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if word.lstrip().startswith("{") and isinstance(whole := _json(word), dict):
            arguments |= whole
        elif equals and key.isidentifier():
            arguments[key] = _json(text)
        else:
            raise ConfigError(
                f"{name} takes KEY=VALUE, as in steps=2, or one JSON object, not {word!r}"
            )
    return arguments


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _default(cls: type[RunConfig], name: str) -> Any:
    return next(f.default for f in dataclasses.fields(cls) if f.name == name)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
