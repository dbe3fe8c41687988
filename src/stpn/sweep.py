"""A grid of runs: plan it, then let an executor work it off.

    jobs = plan(configs, root)             # what is there already, what is left to do
    results = LocalExecutor(workers=2).execute(jobs, on_event)

An executor calls `stpn.training.session.ensure(config, root)` in another process: it starts the
run, or takes it up where it broke off, or does nothing if it is finished. Another executor, for a
cluster say, is a class with the same `execute`. No torch in this module: workers load it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from stpn.config import RunConfig
from stpn.errors import ConfigError, RunError
from stpn.runs import Run

State = Literal["new", "stopped", "running", "finished", "refused"]
LOG_LINES = 20
# As `python -m` would, but what lies in the current directory is not imported by its name.
WORKER = """import sys
sys.path[:] = [path for path in sys.path if path]
from stpn.cli.worker import work
sys.exit(work())"""


@dataclass(frozen=True)
class Job:
    """One run of the grid and how far it is."""

    config: RunConfig
    root: Path
    state: State
    reason: str = ""  # why it is refused

    @property
    def path(self) -> Path:
        return self.root / self.config.directory

    @property
    def name(self) -> str:
        return self.config.directory.as_posix()


@dataclass(frozen=True)
class Result:
    """How a job ended."""

    job: Job
    status: Literal["finished", "skipped", "stopped", "failed"]
    message: str = ""


@dataclass(frozen=True)
class Event:
    """Something a job reported: "started", "progress", "row", "evaluating", or its "result"."""

    job: Job
    kind: str
    content: dict[str, Any]


OnEvent = Callable[[Event], None]


class Executor(Protocol):
    """Works off jobs somewhere; a job that fails does not stop the others."""

    def execute(self, jobs: Sequence[Job], on_event: OnEvent) -> list[Result]:
        """All results, in the order of `jobs`. Returns early, all saved, when interrupted."""


def plan(configs: Iterable[RunConfig], root: str | Path) -> list[Job]:
    """What each configuration still needs; two that share a run directory are refused."""
    jobs: dict[Path, Job] = {}
    for config in configs:
        config.check()
        path = Path(root) / config.directory
        if path in jobs:
            raise ConfigError(f"the grid contains {config.directory} twice")
        try:
            state, reason = _state(Run(path), config)
        except RunError as error:
            state, reason = "refused", str(error)
        jobs[path] = Job(config, Path(root), state, reason)
    return list(jobs.values())


def settled(jobs: Iterable[Job]) -> dict[Job, Result]:
    """Results of the jobs that need no work, or admit none."""
    known = {"finished": "skipped", "refused": "failed"}
    return {
        job: Result(job, known[job.state], job.reason)  # type: ignore[arg-type]
        for job in jobs
        if job.state in known
    }


def _state(run: Run, config: RunConfig) -> tuple[State, str]:
    if not run.exists:
        return "new", ""
    if run.in_use:
        return "running", ""
    difference = config.contradiction(run.config)
    if difference:
        return "refused", f"{run.path} holds a run with other settings: {difference}"
    # a finished run that was shorter than the grid wants is taken further
    finished = run.summary is not None and run.summary.done >= config.total
    return ("finished" if finished else "stopped"), ""


class LocalExecutor:
    """Worker processes on this machine."""

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(f"jobs must be >= 1, not {workers}")
        self._workers = workers
        self._waiting: deque[Job] = deque()
        self._processes: dict[Job, subprocess.Popen[str]] = {}
        self._events: queue.Queue[Event] = queue.Queue()

    def execute(self, jobs: Sequence[Job], on_event: OnEvent) -> list[Result]:
        results = settled(jobs)
        self._waiting.extend(job for job in jobs if job not in results)
        try:
            with forwarded_signals(self._interrupt):
                while self._waiting or self._processes:
                    while self._waiting and len(self._processes) < self._workers:
                        self._launch(self._waiting.popleft())
                    event = self._next_event()
                    if event is None:
                        continue
                    if event.kind == "result":
                        del self._processes[event.job]
                        results[event.job] = event.content["result"]
                    on_event(event)
        finally:
            self._interrupt()
        return [results.get(job, Result(job, "stopped", "not started")) for job in jobs]

    def _next_event(self) -> Event | None:
        try:
            # not for ever: a signal handler may have emptied the waiting list meanwhile
            return self._events.get(timeout=0.2)
        except queue.Empty:
            return None

    def _launch(self, job: Job) -> None:
        threads = str(job.config.threads or 1)
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            # a group of its own: Ctrl-C reaches the sweep alone, which passes it on once
            start_new_session=True,
        )
        self._processes[job] = process
        threading.Thread(target=self._attend, args=(job, process), daemon=True).start()

    def _attend(self, job: Job, process: subprocess.Popen[str]) -> None:
        """Turn a worker's output into events until it ends."""
        log: deque[str] = deque(maxlen=LOG_LINES)
        last: dict[str, Any] = {}
        with process:
            stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
            assert stdin is not None
            assert stdout is not None
            assert stderr is not None
            reader = threading.Thread(target=log.extend, args=(stderr,), daemon=True)
            reader.start()
            # a worker that dies before it reads says so by its exit code
            with suppress(BrokenPipeError):
                json.dump({"config": job.config.to_dict(), "root": str(job.root)}, stdin)
                stdin.close()
            for line in stdout:
                try:
                    content = json.loads(line)
                    last = {"kind": content.pop("event"), **content}
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # a library printed something of its own
                self._events.put(Event(job, last["kind"], last))
            reader.join()
        result = _result(job, process.returncode, last, log)
        self._events.put(Event(job, "result", {"result": result}))

    def _interrupt(self) -> None:
        self._waiting.clear()
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def _result(job: Job, code: int, last: dict[str, Any], log: Iterable[str]) -> Result:
    kind = last.get("kind")
    if code == 0 and kind == "finished":
        return Result(job, "finished")
    if kind == "stopped":
        return Result(job, "stopped", "stopped and saved")
    if kind == "error":
        return Result(job, "failed", str(last.get("message")))
    tail = "".join(log).strip().splitlines()
    cause = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return Result(job, "failed", f"{cause}: {tail[-1]}" if tail else cause)


class forwarded_signals:
    """While inside, Ctrl-C, SIGTERM and a closed terminal call `interrupt` instead of ending this
    process; what it was started to ignore stays ignored."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt

    def __enter__(self) -> None:
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, lambda *_: self._interrupt())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
