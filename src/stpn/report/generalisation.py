"""Figure 7: familiarity against R, as Tyulmankov et al. 2022 plot it.

A network that was trained on repetitions after R steps reads streams with repetitions after 1 to 20
steps. Accuracy alone would hide how it fails: a network that says "new" to everything is right in
half of all steps, so the rates of true and of false positives stand beside it.

Networks of the package are measured once, `stpn/data/generalisation.json` has the numbers:

    stpn figure generalisation $(stpn list | grep -o 'familiarity-[^ ]*') --numbers FILE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stpn import config
from stpn._json import read_object
from stpn._typed import build
from stpn.errors import ConfigError
from stpn.report.plots import Curve, Panel, Plot
from stpn.report.style import model_rank, model_style
from stpn.zoo import Card, Shelf, is_shipped, network, pretrained, settings_of

if TYPE_CHECKING:
    from torch import nn

DISTANCES = tuple(range(1, 21))
LENGTH = 5000
SEED = 20_220_628  # of the streams; no training has drawn from it

CAPTION = (
    "Trained on repetitions after R steps (grey line), measured on streams with repetitions after "
    f"1 to {DISTANCES[-1]} steps, {LENGTH:,} vectors each. A true positive is a repetition that "
    "the network recognises, a false positive a new vector that it takes for one."
)

_QUANTITIES = (
    ("accuracy", "accuracy (%)"),
    ("true_positives", "true positives (%)"),
    ("false_positives", "false positives (%)"),
)


@dataclass(frozen=True)
class Generalisation:
    """What a network makes of repetitions after each distance, in percent."""

    distances: list[int]
    accuracy: list[float]
    true_positives: list[float]
    """Share of the repetitions that it recognises."""
    false_positives: list[float]
    """Share of the new vectors that it takes for repetitions."""


@dataclass(frozen=True)
class Subject:
    """A network that is measured: of the package, or of a run."""

    source: str | Path
    shelf: Shelf = pretrained

    @property
    def shipped(self) -> bool:
        return self.shelf is not pretrained or is_shipped(self.source)

    @property
    def card(self) -> Card:
        return self.shelf.card(str(self.source))

    @property
    def settings(self) -> dict[str, Any]:
        return self.card.config if self.shipped else settings_of(self.source)

    def measured(self) -> Generalisation:
        """Its numbers, those of the package's data where it is the same network."""
        settings = config.from_dict(self.settings)
        if not settings.task.startswith("familiarity"):
            raise ConfigError(
                f"{self.source} is a network of {settings.task}: there is no R to generalise to; "
                "networks of the familiarity tasks have one"
            )
        if self.shipped:
            known = _known().get(self.card.sha256)
            if known is not None:
                return known
            return measure(self.shelf(str(self.source)), settings)
        return measure(network(self.source), settings)


def measure(
    model: nn.Module,
    settings: Any,
    *,
    distances: Sequence[int] = DISTANCES,
    length: int = LENGTH,
    seed: int = SEED,
) -> Generalisation:
    """Let a familiarity network read one stream per distance, all of them side by side."""
    import torch

    from stpn.tasks import familiarity

    streams = [
        familiarity.sequence(
            length, settings.input_size, distance, settings.probability, seed=seed + distance
        )
        for distance in distances
    ]
    labels = torch.stack([stream.labels for stream in streams]).bool()  # (R, T)
    with torch.no_grad():
        logits = model(torch.stack([stream.x for stream in streams])).squeeze(-1)  # (R, T)
    said = logits.sigmoid().round().bool()  # as the task counts

    def share(hits: torch.Tensor, of: torch.Tensor) -> list[float]:
        percent = 100.0 * (hits & of).sum(1).double() / of.sum(1)
        return [round(value, 3) for value in percent.tolist()]

    return Generalisation(
        list(distances),
        share(said == labels, torch.ones_like(labels)),
        share(said, labels),
        share(said, ~labels),
    )


def plot(subjects: Sequence[Subject]) -> Plot:
    """One column per task, one row per quantity, one line per network."""
    by_task: dict[str, list[tuple[Subject, dict[str, Any], Generalisation]]] = {}
    for subject in subjects:
        settings = subject.settings
        by_task.setdefault(settings["task"], []).append((subject, settings, subject.measured()))
    panels = []
    for quantity, label in _QUANTITIES:
        for task, members in by_task.items():
            members = sorted(members, key=lambda member: model_rank(member[1]["model"]))
            trained = int(members[0][1]["distance"])
            title = f"{task.removeprefix('familiarity-').rpartition('-')[0]} R = {trained}"
            curves = tuple(
                _curve(subject, settings, numbers, quantity, members)
                for subject, settings, numbers in members
            )
            panels.append(Panel(task, title, "R", label, curves, mark=trained))
    of = "Networks of the package" if all(s.shipped for s in subjects) else "Networks"
    return Plot(
        7, "generalisation", "Familiarity against R",
        f"{CAPTION} {of}, the best seed of each.", tuple(panels), (), (), (), columns=len(by_task),
    )  # fmt: skip


def of_shelf(shelf: Shelf) -> list[Subject]:
    """The familiarity networks of a shelf."""
    return [Subject(n, shelf) for n in shelf.names() if n.startswith("familiarity")]


def numbers(subjects: Sequence[Subject]) -> dict[str, Any]:
    """The numbers behind the plot, by checksum of the weights, or by name for those of runs."""
    return {
        s.card.sha256 if s.shipped else str(s.source): {
            "network": str(s.source),
            **asdict(s.measured()),
        }
        for s in subjects
    }


def _curve(
    subject: Subject,
    settings: dict[str, Any],
    measured: Generalisation,
    quantity: str,
    members: Sequence[Any],
) -> Curve:
    model = settings["model"]
    twice = sum(other["model"] == model for _, other, _ in members) > 1
    name = model_style(model).name
    x, y = np.array(measured.distances, float), np.array(getattr(measured, quantity))
    none = np.full(len(x), np.nan)
    return Curve(model, f"{name} ({subject.source})" if twice else name, x, y, none, none, x[-1])


@cache
def _known() -> dict[str, Generalisation]:
    path = Path(str(files("stpn") / "data" / "generalisation.json"))
    content = read_object(path, remedy="install the package again")
    return {
        checksum: build(Generalisation, {k: v for k, v in entry.items() if k != "network"})
        for checksum, entry in content.items()
    }
