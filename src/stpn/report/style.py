"""One look everywhere: what a model and a task are called, and how they are drawn.

Colours were searched for, not picked: inside every panel of the paper's figures any two differ by
at least 18 (CIE Lab) for normal sight and for the three kinds of colour blindness, and each stands
out 3:1 from the page, light or dark (`tests/report/test_style.py`). Lines also differ by their
dashes and points by their markers, so that no figure depends on colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

LIGHT_PAGE = "#ffffff"
DARK_PAGE = "#0f1216"

_SOLID = ()
_DASHED = (5.0, 2.0)
_DOTTED = (1.2, 1.8)
_DASH_DOT = (6.0, 1.8, 1.2, 1.8)

_NEUTRAL = "#767676"


@dataclass(frozen=True)
class ModelStyle:
    name: str
    colour: str
    marker: str  # matplotlib's
    dashes: tuple[float, ...]  # lengths on, off, ... in points; empty: a solid line


_MODELS: dict[str, ModelStyle] = {
    "stpnr": ModelStyle("STPNr", "#D9480F", "o", _SOLID),
    "stpnf": ModelStyle("STPNf", "#BD8A4A", "s", _SOLID),
    "stpnl": ModelStyle("STPNl", "#E70556", "^", _SOLID),
    "ustpnr": ModelStyle("STPNr uniform", "#C94BA0", "o", _DASHED),
    "ustpnf": ModelStyle("STPNf uniform", "#5F6935", "s", _DASHED),
    "hebbff": ModelStyle("HebbFF", "#3DA880", "D", _DASH_DOT),
    "lstm": ModelStyle("LSTM", "#2F62E0", "P", _DASHED),
    "gru": ModelStyle("GRU", "#7A58AC", "p", _DASH_DOT),
    "rnn": ModelStyle("RNN", "#0A9CDD", "X", _DOTTED),
    "modplast": ModelStyle("ModPlast", "#A6308A", "v", _DASH_DOT),
    "plastic": ModelStyle("Plastic RNN", "#2A8716", "<", _DOTTED),
    "fastweights": ModelStyle("Fast Weights", "#1C7A50", "d", _DASHED),
    "mlp": ModelStyle("MLP", "#8C8C8C", "*", _DOTTED),
}

MODEL_ORDER = tuple(_MODELS)


def model_style(model: str) -> ModelStyle:
    """The style of a model; one that the report does not know is drawn in grey under its name."""
    return _MODELS.get(model) or ModelStyle(model, _NEUTRAL, "h", _DOTTED)


def model_rank(model: str) -> tuple[int, str]:
    """Sort key: the models in the report's order, unknown ones last."""
    return (MODEL_ORDER.index(model) if model in _MODELS else len(_MODELS), model)


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
