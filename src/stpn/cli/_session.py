"""What `train` and `resume` share: output options, reporters, the closing words, exit codes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from stpn.config import from_dict
from stpn.errors import ConfigError, StpnError

if TYPE_CHECKING:
    from stpn.training.loop import Reporter, Stop
    from stpn.training.session import Outcome


@dataclass(frozen=True)
class Output:
    """How a command reports."""

    json: bool = False
    """Print JSON, one object a line, and nothing else."""
    quiet: bool = False
    """No progress, only the result."""
    tensorboard: bool = True
    """Write TensorBoard events, if the extra is installed."""


def conduct(work: Callable[[Reporter, Stop], Outcome], output: Output) -> int:
    """Run a session with the reporters that `output` asks for; say how it ended."""
    from stpn.cli import FAILED, MISUSED
    from stpn.cli._progress import emit
    from stpn.training.loop import Stop

    stop = Stop()
    try:
        outcome = work(_reporter(output, stop), stop)
    except StpnError as error:
        if not output.json:
            raise
        emit("error", message=str(error))
        return MISUSED if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        # a second Ctrl-C: the run was not saved now, but its last checkpoint is whole
        if output.json:
            emit("interrupted")
        else:
            print("interrupted; the last checkpoint is kept")
        return 128 + signal.SIGINT
    return conclude(outcome, output, signal_number=stop.signal)


def conclude(outcome: Outcome, output: Output, *, signal_number: int | None = None) -> int:
    """The closing words and the exit code of a session that ended without an error."""
    from stpn.cli._progress import emit
    from stpn.cli._results import print_summary

    command = f"stpn resume {outcome.run.path}"
    if not outcome.finished:
        if output.json:
            emit("stopped", run=str(outcome.run.path), resume=command)
        else:
            print(f"stopped and saved; go on with:\n  {command}")
        return 128 + (signal_number or signal.SIGINT)
    assert outcome.summary is not None
    if output.json:
        emit("finished", run=str(outcome.run.path), summary=outcome.summary.to_dict())
    else:
        title = from_dict(outcome.run.config).title
        print_summary(outcome.summary, outcome.run.path, title)
    return 0


def _reporter(output: Output, stop: Stop) -> Reporter:
    from stpn.cli._progress import Bar, JsonLines, Lines
    from stpn.training import tensorboard
    from stpn.training.loop import Several

    reporters: list[Reporter] = []
    console = Console()
    if output.json:
        reporters.append(JsonLines())
    elif not output.quiet:
        reporters.append(Bar(console, stop) if console.is_terminal else Lines(console))
    if output.tensorboard and tensorboard.available():
        reporters.append(tensorboard.TensorBoard())
    return Several(*reporters)
