"""The paper's grid as data: task x model x hidden size x protocol.

A `Task` says what a run of it means (its unit, its metric, its length), which models the paper
trained on it and how large, which settings differ from the defaults, and where the code lives.
The code is named by strings, "module:attribute", and imported when it is needed: listing the
experiments needs no torch.

To add a task: a subclass of `stpn.config.RunConfig` (its settings), a
`stpn.training.trainer.Trainer` built from that config (its work), and one entry here.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stpn.errors import ConfigError

if TYPE_CHECKING:
    from stpn.config import RunConfig
    from stpn.training.trainer import Trainer

MODELS: Mapping[str, str] = {
    "stpnr": "STPN, recurrent: one lambda and gamma per synapse",
    "stpnf": "STPN, feed-forward synapses only",
    "stpnl": "STPN with the gates of an LSTM",
    "ustpnr": "STPNr with one lambda and one gamma for the layer",
    "ustpnf": "STPNf with one lambda and one gamma for the layer",
    "rnn": "vanilla RNN",
    "lstm": "LSTM",
    "gru": "GRU",
    "mlp": "feed-forward layer, no memory",
    "fastweights": "Fast Weights (Ba et al. 2016)",
    "modplast": "modulated plasticity (Miconi et al. 2019)",
    "plastic": "plasticity without a modulator (Miconi et al. 2018)",
    "hebbff": "HebbFF (Tyulmankov et al. 2022)",
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the paper."""

    name: str
    title: str
    unit: str  # what `step` counts: epoch | iteration | step
    metric: str  # the paper's name for proficiency: test_accuracy | accuracy | reward
    protocol: int  # length of the paper's training, in units
    seeds: int  # number of seeds in the paper
    hidden_sizes: Mapping[str, int]  # the paper's models on this task
    config: str  # "module:Class", a subclass of stpn.config.RunConfig
    trainer: str  # "module:Class", a stpn.training.trainer.Trainer, called with the config
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of config fields that differ from the class's defaults."""
    model_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one model of the task."""
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one value of the config's field `protocol`, if it has one."""
    default_protocol: str | None = None
    """Which of them is meant where none is named. None: the config class's own."""
    reference: str | None = None  # "module:function": proficiency by the name of a known policy

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.hidden_sizes)

    def config_class(self) -> type[RunConfig]:
        return _resolve(self.config)

    def trainer_class(self) -> type[Trainer]:
        return _resolve(self.trainer)

    def reference_points(self) -> Mapping[str, float]:
        """What a reader holds proficiency against; empty where there is nothing but the paper."""
        return _resolve(self.reference)() if self.reference else {}

    def build_trainer(self, config: RunConfig, *, plain: bool = False) -> Trainer:
        """The one around RLlib if the settings say so; the task's own if not, or if `plain`."""
        if getattr(config, "rllib", False) and not plain:
            return _resolve("stpn.scale.rllib_trainer:RLlibTrainer")(config)
        return _resolve(self.trainer)(config)


def _familiarity(mode: str, distance: int, iterations: int) -> Task:
    return Task(
        name=f"familiarity-{mode}-r{distance}",
        title=f"Continual familiarity, {mode}, R = {distance}",
        unit="iteration",
        metric="accuracy",
        protocol=iterations,
        seeds=5,
        hidden_sizes={
            "stpnr": 27,
            "stpnf": 34,
            "ustpnr": 62,
            "ustpnf": 100,
            "lstm": 21,
            "hebbff": 100,
        },
        config="stpn.config:FamiliarityConfig",
        trainer="stpn.training.supervised:FamiliarityTrainer",
        settings={"mode": mode, "distance": distance, "iterations": iterations},
    )


MAZE_OF_THE_PAPER = {
    "algo": "a2c",
    "agents": 512,
    "lr": 1e-4,
    "lr_decay": None,
    "iterations": 50_000,
    "relative_value": False,
    "entropy": 0.0,
    "concentration": 0.03,
}

FAST_PONG = {
    "algo": "ppo",
    "agents": 32,
    "rollout": 128,
    "steps": 10_000_000,
    "lr": 4e-4,
    "lr_decay": 20_000_000,
    "grad_norm": 0.5,
    "clip": 0.1,
    "epochs": 3,
    "minibatch": 512,
    "sequence": 64,
}

