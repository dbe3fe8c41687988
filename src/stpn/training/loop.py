"""The one training loop: drives any `Trainer`, keeps its run on disk, tells reporters.

After every update it asks: is a row due, should I save, did someone ask me to stop? It never saves
a broken network, and whatever ends it, the last checkpoint is whole.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch

from stpn import devices
from stpn._json import json_safe
from stpn.errors import CheckpointError, ConfigError, StpnError
from stpn.runs import Run
from stpn.summary import Rows
from stpn.training import checkpoint, finite
from stpn.training.trainer import Row, Trainer

PROGRESS_SECONDS = 0.2


class Reporter:
    """Told what happens, nothing to do with how: override what you care about."""

    def started(self, run: Run, trainer: Trainer) -> None:
        """The first update is next; `trainer.done` is not 0 if the run is resumed."""

    def progressed(self, trainer: Trainer) -> None:
        """Some updates have been done; called at most five times a second."""

    def measuring(self, trainer: Trainer) -> None:
        """A row of metrics is due: the trainer measures, its `on_measuring` tells how far it is."""

    def measured(self, row: Row) -> None:
        """A row was added to the metrics."""

    def saved(self, run: Run) -> None:
        """A checkpoint was written."""

    def evaluating(self, trainer: Trainer) -> None:
        """Training is over, the final evaluation is next."""

    def ended(self) -> None:
        """Nothing more will come, whatever the reason."""


class Several(Reporter):
    """One reporter that passes everything on to several."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def started(self, run: Run, trainer: Trainer) -> None:
        for reporter in self._reporters:
            reporter.started(run, trainer)

    def progressed(self, trainer: Trainer) -> None:
        for reporter in self._reporters:
            reporter.progressed(trainer)

    def measuring(self, trainer: Trainer) -> None:
        for reporter in self._reporters:
            reporter.measuring(trainer)

    def measured(self, row: Row) -> None:
        for reporter in self._reporters:
            reporter.measured(row)

    def saved(self, run: Run) -> None:
        for reporter in self._reporters:
            reporter.saved(run)

    def evaluating(self, trainer: Trainer) -> None:
        for reporter in self._reporters:
            reporter.evaluating(trainer)

    def ended(self) -> None:
        for reporter in self._reporters:
            reporter.ended()


