"""What a task is, and which ones there are.

A task has all that is its own in one module or folder: settings (a subclass of
`stpn.config.RunConfig`), data or environments, the network, how it is trained. To add one, from
anywhere::

    stpn.register_task(MyTask(name="copy", title="Copying", metric="accuracy", config=CopyConfig))

Reinforcement learning in environments of one's own needs less: `stpn.tasks.agents.AgentTask`.
`stpn.plugins` says how commands get to know it.

Nothing here needs torch: methods import what they use.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stpn import plugins
from stpn.errors import ConfigError, unknown

if TYPE_CHECKING:
    from torch import nn

    from stpn.config import RunConfig
    from stpn.scenes import Scene
    from stpn.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True, eq=False)
class Task(ABC):
    """One task; subclasses say how its network is built and trained."""

    name: str
    title: str
    metric: str  # what proficiency is: test_accuracy | accuracy | reward
    config: type[RunConfig]
    """Class of its settings. A field's default is what runs have that are older than the field."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a new run has that differs from those defaults."""
    model_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one model."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one value of the field `preset`, if there is one."""
    default_preset: str | None = None
    """Which of them is meant where none is named. None: the config class's own."""

    @property
    def unit(self) -> str:
        """What `done` counts, in the singular."""
        return self.config.total_field.removesuffix("s")

    @abstractmethod
    def build_network(self, config: Any) -> nn.Module:
        """The network that `config` describes, with weights as they are drawn; no data, no
        environments. Its recurrent core is `.core`."""

    @abstractmethod
    def build_trainer(self, config: Any, *, plain: bool = False) -> Trainer:
        """What trains it. `plain`: in this process, wherever the settings would have it learn."""

    def check_extras(self) -> None:  # noqa: B027  (most tasks need none)
        """Raise MissingExtra if training needs a package that is not there."""

    def reference_points(self) -> Mapping[str, float]:
        """Proficiency of known policies, to hold that of networks against."""
        return {}

    def scene(self, config: Any) -> Scene:
        """An environment to look at, for `stpn watch`."""
        raise ConfigError(f"{self.name} has no episodes to watch, only sequences")


_tasks: dict[str, Task] = {}
_loaded = False


def register_task(task: Task) -> Task:
    """Make a task known by its name, in this process; returns it."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", task.name):
        raise ConfigError(
            f"a task's name is made of letters, digits, '-', '_' and '.', not {task.name!r}"
        )
    _load()
    if task.name in _tasks:
        raise ConfigError(f"there is a task named {task.name!r} already")
    _tasks[task.name] = task
    return task


def names() -> tuple[str, ...]:
    """Of all tasks: the paper's in its order, then others."""
    _load()
    return tuple(_tasks)


def get(name: str) -> Task:
    """The task of that name; an unknown one is answered with the known ones."""
    _load()
    if name not in _tasks:
        raise ConfigError(unknown("task", name, _tasks))
    return _tasks[name]


def build_network(config: RunConfig) -> nn.Module:
    """The network of a configuration, untrained, without its data and trainer."""
    return get(config.task).build_network(config)


def _load() -> None:
    """Once: the package's tasks, then those of others, which register themselves."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from stpn.tasks import (
        art,
        copying,
        cue_reward,
        familiarity,
        gym,
        maze,
        mqar,
        pendulum,
        pong,
        retrieval,
    )

    paper = (art, familiarity, maze, pong, pendulum, gym)
    for module in (*paper, retrieval, mqar, copying, cue_reward):
        _tasks.update({task.name: task for task in module.TASKS})
    plugins.load()
