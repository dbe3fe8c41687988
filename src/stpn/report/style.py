"""One look everywhere: what a model and a task are called, and how they are drawn.

Colours were searched for, not picked: inside every panel of the paper's figures any two differ by
at least 18 (CIE Lab) for normal sight and for the three kinds of colour blindness, and each stands
out 3:1 from the page, light or dark (`tests/report/test_style.py`). Lines also differ by their
dashes and points by their markers, so that no figure depends on colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from stpn import cores

LIGHT_PAGE = "#ffffff"
DARK_PAGE = "#0f1216"


@dataclass(frozen=True)
class ModelStyle:
    name: str
    colour: str
    marker: str  # matplotlib's
    dashes: tuple[float, ...]  # lengths on, off, ... in points; empty: a solid line


def model_style(model: str) -> ModelStyle:
    """The style of a model; one that nobody registered is drawn in grey under its name."""
    core = cores.find(model) or cores.Core(model, "", model, cores.GREY)
    return ModelStyle(core.title, core.colour, core.marker, core.dashes)


def model_rank(model: str) -> tuple[int, str]:
    """Sort key: the models in the order of `stpn.cores`, unknown ones last."""
    order = cores.names()
    return (order.index(model) if model in order else len(order), model)


@dataclass(frozen=True)
class TaskStyle:
    short: str  # for headings of columns and panels
    proficiency: str  # what proficiency means here, with its unit
    decimals: int  # of proficiency, as the paper prints it
    time: str = "time step"  # what power is measured at
    reinforcement: bool = False
    quantiles: bool = False  # the paper shows quartiles where it else shows mean and deviation


_TASKS: dict[str, TaskStyle] = {
    "art": TaskStyle("ART", "accuracy (%)", 2, "sequence element"),
    "maze": TaskStyle("Maze", "reward", 1, "episode step", reinforcement=True),
    "pong": TaskStyle("Pong", "score", 1, "episode step", reinforcement=True, quantiles=True),
    "pendulum": TaskStyle("Pendulum", "reward (steps)", 1, "episode step", reinforcement=True),
    "maze-ablation": TaskStyle("Maze ablation", "reward", 1, "episode step", reinforcement=True),
    "familiarity-dataset-r3": TaskStyle("Familiarity, dataset R=3", "accuracy (%)", 2, "vector"),
    "familiarity-infinite-r3": TaskStyle("Familiarity, infinite R=3", "accuracy (%)", 2, "vector"),
    "familiarity-infinite-r6": TaskStyle("Familiarity, infinite R=6", "accuracy (%)", 2, "vector"),
}

TASK_ORDER = tuple(_TASKS)
POWER_DECIMALS = 1


def task_style(task: str) -> TaskStyle:
    """The style of a task; one outside the paper goes by its own name."""
    return _TASKS.get(task) or TaskStyle(task, "proficiency", 2)


def task_rank(task: str) -> tuple[int, str]:
    """Sort key: the paper's tasks in its order, others last."""
    return (TASK_ORDER.index(task) if task in _TASKS else len(_TASKS), task)
