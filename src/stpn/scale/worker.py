"""The far end of a sweep on Ray: a process on some node that trains one run.

It works in the run directory itself if it can see it (shared storage), else in a directory of its
own, from which every checkpoint travels back with the events. `poll` is how the driver hears of
either; it returns as soon as there is something to say.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stpn
from stpn._extras import need
from stpn.config import RunConfig, from_dict
from stpn.errors import RunInUse, StpnError
from stpn.runs import Run
from stpn.scale.transfer import Files, Outbox, unpack
from stpn.training import session, tensorboard
from stpn.training.loop import Reporter, Several, Stop
from stpn.training.trainer import Row, Trainer

PROGRESS_SECONDS = 1.0
POLL_SECONDS = 10.0
LOCK_SECONDS = 60.0
"""How long the process that died may seem to hold the run on storage shared by several nodes."""


@dataclass(frozen=True)
class Order:
    """One run to bring to its end."""

    config: dict[str, Any]
    root: str
    """Absolute, on the driver's node."""
    token: str | None
    """Name of a file in `root`: who sees it shares the driver's storage. None: nobody does."""
    files: Files
    """What the driver has of the run, for a worker that cannot see it."""
    version: str
    must_share: bool = False
    """Shared storage was promised: not to see it is an error."""

    @property
    def shared(self) -> bool:
        """Whether this process sees the driver's files."""
        return self.token is not None and (Path(self.root) / self.token).exists()


@dataclass
class Report:
    """What a poll returns."""

    events: list[dict[str, Any]] = field(default_factory=list)
    files: Files = field(default_factory=dict)
    """Changed since the last poll, in the order in which they must be written."""
    remote: bool = False
    """The worker has a directory of its own: the driver keeps the run."""
    ended: bool = False


class Worker:
    """A Ray actor with three threads: `work`, `poll` and `stop` must not wait for each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._outbox: Outbox | None = None
        self._ended = False
        self._stop = Stop()

    def work(self, order: Order) -> None:
        """Train to the end; what happens, failure included, is told by `poll`."""
        try:
            self._work(order)
        except StpnError as error:
            self.tell("error", message=str(error))
        except Exception as error:
            self.tell("error", message=f"{type(error).__name__}: {error}")
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def poll(self) -> Report:
        """News, or an empty report after a while."""
        with self._changed:
            self._changed.wait_for(self._has_news, POLL_SECONDS)
            report = Report(self._events, remote=self._outbox is not None, ended=self._ended)
            self._events = []
            if self._outbox is not None:
                report.files = self._outbox.collect()
        return report

    def stop(self) -> None:
        """Finish the update, save, end."""
        self._stop.request()

    def tell(self, kind: str, **content: Any) -> None:
        with self._changed:
            self._events.append({"kind": kind, **content})
            self._changed.notify_all()

    def saved(self) -> None:
        """A checkpoint is on this node's disk."""
        with self._changed:
            if self._outbox is not None:
                self._outbox.due = True
            self._changed.notify_all()

    def _has_news(self) -> bool:
        return bool(self._events) or self._ended or (self._outbox is not None and self._outbox.due)

    def _work(self, order: Order) -> None:
        if order.version != stpn.__version__:
            self.tell(
                "error",
                message=f"the driver has stpn {order.version}, the node {os.uname().nodename} has "
                f"{stpn.__version__}: install the same version everywhere",
            )
            return
        config = from_dict(order.config)
        if order.shared:
            self._train(config, Path(order.root))
            return
        if order.must_share:
            node = os.uname().nodename
            self.tell("error", message=f"{order.root} is not the same directory on {node}")
            return
        root = Path(tempfile.mkdtemp(prefix="stpn-"))
        try:
            path = root / config.directory
            unpack(order.files, path)
            outbox = Outbox(path)
            outbox.collect()  # the driver has these
            self._outbox = outbox
            self._train(config, root)
            self._outbox.due = True
        finally:
            if self._outbox is not None:
                with self._changed:
                    self._outbox.keep()
            shutil.rmtree(root, ignore_errors=True)

    def _train(self, config: RunConfig, root: Path) -> None:
        reporters: list[Reporter] = [_Relay(self)]
        if tensorboard.available():
            reporters.append(tensorboard.TensorBoard())
        outcome = ensure(config, root, Several(*reporters), self._stop)
        if outcome.finished:
            assert outcome.summary is not None
            self.tell("finished", summary=outcome.summary.to_dict())
        else:
            self.tell("stopped")


def ensure(config: RunConfig, root: Path, reporter: Reporter, stop: Stop) -> session.Outcome:
    """`session.ensure`, with patience: the process that was lost may still seem to hold the run,
    for as long as a file server believes in it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return session.ensure(config, root, reporter=reporter, stop=stop)
        except RunInUse:
            if time.monotonic() >= deadline or stop.requested:
                raise
            time.sleep(0.5)


class _Relay(Reporter):
    """What the training loop reports, as events."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._last = 0.0

    def started(self, run: Run, trainer: Trainer) -> None:
        self._worker.tell(
            "started",
            unit=trainer.config.unit,
            **trainer.position,
            host=os.uname().nodename,
            node=need("ray", extra="ray").get_runtime_context().get_node_id(),
            process=os.getpid(),
        )

    def progressed(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._worker.tell("progress", **trainer.position, loss=trainer.loss)

    def measured(self, row: Row) -> None:
        self._worker.tell("row", **row)

    def saved(self, run: Run) -> None:
        self._worker.saved()

    def evaluating(self, trainer: Trainer) -> None:
        self._worker.tell("evaluating", **trainer.position)
