"""Search for good settings on Ray Tune: random trials, of which the asynchronous successive halving
algorithm (ASHA) lets only the best go on.

    best = search(config, space, trials=20, out="tune")

A trial is a run like any other; its checkpoints go to `out`, so that a trial whose node dies, or a
whole search that was interrupted, goes on if it is trusted. The best settings are a file that
`stpn train --config` takes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from stpn._extras import need
from stpn._files import explain_os_errors
from stpn._json import read_json, write_json
from stpn.config import RunConfig, from_dict
from stpn.errors import ConfigError, StpnError
from stpn.runs import Run
from stpn.scale.cluster import Resources, connected, require_room
from stpn.scale.space import Space
from stpn.summary import Row
from stpn.training import session
from stpn.training.loop import Reporter
from stpn.training.trainer import Trainer

need("ray.tune", extra="ray")

from ray import tune  # noqa: E402
from ray.tune import Callback  # noqa: E402
from ray.tune.schedulers import AsyncHyperBandScheduler  # noqa: E402
from ray.tune.search.basic_variant import BasicVariantGenerator  # noqa: E402

Metric = Literal["proficiency", "power", "loss"]
MODES = {"proficiency": "max", "power": "min", "loss": "min"}
COLUMNS = ("step", "proficiency", "power", "loss")
RESTARTS = 3
"""How often a trial whose worker died is taken up again."""


class SearchFailed(StpnError):
    """No trial got far enough to be compared."""


@dataclass(frozen=True)
class Trial:
    """One choice of settings and how far it got."""

    settings: dict[str, Any]  # of the space alone
    row: dict[str, Any]  # the last one
    error: str | None


@dataclass(frozen=True)
class Found:
    """What a search found."""

    best: RunConfig
    trials: list[Trial]  # the best first, failures last
    path: Path
    """The file with the best settings."""
    finished: bool
    """False: interrupted; the same search goes on."""


OnTrial = Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]
"""Told of each row of each trial: its name, its settings, the row."""


def search(
    config: RunConfig,
    space: Space,
    *,
    trials: int,
    out: str | Path = "tune",
    metric: Metric = "proficiency",
    grace: int | None = None,
    reduction: float = 3.0,
    jobs: int | None = None,
    address: str | None = None,
    trusted: bool = False,
    on_trial: OnTrial | None = None,
) -> Found:
    """Try `trials` points of `space` around `config`; write the best to `out/<task>/<model>`.

    - grace: units that every trial may train before it can be given up. None: a ninth of all.
    - reduction: one trial in so many goes on at each of the halvings.
    - jobs: trials at the same time at most. None: as many as the cluster has room for.
    - trusted: go on with a search that was begun in `out`. Ray keeps it as pickles, and reading
      those executes what is in them.
    """
    if trials < 1:
        raise ConfigError(f"trials must be >= 1, not {trials}")
    if not reduction > 1:
        raise ConfigError(f"reduction must be > 1, not {reduction}")
    if grace is not None and not 1 <= grace <= config.total:
        raise ConfigError(f"grace must be between 1 and {config.total}, not {grace}")
    config.check()
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    place = (Path(out) / config.task / config.model).resolve()
    plan = _Plan(
        config=config.to_dict(),
        space={name: asdict(domain) for name, domain in space.items()},
        trials=trials,
        metric=metric,
        grace=grace or max(1, config.total // 9),
        reduction=reduction,
    )
    plan.claim(place)
    if not trusted and (place / "ray").exists():
        raise ConfigError(
            f"{place} holds a search that was begun. Ray keeps it as pickles, and reading those "
            "executes what is in them: add --trusted to go on if they are yours, or choose another "
            "--out"
        )
    with connected(address) as ray:
        resources = Resources(cpus=config.threads or 1)
        require_room(ray, resources)
        tuner = _tuner(plan, space, place, resources, jobs)
        with _listening(on_trial):
            results = tuner.fit()
    return _conclude(plan, results, place)


@dataclass(frozen=True)
class _Plan:
    """All that defines a search; kept beside it so that another is not taken for it."""

    config: dict[str, Any]
    space: dict[str, Any]
    trials: int
    metric: Metric
    grace: int
    reduction: float

    @property
    def total(self) -> int:
        return from_dict(self.config).total

    def claim(self, place: Path) -> None:
        file = place / "search.json"
        mine = _plain(asdict(self))
        if file.exists():
            if read_json(file) != mine:
                raise ConfigError(
                    f"{place} holds another search (search.json there); choose another --out"
                )
            return
        with explain_os_errors(f"create {place}"):
            place.mkdir(parents=True, exist_ok=True)
        write_json(file, mine)


def _tuner(
    plan: _Plan,
    space: Space,
    place: Path,
    resources: Resources,
    jobs: int | None,
) -> Any:
    trainable = tune.with_resources(
        tune.with_parameters(_trial, base=plan.config), {"cpu": resources.cpus}
    )
    domains = {name: domain.domain(tune) for name, domain in space.items()}
    experiment = place / "ray"
    if tune.Tuner.can_restore(str(experiment)):
        return tune.Tuner.restore(
            str(experiment), trainable, resume_errored=True, param_space=domains
        )
    return tune.Tuner(
        trainable,
        param_space=domains,
        tune_config=tune.TuneConfig(
            metric=plan.metric,
            mode=MODES[plan.metric],
            num_samples=plan.trials,
            search_alg=BasicVariantGenerator(
                random_state=plan.config["seed"], max_concurrent=jobs or 0
            ),
            scheduler=AsyncHyperBandScheduler(
                time_attr="step",
                max_t=plan.total,
                grace_period=plan.grace,
                reduction_factor=plan.reduction,
            ),
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(place),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=RESTARTS),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
            callbacks=[_Tell()],
        ),
    )


def _trial(settings: dict[str, Any], *, base: dict[str, Any]) -> None:
    """In a worker: train a run, row by row, from Tune's checkpoint of it if there is one."""
    config = from_dict({**base, **settings})
    with tempfile.TemporaryDirectory(prefix="stpn-") as root:
        kept = tune.get_checkpoint()
        if kept is not None:
            with kept.as_directory() as directory:
                shutil.copytree(directory, Path(root) / config.directory)
        session.ensure(config, root, reporter=_ToTune())


