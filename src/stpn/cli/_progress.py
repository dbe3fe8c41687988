"""What training looks like: a live bar, plain lines where there is no terminal, or JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from stpn._json import json_safe
from stpn.cli._format import duration
from stpn.runs import Run
from stpn.summary import Row
from stpn.training.loop import Reporter, Stop
from stpn.training.trainer import Trainer

LINE_SECONDS = 2.0
JSON_SECONDS = 1.0


class _Pace:
    """Rate and time left since this session began."""

    def __init__(self, trainer: Trainer) -> None:
        self._began = time.perf_counter()
        self._progress, self._samples = trainer.progress, trainer.samples

    def rate(self, trainer: Trainer) -> float:
        return (trainer.samples - self._samples) / max(time.perf_counter() - self._began, 1e-9)

    def seconds_left(self, trainer: Trainer) -> float | None:
        worked = trainer.progress - self._progress
        if worked <= 0:
            return None
        elapsed = time.perf_counter() - self._began
        return (trainer.total - trainer.progress) / worked * elapsed


class _WithFacts(Progress):
    """A bar and below it a line of text: both fit a terminal of 80 columns."""

    facts = ""
    stop_request: Stop | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """Drawn by a thread of its own: it says that a stop was noticed, however long an update
        takes."""
        yield self.make_tasks_table(self.tasks)
        facts = self.facts
        if self.stop_request is not None and self.stop_request.requested:
            facts = "stopping after this update (Ctrl-C again to stop at once)"
        if facts:
            yield Text(facts, no_wrap=True, overflow="ellipsis")


class Bar(Reporter):
    """Live: a bar with unit and time left; below it loss, proficiency, power, rate."""

    def __init__(self, console: Console, stop: Stop | None = None) -> None:
        self._console = console
        self._stop = stop
        self._row: Row = {}

    def started(self, run: Run, trainer: Trainer) -> None:
        self._pace = _Pace(trainer)
        self._bar = _WithFacts(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[place]}"),
            console=self._console,
            expand=True,
            refresh_per_second=5,
        )
        self._bar.stop_request = self._stop
        self._task = self._bar.add_task(trainer.config.title, total=trainer.total, place="")
        self._bar.start()

    def progressed(self, trainer: Trainer) -> None:
        self._bar.facts = " · ".join(
            [
                f"loss {trainer.loss:.4g}",
                *_numbers(self._row, trainer),
                f"{self._pace.rate(trainer):,.0f} {trainer.sample_unit}/s",
            ]
        )
        place = f"{trainer.config.unit} {trainer.done:,}/{trainer.total:,}"
        left = duration(self._pace.seconds_left(trainer))
        self._bar.update(self._task, completed=trainer.progress, place=f"{place} · {left} left")

    def measuring(self, trainer: Trainer) -> None:
        self._show_measuring(trainer, "measuring")

    def measured(self, row: Row) -> None:
        self._row = row

    def evaluating(self, trainer: Trainer) -> None:
        self._show_measuring(trainer, "measuring the final numbers")

    def _show_measuring(self, trainer: Trainer, what: str) -> None:
        def show(share: float = 0.0) -> None:
            place = f"{what} {share:.0%}" if share else what
            self._bar.update(self._task, completed=trainer.progress, place=place)

        trainer.on_measuring = show  # type: ignore[method-assign]
        show()

    def ended(self) -> None:
        self._bar.stop()


class Lines(Reporter):
    """A line for a row, not more often than every two seconds: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = float("-inf")

    def started(self, run: Run, trainer: Trainer) -> None:
        self._trainer, self._pace = trainer, _Pace(trainer)
        verb = f"resumes at {trainer.config.unit} {trainer.done}" if trainer.done else "starts"
        self._print(f"{trainer.config.title} {verb} in {run.path}")

    def measured(self, row: Row) -> None:
        trainer, now = self._trainer, time.monotonic()
        if now - self._last < LINE_SECONDS and trainer.done < trainer.total:
            return
        self._last = now
        facts = [
            f"{trainer.config.unit} {row['step']}/{trainer.total}",
            *([] if row["loss"] is None else [f"loss {row['loss']:.4g}"]),
            *_numbers(row, trainer),
            f"{self._pace.rate(trainer):.0f} {trainer.sample_unit}/s",
            f"{duration(self._pace.seconds_left(trainer))} left",
        ]
        self._print("  ".join(facts))

    def evaluating(self, trainer: Trainer) -> None:
        self._print("measuring the final numbers")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class JsonLines(Reporter):
    """One JSON object a line on standard output; the last one says how it ended."""

    def __init__(self) -> None:
        self._last = 0.0

    def started(self, run: Run, trainer: Trainer) -> None:
        self._pace = _Pace(trainer)
        emit("started", run=str(run.path), unit=trainer.config.unit, **trainer.position)

    def progressed(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now - self._last >= JSON_SECONDS:
            self._last = now
            left = self._pace.seconds_left(trainer)
            emit("progress", **trainer.position, loss=trainer.loss, seconds_left=left)

    def measured(self, row: Row) -> None:
        emit("row", **row)

    def evaluating(self, trainer: Trainer) -> None:
        emit("evaluating", **trainer.position)


def emit(event: str, **content: Any) -> None:
    """One line of machine-readable output."""
    print(json.dumps({"event": event, **json_safe(content)}, allow_nan=False), flush=True)


def _numbers(row: Row, trainer: Trainer) -> list[str]:
    facts = []
    if row.get("proficiency") is not None:
        facts.append(f"{trainer.proficiency_name} {row['proficiency']:.4g}")
    if row.get("power") is not None:
        facts.append(f"power {row['power']:.3g}")
    return facts