class Stop:
    """Set by Ctrl-C, SIGTERM, a closed terminal or a caller; looked at between two updates."""

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None
        self._at_once = False

    def request(self) -> None:
        self.requested = True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While inside, the first signal breaks off what is going on (KeyboardInterrupt)."""
        try:
            self._at_once = True
            yield
        finally:
            self._at_once = False

    @contextmanager
    def on_signals(self) -> Iterator[Stop]:
        """First Ctrl-C: finish the update and save. Second: stop here, without saving."""

        def handle(number: int, frame: FrameType | None) -> None:
            self.signal = number
            before, self.requested = self.requested, True
            if before or self._at_once:
                raise KeyboardInterrupt

        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread may install handlers
            return
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # what nohup or a script has this process ignore stays ignored
        handled = [n for n in signals if signal.getsignal(n) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, handle) for number in handled}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


@contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Leave what exists now out of garbage collection: looking through all modules again and again
    takes 7% of an update of ART."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Loop:
    """Training of one run by one process that holds the run's lock."""

    def __init__(self, run: Run, trainer: Trainer, reporter: Reporter, stop: Stop) -> None:
        self.run, self.trainer, self.reporter, self.stop = run, trainer, reporter, stop
        self.rows = Rows()
        self.seconds = 0.0  # of training, over all resumptions
        self.saved_at: int | None = None  # `done` of the last checkpoint
        self.row_due = False  # the row of the last update has not been measured yet
        self._restored = False  # and has no new row yet

    def restore(self, *, lengthen: bool = False) -> None:
        """Take up the run's checkpoint, if it got that far, and forget what came after it.

        `lengthen`: it goes on to its whole length, also if it ended before it.
        """
        kept: Rows | int = 0
        resumed = False
        if not self.run.checkpoint.exists():
            self._refuse_lost_checkpoint()
        else:
            state = checkpoint.read(self.run.checkpoint)
            self._check_identity(state)
            with checkpoint.explain_misfit(self.run.checkpoint, self.trainer):
                own = self.trainer.state_dict()
                self.trainer.load_state_dict(checkpoint.like(state["trainer"], own))
                torch.set_rng_state(state["torch_rng"])
                devices.set_random_state(self.trainer.device, state.get("device_rng"))
                kept = int(state["rows"])
                if "rows_checksum" in state:  # checkpoints of earlier versions have none
                    kept = Rows(kept, int(state["rows_checksum"]))
                self.seconds = float(state["seconds"])
                self.row_due = bool(state.get("row_due", False))
            resumed = lengthen and self.trainer.pass_target()
            if self.trainer.beyond_total:
                unit, total = self.trainer.config.unit, self.trainer.total
                raise ConfigError(
                    f"{self.run.path} has already gone further than {total:,} {unit}s, nothing was "
                    f"changed; `stpn show {self.run.path}` says how far"
                )
            self.saved_at, self._restored = self.trainer.done, True
        self.rows = self.run.truncate(kept)
        if resumed:  # now: whoever resumes it after a kill asks for no length
            self.save()

    def save(self) -> None:
        when = f"{self.trainer.config.unit} {self.trainer.done}"
        finite.check_parameters(self.trainer.model, when)
        state = {
            "trainer": self.trainer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "device_rng": devices.random_state(self.trainer.device),
            "rows": self.rows.count,
            "rows_checksum": self.rows.checksum,
            "row_due": self.row_due,
            "seconds": self.seconds,
            "config": self.trainer.config.to_dict(),
        }
        checkpoint.write(self.run.checkpoint, state, done=self.trainer.done)
        self.saved_at = self.trainer.done
        self.reporter.saved(self.run)

    def train(self) -> bool:
        """Work until all is done (True) or a stop is requested (False); saved in either case."""
        try:
            with _only_new_garbage():
                return self._train()
        except StpnError as error:  # a broken network, a full disk, an environment that fails
            raise type(error)(f"{error}. {self._kept()}") from error

    def _train(self) -> bool:
        trainer, interval = self.trainer, self.trainer.config.checkpoint_seconds
        if self.saved_at is None:
            self.save()  # finds out now, not in an hour, whether the disk can be written
        last_save = last_report = clock = time.perf_counter()
        while (self.row_due or trainer.done < trainer.total) and not self.stop.requested:
            with self._first_steps():
                if not self.row_due:
                    self.row_due = trainer.update()
                row = self._measure() if self.row_due and not self.stop.requested else None
            now = time.perf_counter()
            self.seconds, clock = self.seconds + now - clock, now
            if row is not None:
                self._measured(row)
            if now - last_report >= PROGRESS_SECONDS:
                self.reporter.progressed(trainer)
                last_report = now
            if now - last_save >= interval:
                self.save()
                last_save = time.perf_counter()
        self.save()
        self.reporter.progressed(trainer)
        return trainer.done >= trainer.total and not self.row_due

    @contextmanager
    def _first_steps(self) -> Iterator[None]:
        """Until a resumed run has a new row: its checkpoint may fit in form and yet hold what
        nobody can go on from."""
        with ExitStack() as stack:
            if self._restored:
                misfit = checkpoint.explain_misfit(self.run.checkpoint, self.trainer)
                stack.enter_context(misfit)
            yield

    def _measure(self) -> Row | None:
        """The row that is due; None if a signal breaks it off, to be measured by whoever resumes
        the run: what was learnt need not wait for it."""
        self.reporter.measuring(self.trainer)
        try:
            with self.stop.at_once():
                return self.trainer.measure()
        except KeyboardInterrupt:
            if not self.stop.requested:  # not ours
                raise
            return None

    def _measured(self, row: Row) -> None:
        self.row_due = self._restored = False
        self.trainer.keep(row)
        row = {**json_safe(row), "seconds": round(self.seconds, 3)}
        self.run.append(row)
        self.rows = self.rows.plus(row)
        self.reporter.measured(row)

    def _kept(self) -> str:
        if self.saved_at is None:
            return "There is no checkpoint of this run"
        unit = self.trainer.config.unit
        return f"The checkpoint of {unit} {self.saved_at} is kept in {self.run.path}"

    def _refuse_lost_checkpoint(self) -> None:
        """A run writes its first checkpoint before it learns anything: without one it has nothing,
        or something has been lost."""
        if self.run.summary is not None or self.run.metrics():
            raise CheckpointError(
                f"{self.run.path} has been trained but its checkpoint is missing, so it cannot go "
                "on; nothing was changed (remove the directory to train it anew)"
            )

    def _check_identity(self, state: dict[str, Any]) -> None:
        """A checkpoint that was copied here from another run must not be taken for this one's."""
        theirs = state.get("config")
        if not isinstance(theirs, dict):
            raise CheckpointError(f"{self.run.checkpoint} does not say which run it belongs to")
        difference = self.trainer.config.contradiction(theirs)
        if difference:
            raise CheckpointError(f"{self.run.checkpoint} belongs to another run: {difference}")
