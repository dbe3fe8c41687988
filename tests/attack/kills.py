"""kill -9 at random moments: the run goes on, and ends bit for bit as one that was never killed.

A case is a short training that is killed again and again until it gets through. It saves after
every update, so that most kills fall into a write.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any

from . import Broken, attack

MOST_KILLS = 25


def _settings(random: Random) -> tuple[str, str, dict[str, Any]]:
    common = {"seed": random.randrange(3), "threads": 1, "checkpoint_seconds": 0}
    if random.random() < 0.7:
        sizes = {"epochs": 3, "train_size": 160, "validation_size": 16, "test_size": 16}
        model = random.choice(["stpnr", "stpnl", "lstm"])
        return "art", model, {**common, **sizes, "batch_size": 16, "hidden_size": 5}
    sizes = {"iterations": 6, "eval_every": 2, "eval_episodes": 2, "final_episodes": 2}
    return "maze", "stpnr", {**common, **sizes, "hidden_size": 6}


@attack("kills", isolated=True, hangs=1800.0)  # up to 27 trainings
def killed_run(random: Random) -> str:
    task, model, settings = _settings(random)
    with tempfile.TemporaryDirectory(prefix="stpn-attack-") as scratch:
        whole, cut = Path(scratch) / "whole", Path(scratch) / "cut"
        began = time.monotonic()
        if _finish(_train(task, model, settings, whole)) != 0:
            raise Broken(f"{task} {model} does not train")
        duration = time.monotonic() - began
        kills = 0
        while True:
            child = _train(task, model, settings, cut)
            if kills < MOST_KILLS:
                time.sleep(random.uniform(0, 1.2 * duration))
                os.kill(child, signal.SIGKILL)
            status = _finish(child)
            if status == 0:
                break
            if status != -signal.SIGKILL:
                raise Broken(f"{task} {model} after {kills} kills: could not go on")
            kills += 1
        difference = _difference(_only(whole), _only(cut))
        if difference:
            raise Broken(f"{task} {model} after {kills} kills: other {difference}")
    return f"{kills:2} kills, the same"


def _train(task: str, model: str, settings: dict[str, Any], root: Path) -> int:
    """In a child that is made by fork: torch is loaded already, and no thread runs yet."""
    from stpn import experiments
    from stpn.training import session

    config = experiments.default_config(task, model, **settings)
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        session.ensure(config, root)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _only(root: Path) -> Any:
    from stpn.runs import find

    (run,) = find(root)
    return run


def _difference(a: Any, b: Any) -> str:
    """What differs beside the time that it took; empty if nothing does."""
    from stpn.training import checkpoint

    def lasting(content: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in content.items() if key != "seconds"}

    if a.config != b.config:
        return "settings"
    if list(map(lasting, a.metrics())) != list(map(lasting, b.metrics())):
        return "metrics"
    if lasting(a.summary.to_dict()) != lasting(b.summary.to_dict()):
        return "summary"
    ours, theirs = (lasting(checkpoint.read(run.checkpoint)) for run in (a, b))
    return "" if _same(ours, theirs) else "checkpoint"


def _same(a: Any, b: Any) -> bool:
    import numpy as np
    import torch

    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or (a != a and b != b)