class _ToTune(Reporter):
    """Rows, each with the checkpoint if there is a new one."""

    def __init__(self) -> None:
        self._unsent = False

    def started(self, run: Run, trainer: Trainer) -> None:
        self._path = run.path

    def saved(self, run: Run) -> None:
        self._unsent = True

    def measured(self, row: Row) -> None:
        checkpoint = tune.Checkpoint.from_directory(self._path) if self._unsent else None
        self._unsent = False
        tune.report(dict(row), checkpoint=checkpoint)


class _Tell(Callback):
    """Passes rows on to whoever searches in this process.

    Tune pickles its callbacks and takes them up again with an interrupted search, so this one
    holds nothing itself.
    """

    listeners: ClassVar[list[OnTrial]] = []

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any
    ) -> None:
        row = {name: result.get(name) for name in COLUMNS}
        for listener in self.listeners:
            listener(str(trial.trial_id), dict(trial.config), row)


@contextmanager
def _listening(on_trial: OnTrial | None) -> Iterator[None]:
    """Tell `on_trial` of every row; what Tune itself prints is not part of the output."""
    stdout = sys.stdout

    def tell(*news: Any) -> None:
        if on_trial is not None:
            with redirect_stdout(stdout):
                on_trial(*news)

    _Tell.listeners.append(tell)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Tell.listeners.remove(tell)


def _conclude(plan: _Plan, results: Any, place: Path) -> Found:
    trials = [
        Trial(
            settings=dict(result.config or {}),
            row={name: (result.metrics or {}).get(name) for name in COLUMNS},
            error=None if result.error is None else str(result.error).strip().splitlines()[-1],
        )
        for result in results
    ]
    sign = -1.0 if MODES[plan.metric] == "max" else 1.0

    def rank(trial: Trial) -> float:
        value = trial.row[plan.metric]
        return float("inf") if value is None else sign * value

    trials.sort(key=rank)
    measured = [trial for trial in trials if trial.row[plan.metric] is not None]
    if not measured:
        causes = [trial.error for trial in trials if trial.error]
        raise SearchFailed(f"no trial was measured: {causes[0] if causes else 'interrupted'}")
    best = from_dict({**plan.config, **measured[0].settings})
    write_json(place / "best.json", best.to_dict())
    write_json(place / "trials.json", {"metric": plan.metric, "trials": list(map(asdict, trials))})
    statuses = {trial.status for trial in results._experiment_analysis.trials}
    finished = len(trials) == plan.trials and statuses <= {"TERMINATED", "ERROR"}
    return Found(best, trials, place / "best.json", finished)


def _plain(value: Any) -> Any:
    """As JSON would return it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
