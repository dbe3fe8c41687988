"""A sweep on Ray: the jobs of `stpn.sweep` in processes on any node of a cluster.

    with connected(address) as ray:
        results = RayExecutor(ray).execute(jobs, on_event)

Run directories look as they do after a local sweep. A worker or node that dies costs what was done
since the last checkpoint: the run goes on elsewhere, from that checkpoint. A driver that dies takes
its workers along and loses as little: the same command goes on.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import stpn
from stpn._files import explain_os_errors, write_atomic
from stpn.errors import ConfigError, StpnError
from stpn.runs import Run
from stpn.scale.cluster import ClusterError, Resources, require_room
from stpn.scale.transfer import pack, unpack
from stpn.scale.worker import Order, Report, Worker
from stpn.sweep import Event, Job, OnEvent, Result, forwarded_signals, settled

Storage = Literal["auto", "shared", "fetch"]

LOSSES_IN_A_ROW = 3
"""A run whose workers die so often without a checkpoint in between is itself the cause."""
TURN_SECONDS = 0.2
LOOK_SECONDS = 5.0
ROOM_SECONDS = 60.0
"""How long a cluster may lack a node that could take a run; a replacement may be on its way."""


@dataclass
class _Flight:
    """A job and the worker that has it."""

    job: Job
    worker: Any
    saved_before: int  # when the run's checkpoint was written, as of the start
    held: ExitStack = field(default_factory=ExitStack)
    """The run's lock, if the worker has a directory of its own and the driver writes the run."""
    holds: bool = False
    placed: bool = False  # it has been heard of
    stopping: bool = False
    last: dict[str, Any] = field(default_factory=dict)  # event

    def hold(self) -> None:
        if not self.holds:
            self.held.enter_context(Run(self.job.path).lock())
            self.holds = True