TUNED_PONG = {
    "algo": "ppo",
    "agents": 16,
    "rollout": 128,
    "steps": 3_000_000,
    "lr": 5e-4,
    "lr_decay": None,
    "lr_final": 0.0,
    "discount": 0.98,
    "entropy_final": 0.003,
    "grad_norm": 0.5,
    "eps": 1e-5,
    "clip": 0.2,
    "epochs": 3,
    "minibatch": 256,
    "sequence": 32,
    "standardize": "minibatch",
    "orthogonal": True,
    "normalize_observations": True,
    "three_actions": True,
    "eval_every": 50_000,
}

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="art",
            title="Associative retrieval",
            unit="epoch",
            metric="test_accuracy",
            protocol=200,
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
            config="stpn.config:ArtConfig",
            trainer="stpn.training.supervised:ArtTrainer",
        ),
        _familiarity("dataset", 3, 3000),
        _familiarity("infinite", 3, 1600),
        _familiarity("infinite", 6, 3500),
        Task(
            name="maze",
            title="Maze exploration",
            unit="iteration",
            metric="reward",
            protocol=50_000,
            seeds=3,
            hidden_sizes={"stpnr": 55, "lstm": 47, "rnn": 100, "modplast": 73},
            config="stpn.training.rl_config:MazeConfig",
            trainer="stpn.training.reinforcement:MazeTrainer",
            model_settings={"stpnr": {"norm": "post", "clamp": 1.0}},
            protocols={"paper": MAZE_OF_THE_PAPER},
            reference="stpn.tasks.maze_reference:reference_points",
        ),
        Task(
            name="maze-ablation",
            title="Maze exploration, ablation",
            unit="iteration",
            metric="reward",
            protocol=50_000,
            seeds=3,
            hidden_sizes={"stpnr": 30, "stpnf": 76, "ustpnr": 55, "ustpnf": 181, "hebbff": 181},
            config="stpn.training.rl_config:MazeConfig",
            trainer="stpn.training.reinforcement:MazeTrainer",
            protocols={"paper": MAZE_OF_THE_PAPER},
            reference="stpn.tasks.maze_reference:reference_points",
        ),
        Task(
            name="pong",
            title="Atari Pong",
            unit="step",
            metric="reward",
            protocol=100_000_000,
            seeds=5,
            hidden_sizes={"stpnr": 64, "lstm": 48},
            config="stpn.training.rl_config:PongConfig",
            trainer="stpn.training.reinforcement:PongTrainer",
            model_settings={"lstm": {"lr": 0.0001}},
            protocols={"paper": {}, "fast": FAST_PONG, "tuned": TUNED_PONG},
            default_protocol="tuned",
        ),
        Task(
            name="pendulum",
            title="MuJoCo Inverted Pendulum",
            unit="step",
            metric="reward",
            protocol=1_000_000,
            seeds=2,
            hidden_sizes={"stpnf": 64, "lstm": 64, "rnn": 64, "mlp": 64},
            config="stpn.training.rl_config:PendulumConfig",
            trainer="stpn.training.reinforcement:PendulumTrainer",
            model_settings={"stpnf": {"norm": "none", "clamp": 0.1}},
            protocols={
                "paper": {"relative_value": False},
                "fast": {},
                "tuned": {"lr_decay": None, "lr_final": 0.0},
            },
            default_protocol="tuned",
        ),
        Task(
            name="gym",
            title="Any Gymnasium environment (--env NAME)",
            unit="step",
            metric="reward",
            protocol=0,
            seeds=0,
            hidden_sizes={},
            config="stpn.training.rl_config:GymConfig",
            trainer="stpn.training.reinforcement:GymTrainer",
        ),
    )
}


def get(name: str) -> Task:
    """The task of that name; an unknown one is answered with the known ones."""
    if name not in TASKS:
        raise ConfigError(unknown("task", name, TASKS))
    return TASKS[name]


def default_config(task: str, model: str | None = None, **settings: Any) -> RunConfig:
    """The default settings for a model on a task, changed by `settings`: the paper's, where the
    task has no protocols to choose from, or with `protocol="paper"`.

    Without `model`, the first of the task's models: the one that the paper is about.
    """
    from stpn.config import from_dict

    entry = get(task)
    if model is None:
        model = entry.models[0] if entry.models else "stpnr"
    if model not in MODELS:
        raise ConfigError(unknown("model", model, MODELS))
    if entry.default_protocol and not settings.get("rllib"):  # RLlib lacks what tuned presets have
        settings.setdefault("protocol", entry.default_protocol)
    values = {
        **entry.settings,
        **entry.model_settings.get(model, {}),
        **entry.protocols.get(settings.get("protocol", ""), {}),
        **settings,
    }
    if model in entry.hidden_sizes:
        values.setdefault("hidden_size", entry.hidden_sizes[model])
    return from_dict({"task": task, "model": model, **values})


def unknown(kind: str, name: str, known: Mapping[str, Any]) -> str:
    """The sentence that refuses a name and says which ones there are."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(known)}"


def _resolve(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
