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
    possible: tuple[float | None, float | None] = (None, None)  # least and most proficiency


_TASKS: dict[str, TaskStyle] = {
    "art": TaskStyle("ART", "accuracy (%)", 2, "sequence element", possible=(0, 100)),
    "maze": TaskStyle("Maze", "reward", 1, "episode step", reinforcement=True, possible=(0, None)),
    "pong": TaskStyle("Pong", "score", 1, "episode step", reinforcement=True, quantiles=True,
                      possible=(-21, 21)),
    "pendulum": TaskStyle("Pendulum", "reward (steps)", 1, "episode step", reinforcement=True,
                          possible=(0, 1000)),
    "maze-ablation": TaskStyle("Maze ablation", "reward", 1, "episode step", reinforcement=True,
                               possible=(0, None)),
    **{
        f"familiarity-{mode}-r{distance}": TaskStyle(
            f"Familiarity, {mode} R={distance}", "accuracy (%)", 2, "vector", possible=(0, 100)
        )
        for mode, distance in (("dataset", 3), ("infinite", 3), ("infinite", 6))
    },
}  # fmt: skip

TASK_ORDER = tuple(_TASKS)
POWER_DECIMALS = 1


def task_style(task: str) -> TaskStyle:
    """The style of a task; one outside the paper goes by its own name."""
    return _TASKS.get(task) or TaskStyle(task, "proficiency", 2)


def task_rank(task: str) -> tuple[int, str]:
    """Sort key: the paper's tasks in its order, others last."""
    return (TASK_ORDER.index(task) if task in _TASKS else len(_TASKS), task)
