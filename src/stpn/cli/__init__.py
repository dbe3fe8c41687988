"""The `stpn` command: one file per command, imported only when it is called.

To add a command: a module here with `run(arguments: list[str]) -> int` (parse with tyro, return the
exit code), and one line in COMMANDS. Errors derived from `stpn.errors.StpnError` or
`stpn._extras.MissingExtra` are printed as one sentence; just raise them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from stpn import __version__
from stpn._extras import MissingExtra
from stpn.errors import ConfigError, StpnError

COMMANDS = {
    "train": (
        "stpn.cli.train",
        "train a model on a task, or in any Gymnasium environment",
    ),
    "resume": ("stpn.cli.resume", "go on with a run that was stopped"),
    "sweep": ("stpn.cli.sweep", "a whole grid of models and seeds in worker processes"),
    "tune": ("stpn.cli.tune", "search for good settings on Ray Tune"),
    "show": ("stpn.cli.show", "what a run, or a network of the package, is and how far it got"),
    "eval": ("stpn.cli.evaluate", "measure a run's network, or one of the package, again"),
    "energy": ("stpn.cli.energy", "joules per step by term, break-even of two networks, devices"),
    "analog": ("stpn.cli.analog", "a study of networks on devices with faults"),
    "watch": ("stpn.cli.watch", "one episode of an agent as GIF or MP4, with its power"),
    "list": (
        "stpn.cli.catalogue",
        "tasks and models, networks of the package, runs on disk",
    ),
    "export": ("stpn.cli.export", "runs as small result files"),
    "export-onnx": ("stpn.cli.export_onnx", "one step of a trained network as an ONNX file"),
    "export-hub": ("stpn.cli.export_hub", "trained networks with cards, for a model hub"),
    "report": ("stpn.cli.report", "the paper's tables and figures from runs, ours beside theirs"),
    "figure": ("stpn.cli.figure", "synapses or learnt rates of one network"),
    "doctor": ("stpn.cli.doctor", "what this machine has, what runs where, whether it is right"),
    "bench": ("stpn.cli.bench", "speed of kernels and trainers beside baselines"),
}

FAILED, MISUSED = 1, 2
INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]  # `stpn help train`
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    name, *rest = arguments
    if name == "--version":
        print(f"stpn {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        print(f"stpn: unknown command {name!r}.{hint} `stpn --help` lists them.", file=sys.stderr)
        return MISUSED
    try:
        with _ctrl_c_while_importing():
            module = importlib.import_module(COMMANDS[name][0])
            from stpn import plugins
            from stpn.cli import _optional

            plugins.load()
            with _optional.registry:
                return int(module.run(rest))
    except KeyboardInterrupt:
        print(f"stpn {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (StpnError, MissingExtra) as error:
        print(f"stpn {name}: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, ConfigError) else FAILED
    except BrokenPipeError:
        # the reader of a pipe went away (`stpn list | head`): not an error worth a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


@contextmanager
def _ctrl_c_while_importing() -> Iterator[None]:
    """While inside, Ctrl-C in the middle of an import ends the process at once.

    Large libraries turn a KeyboardInterrupt there into errors of their own, or swallow it. Nothing
    has been begun yet that could be left half done. Elsewhere it is a KeyboardInterrupt as always.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                os.write(2, b"stpn: interrupted\n")
                os._exit(INTERRUPTED)
            frame = frame.f_back
        raise KeyboardInterrupt

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield  # ignored, as by nohup, or somebody else's
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "Short-Term Plasticity Neurons: train, measure and compare.",
            "",
            "usage: stpn COMMAND ...    (stpn COMMAND --help for its options)",
            "",
            *lines,
            "",
            "To begin: stpn train art",
            "Reinforcement learning: stpn train maze, stpn train --env CartPole-v1",
        ]
    )
