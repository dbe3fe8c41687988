"""The paper's grid as data: task x model x hidden size, with length and seeds.

What a task is stands with the task (`stpn.tasks.registry`); here stands what the paper did with it.
A task that the paper has not is an experiment without models, seeds and length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stpn import cores
from stpn.errors import ConfigError, unknown
from stpn.tasks import registry

if TYPE_CHECKING:
    from stpn.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What the paper did on one task."""

    name: str  # of the task
    length: int = 0  # length of the paper's training, in the task's unit
    seeds: int = 0  # number of seeds
    hidden_sizes: Mapping[str, int] = field(default_factory=dict)  # its models and their sizes

    @property
    def task(self) -> registry.Task:
        return registry.get(self.name)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.hidden_sizes)

    @property
    def title(self) -> str:
        return self.task.title

    @property
    def unit(self) -> str:
        return self.task.unit

    @property
    def metric(self) -> str:
        return self.task.metric


def _familiarity(mode: str, distance: int, iterations: int) -> Experiment:
    sizes = {"stpnr": 27, "stpnf": 34, "ustpnr": 62, "ustpnf": 100, "lstm": 21, "hebbff": 100}
    return Experiment(
        name=f"familiarity-{mode}-r{distance}", length=iterations, seeds=5, hidden_sizes=sizes
    )


PAPER: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            name="art",
            length=200,
            seeds=5,
            hidden_sizes={
                "stpnr": 11,
                "stpnf": 13,
                "ustpnr": 20,
                "ustpnf": 26,
                "lstm": 9,
                "rnn": 20,
                "fastweights": 20,
                "modplast": 17,
                "hebbff": 26,
            },
        ),
        _familiarity("dataset", 3, 3000),
        _familiarity("infinite", 3, 1600),
        _familiarity("infinite", 6, 3500),
        Experiment(
            name="maze",
            length=50_000,
            seeds=3,
            hidden_sizes={"stpnr": 55, "lstm": 47, "rnn": 100, "modplast": 73},
        ),
        Experiment(
            name="maze-ablation",
            length=50_000,
            seeds=3,
            hidden_sizes={"stpnr": 30, "stpnf": 76, "ustpnr": 55, "ustpnf": 181, "hebbff": 181},
        ),
        Experiment(
            name="pong",
            length=100_000_000,
            seeds=5,
            hidden_sizes={"stpnr": 64, "lstm": 48},
        ),
        Experiment(
            name="pendulum",
            length=1_000_000,
            seeds=2,
            hidden_sizes={"stpnf": 64, "lstm": 64, "rnn": 64, "mlp": 64},
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tasks outside the paper that are compared together, by the same models."""

    tasks: tuple[str, ...]
    models: tuple[str, ...]


SUITES: dict[str, Suite] = {
    "memory-suite": Suite(
        tasks=(
            "retrieval-p3", "retrieval-p8", "retrieval-p16", "retrieval-p32", "retrieval-p64",
            "retrieval-p3-d20", "retrieval-p3-d60", "mqar-l24-k4-v32", "mqar-l48-k8-v64",
            "mqar-l64-k4", "mqar-l128-k8", "copying-n5-d0", "copying-n5-d20", "copying-n20-d20",
            "cue-reward",
        ),
        models=(
            "stpnr", "stpnf", "lstm", "gru", "rnn", "modplast", "fastweights", "gradplast", "fwp",
            "gla", "deltanet", "gateddeltanet",
        ),
    )
}  # fmt: skip
"""What `stpn sweep` takes by one name."""


def get(name: str) -> Experiment:
    """The paper's experiment on a task; of a task that it has not, an empty one."""
    task = registry.get(name)
    return PAPER.get(name) or Experiment(name=task.name)


class _Tasks(Mapping[str, Experiment]):
    """All tasks that are known now."""

    def __getitem__(self, name: str) -> Experiment:
        if name not in registry.names():
            raise KeyError(name)
        return get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(registry.names())

    def __len__(self) -> int:
        return len(registry.names())


TASKS = _Tasks()


def default_config(task: str, model: str | None = None, **settings: Any) -> RunConfig:
    """The default settings for a model on a task, changed by `settings`: the paper's, where the
    task has no presets to choose from, or with `preset="paper"`.

    Without `model`, the first of the task's models: the one that the paper is about.
    """
    from stpn.config import from_dict

    entry, experiment = registry.get(task), get(task)
    if model is None:
        model = experiment.models[0] if experiment.models else "stpnr"
    if cores.find(model) is None:
        raise ConfigError(unknown("model", model, cores.names()))
    preset = entry.config.migrated(settings).get("preset")
    if preset is None and not settings.get("rllib"):  # RLlib lacks what tuned presets have
        preset = entry.default_preset
    if preset is not None:
        settings["preset"] = preset
    values = {
        **entry.settings,
        **entry.model_settings.get(cores.base(model), {}),
        **entry.presets.get(preset or "", {}),
    }
    deciding = entry.config.deciding
    chosen = {k: v for k, v in {**values, **settings}.items() if k in deciding}
    settings = entry.config.migrated({**chosen, **settings})
    values = {**entry.config.relevant({**values, **chosen}), **settings}
    if model in experiment.hidden_sizes:
        values.setdefault("hidden_size", experiment.hidden_sizes[model])
    return from_dict({"task": task, "model": model, **values})
