"""What a run measured: the content of summary.json, and of the summary in an exported result."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stpn._typed import build

Row = dict[str, Any]
RENAMED = {"protocol": "paper_length"}  # as summaries and cards of earlier versions have it


@dataclass(frozen=True)
class Rows:
    """How many rows of metrics there are, and a checksum of what they say.

    The seconds that they took are not part of it: a run that was stopped and resumed has the rows
    of one that never was.
    """

    count: int = 0
    checksum: int = 0

    def plus(self, row: Row) -> Rows:
        lasting = {name: value for name, value in row.items() if name != "seconds"}
        return Rows(self.count + 1, zlib.crc32(json.dumps(lasting).encode(), self.checksum))

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Rows:
        found = cls()
        for row in rows:
            found = found.plus(row)
        return found


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The final numbers of a run; of an unfinished one, those of its last measurement."""

    task: str
    model: str
    seed: int
    metric: str  # what proficiency is: test_accuracy | accuracy | reward
    proficiency: float | None  # None: could not be measured
    power: float | None
    power_per_step: list[float | None] = field(default_factory=list)
    power_stretch: float = 1  # time steps that an entry of power_per_step is the mean of
    done: int  # epochs, iterations or steps of training
    paper_length: int  # as many as the paper's training had; 0: the paper has no such run
    unit: str  # what `done` counts, in the singular
    finished: bool
    paper: dict[str, list[float]] | None = None  # mean and deviation of the paper's numbers
    seconds: float | None = None  # of training
    parameters: int | None = None
    rows: int | None = None  # of metrics, when this was written
    rows_checksum: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)  # whatever else the task measures

    def __post_init__(self) -> None:
        if self.done < 0 or self.paper_length < 0 or self.power_stretch <= 0:
            raise ValueError("a length in it is negative")
        if any(len(numbers) != 2 for numbers in (self.paper or {}).values()):
            raise ValueError("'paper' must hold a mean and a deviation for each number")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunSummary:
        """From the form that files have; ValueError says what is wrong with it."""
        known = {f.name for f in dataclasses.fields(cls)} - {"extras"}
        values: dict[str, Any] = {"extras": {}}
        for name, value in content.items():
            name = RENAMED.get(name, name)
            (values if name in known else values["extras"])[name] = value
        return build(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """The form that files have: flat, without what is not known."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        extras = own.pop("extras")
        optional = ("rows", "rows_checksum", "parameters")
        return {k: v for k, v in own.items() if v is not None or k not in optional} | extras

    @property
    def counted(self) -> Rows | None:
        """The rows of metrics that it was written beside, if it says so."""
        return None if self.rows is None else Rows(self.rows, self.rows_checksum or 0)

    @property
    def share_of_paper(self) -> float:
        """Part of the paper's training that this one went through; 1 where the paper has none."""
        return self.done / self.paper_length if self.paper_length else 1.0