class RayExecutor:
    """Worker processes on a Ray cluster that this process is connected to.

    - cpus, memory: what each run reserves. None: as many CPUs as it has threads, no bytes.
    - jobs: runs at the same time at most. None: as many as the cluster has room for.
    - storage: "shared", the workers write into the run directories themselves; "fetch", they send
      every checkpoint; "auto", each worker finds out whether it sees the driver's directory.
    """

    def __init__(
        self,
        ray: Any,
        *,
        cpus: float | None = None,
        memory: int | None = None,
        jobs: int | None = None,
        storage: Storage = "auto",
    ) -> None:
        if jobs is not None and jobs < 1:
            raise ConfigError(f"jobs must be >= 1, not {jobs}")
        Resources(1.0 if cpus is None else cpus, memory).check()
        self._ray = ray
        self._cpus, self._memory = cpus, memory
        self._limit = jobs
        self._storage = storage
        self._token = None if storage == "fetch" else f".stpn-{uuid.uuid4().hex}"
        self._waiting: deque[Job] = deque()
        self._flights: dict[Any, _Flight] = {}  # by the reference of the pending poll
        self._losses: dict[Job, int] = {}  # workers that died in a row without a checkpoint
        self._stopping = False
        self._looked = time.monotonic()
        self._had_room: dict[Job, float] = {}

    def execute(self, jobs: Sequence[Job], on_event: OnEvent) -> list[Result]:
        results = settled(jobs)
        self._waiting.extend(job for job in jobs if job not in results)
        for job in self._waiting:
            require_room(self._ray, self._needs(job))
        roots = {job.root for job in self._waiting}
        try:
            self._mark(roots)
            with forwarded_signals(self._request_stop):
                while self._waiting or self._flights:
                    for event in self._turn():
                        if event.kind == "result":
                            results[event.job] = event.content["result"]
                        on_event(event)
        finally:
            for flight in self._flights.values():
                self._release(flight)
            if self._token is not None:
                for root in roots:
                    (root / self._token).unlink(missing_ok=True)
        return [results.get(job, Result(job, "stopped", "not started")) for job in jobs]

    def _turn(self) -> list[Event]:
        """Start what there is room for, then see what came."""
        if self._stopping:
            self._waiting.clear()
        while self._waiting and (self._limit is None or len(self._flights) < self._limit):
            self._launch(self._waiting.popleft())
        # not for ever: someone may have asked to stop
        ready, rest = self._ray.wait(list(self._flights), timeout=TURN_SECONDS)
        if rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        events: list[Event] = []
        for reference in ready:
            events += self._receive(reference)
        return events + (self._stop_all() if self._stopping else self._without_room())

    def _request_stop(self) -> None:
        self._stopping = True  # and no more: a signal handler must not call Ray

    def _needs(self, job: Job) -> Resources:
        cpus = (job.config.threads or 1) if self._cpus is None else self._cpus
        return Resources(cpus, self._memory)

    def _mark(self, roots: set[Path]) -> None:
        """Leave a file by which a worker recognises the driver's directory."""
        for root in roots:
            with explain_os_errors(f"create {root}"):
                root.mkdir(parents=True, exist_ok=True)
            if self._token is not None:
                write_atomic(root / self._token, b"")

    def _launch(self, job: Job) -> None:
        """Ask for a worker; the cluster starts it when there is room."""
        order = Order(
            config=job.config.to_dict(),
            root=str(job.root.resolve()),
            token=self._token,
            files={} if self._storage == "shared" else pack(job.path),
            version=stpn.__version__,
            must_share=self._storage == "shared",
        )
        options = {**self._needs(job).options(), "max_concurrency": 3, "max_restarts": 0}
        worker = self._ray.remote(Worker).options(**options).remote()
        worker.work.remote(order)
        self._poll(_Flight(job, worker, saved_before=_when_saved(job)))

    def _poll(self, flight: _Flight) -> None:
        self._flights[flight.worker.poll.remote()] = flight

    def _receive(self, reference: Any) -> list[Event]:
        flight = self._flights.pop(reference)
        job = flight.job
        try:
            report: Report = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._lost(flight, error)
        flight.placed = True
        try:
            # files are on disk before anyone is told
            if report.remote:
                flight.hold()
                unpack(report.files, job.path)
        except StpnError as error:
            return [self._ended(flight, Result(job, "failed", str(error)))]
        events = [Event(job, content["kind"], content) for content in report.events]
        flight.last = report.events[-1] if report.events else flight.last
        if report.ended:
            events.append(self._ended(flight, _result(job, flight.last)))
        else:
            self._poll(flight)
        return events

    def _lost(self, flight: _Flight, error: Exception) -> list[Event]:
        """A worker died: take the run up again, unless it does nothing but kill workers."""
        job = flight.job
        cause = str(error).strip().splitlines()[0]
        if self._stopping:
            message = "its worker died; its last checkpoint is kept"
            return [self._ended(flight, Result(job, "stopped", message))]
        if _when_saved(job) != flight.saved_before:
            self._losses[job] = 0
        self._losses[job] = losses = self._losses.get(job, 0) + 1
        if losses >= LOSSES_IN_A_ROW:
            message = f"its worker died {losses} times without a checkpoint in between: {cause}"
            return [self._ended(flight, Result(job, "failed", message))]
        self._release(flight)
        self._waiting.appendleft(job)
        return [Event(job, "lost", {"kind": "lost", "message": cause})]

    def _stop_all(self) -> list[Event]:
        """Workers save and end; what waits for a place on the cluster need not wait any longer."""
        events = []
        for reference, flight in list(self._flights.items()):
            if not flight.placed:
                del self._flights[reference]
                events.append(self._ended(flight, Result(flight.job, "stopped", "not started")))
            elif not flight.stopping:
                flight.stopping = True
                flight.worker.stop.remote()
        return events

    def _without_room(self) -> list[Event]:
        """Give up runs for which the cluster has lost its last node that could take them."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        events = []
        for reference, flight in list(self._flights.items()):
            try:
                if not flight.placed:
                    require_room(self._ray, self._needs(flight.job))
                self._had_room[flight.job] = now
            except ClusterError as error:
                if now - self._had_room.setdefault(flight.job, now) > ROOM_SECONDS:
                    del self._flights[reference]
                    events.append(self._ended(flight, Result(flight.job, "failed", str(error))))
        return events

    def _ended(self, flight: _Flight, result: Result) -> Event:
        self._release(flight)
        return Event(flight.job, "result", {"result": result})

    def _release(self, flight: _Flight) -> None:
        self._ray.kill(flight.worker)
        flight.held.close()


def _when_saved(job: Job) -> int:
    try:
        return Run(job.path).checkpoint.stat().st_mtime_ns
    except OSError:
        return 0


def _result(job: Job, last: dict[str, Any]) -> Result:
    if last.get("kind") == "finished":
        return Result(job, "finished")
    if last.get("kind") == "stopped":
        return Result(job, "stopped", "stopped and saved")
    return Result(job, "failed", str(last.get("message", "its worker ended without a word")))
