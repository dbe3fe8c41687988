"""Trained networks that come with the package, each with a card that says where it comes from.

    network = stpn.pretrained("art-stpnr")    # ready to use, nothing is downloaded
    print(stpn.pretrained.card("art-stpnr"))
    stpn.pretrained.names(), stpn.pretrained.cards()

A network is two files: NAME.safetensors with its weights by their usual names, and NAME.json, the
card: task, model, seed, figures, the command that trained it, versions and commit. `ship` makes
both from a run (`stpn export RUNS --networks DIRECTORY`). Reading cards needs no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stpn import cores, experiments, paper
from stpn._files import explain_os_errors, half_of_memory, read_file, write_atomic
from stpn._json import read_object, write_json
from stpn._typed import build
from stpn.config import RunConfig, from_dict, trusted
from stpn.errors import CheckpointError, ConfigError, RunError, unknown
from stpn.results import RunResult, rounded
from stpn.runs import Run
from stpn.summary import RENAMED
from stpn.tasks import registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from stpn.training.trainer import Evaluation, Trainer

SHELF = Path(__file__).parent / "data" / "networks"
LARGEST = 2_500_000
"""Bytes of the largest network that is worth carrying in every install."""


@dataclass(frozen=True)
class Card:
    """What is known about a trained network."""

    name: str
    task: str
    model: str
    seed: int
    hidden_size: int
    parameters: int
    metric: str  # what proficiency is: test_accuracy | accuracy | reward
    proficiency: float
    power: float
    done: int  # epochs, iterations or steps of training
    paper_length: int  # as many as the paper's
    unit: str
    chosen: str  # how this seed was chosen
    command: str  # what trained it
    paper: dict[str, list[float]] | None  # mean and deviation of the paper's figures
    versions: dict[str, str]
    commit: str | None
    config: dict[str, Any]  # settings of the run
    sha256: str  # of the weights

    def __str__(self) -> str:
        theirs = self.paper or {}
        metric = self.metric.replace("_", " ")
        unit = "%" if "accuracy" in self.metric else ""
        length = f"{self.done:,}"
        if self.done < self.paper_length:
            length += f" of the paper's {self.paper_length:,}"
        facts = {
            "task": f"{experiments.get(self.task).title} ({self.task})",
            metric: f"{self.proficiency:.4g}{unit}{_beside(theirs.get('proficiency'), metric)}",
            "power": f"{self.power:.3g}{_beside(theirs.get('power'), 'power')}",
            "training": f"{length} {self.unit}s, seed {self.seed}: {self.chosen}",
            "command": self.command,
            "versions": ", ".join(f"{name} {number}" for name, number in self.versions.items()),
            "commit": self.commit or "unknown",
        }
        width = max(map(len, facts))
        title = (
            f"{self.name}: {cores.get(self.model).description}, {self.hidden_size} hidden units, "
            f"{self.parameters:,} parameters"
        )
        return "\n".join([title, *(f"  {name:<{width}}  {fact}" for name, fact in facts.items())])


class Shelf:
    """A directory of trained networks; `stpn.pretrained` is the one in the package."""

    def __init__(self, directory: Path = SHELF) -> None:
        self.directory = directory

    def __call__(self, name: str, *, device: str | torch.device = "cpu") -> nn.Module:
        """The network of that name with its trained weights, in evaluation mode, on `device`
        ("auto": a GPU where there is one).

        Networks of supervised tasks take x (B, T, I) and give logits; those of reinforcement
        learning are agents (`stpn.training.agent.Agent`).
        """
        return _network(from_dict(self.card(name).config), self._weights(name), device)

    def names(self) -> list[str]:
        """All names, by task and model in the paper's order."""
        found = [path.stem for path in self.directory.glob("*.json")]
        return sorted(found, key=lambda name: _rank(*_split(name)))

    def card(self, name: str) -> Card:
        if name not in (known := self.names()):
            raise ConfigError(unknown("network", name, dict.fromkeys(known)))
        path = self.directory / f"{name}.json"
        content = read_object(path, remedy="install the package again")
        content = {RENAMED.get(name, name): value for name, value in content.items()}
        try:
            card = build(Card, content)
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged or of another version: {error}") from error
        config = registry.get(card.task).config.migrated(card.config)
        if config != card.config:  # the names of an earlier version
            card = replace(card, config=config, command=command(from_dict(config)))
        return card

    def cards(self) -> list[Card]:
        return [self.card(name) for name in self.names()]

    def measure(self, name: str, **settings: Any) -> tuple[Trainer, Evaluation]:
        """The figures of a network, measured again as at the end of its training.

        `settings` change the configuration: with `final_episodes=200` it is a quick look.
        """
        with self.restored(name, **settings) as trainer:
            return trainer, trainer.evaluate()

    @contextmanager
    def restored(self, name: str, *, env: str | None = None, **settings: Any) -> Iterator[Trainer]:
        """The trainer of a network's run with its trained weights, to look at, measure or use."""
        from stpn.training import checkpoint, session

        config = trusted(from_dict({**self.card(name).config, **settings}), env, name)
        config = session.possible_here(config, settings)
        with session.built(config, plain=True) as trainer:
            checkpoint.load_module(trainer.model, self._weights(name))
            yield trainer

    def _weights(self, name: str) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self.directory / f"{name}.safetensors"
        content = read_file(path, most=half_of_memory())
        if hashlib.sha256(content).hexdigest() != self.card(name).sha256:
            raise CheckpointError(f"{path} is damaged: it is not the file that its card describes")
        try:
            return load(content)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


pretrained = Shelf()


def is_shipped(source: str | Path) -> bool:
    """Whether this names a network of the package; if not, it is the directory of a run."""
    if Path(source).exists():
        return False
    if str(source) not in (known := pretrained.names()):
        close = difflib.get_close_matches(str(source), known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise RunError(
            f"there is no run at {source}, and no network of the package has that name{hint}; "
            "`stpn list` names them, `stpn list --runs DIRECTORY` the runs"
        )
    return True


def settings_of(source: str | Path) -> dict[str, Any]:
    """The configuration of a run, or of the run that a network of the package comes from."""
    return pretrained.card(str(source)).config if is_shipped(source) else Run.open(source).config


def opened(
    source: str | Path, *, env: str | None = None, **settings: Any
) -> AbstractContextManager[Trainer]:
    """The trainer of a run, or of a network of the package, with the network as it was trained.

    `env` and `settings` as in `stpn.training.session.restored`.
    """
    from stpn.training import session

    if is_shipped(source):
        return pretrained.restored(str(source), env=env, **settings)
    return session.restored(source, env=env, **settings)


def load(
    run: str | Path, *, env: str | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """The network of a run with its weights as saved, in evaluation mode, on `device`, wherever it
    was trained; `.config` has the run's settings. The same kinds of networks as `stpn.pretrained`.

        network = stpn.load("runs/art/stpnr/seed0")

    A run in an environment "module:Name" imports that module: repeat the name as `env`.
    """
    from stpn.training import checkpoint

    found = Run.open(run)
    config = trusted(from_dict(found.config), env, found.path)
    with checkpoint.explain_misfit(found.checkpoint, registry.get(config.task)):
        return _network(config, checkpoint.read(found.checkpoint)["trainer"]["model"], device)


def network(source: str | Path) -> nn.Module:
    """The network of a run, or one of the package."""
    return pretrained(str(source)) if is_shipped(source) else load(source)


def _network(
    config: RunConfig, weights: dict[str, Tensor], device: str | torch.device
) -> nn.Module:
    import torch

    from stpn import devices
    from stpn.training import checkpoint

    place = devices.find(device)
    with torch.random.fork_rng(devices=[]):  # initial weights, which are not kept
        network: Any = registry.build_network(config)
    checkpoint.load_module(network, weights)
    network.config = config
    return network.eval().to(place)


class TooLarge(ConfigError):
    """A network that is not carried in the package."""


def best(results: Iterable[RunResult]) -> list[tuple[RunResult, int]]:
    """Of each task and model the finished result with the best figure, and of how many it is that.

    Tasks of the paper only: a network for some other environment says nothing by its name.
    """
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for result in results:
        summary = result.summary
        if not summary.finished or summary.proficiency is None:
            continue
        if experiments.get(result.task).models:
            groups.setdefault((result.task, result.model), []).append(result)
    return [
        (max(groups[key], key=lambda r: (r.summary.proficiency, -r.seed)), len(groups[key]))
        for key in sorted(groups, key=lambda key: _rank(*key))
    ]


def ship(run: Run, of: int, directory: Path) -> Card:
    """Write the network of a finished run, the best of `of`, with its card into `directory`."""
    from safetensors.torch import save

    from stpn.training import checkpoint

    summary = run.summary
    assert summary is not None, "only finished runs are shipped"
    config = from_dict(run.config)
    weights = checkpoint.weights(run.checkpoint)
    content = save({name: tensor.contiguous() for name, tensor in weights.items()})
    name = f"{config.task}-{config.model}"
    if len(content) > LARGEST:
        raise TooLarge(
            f"{name} has {len(content):,} bytes, more than the {LARGEST:,} of a shipped network"
        )
    card = Card(
        name=name,
        task=config.task,
        model=config.model,
        seed=config.seed,
        hidden_size=config.hidden_size or 0,
        parameters=summary.parameters or 0,
        metric=summary.metric,
        proficiency=rounded(summary.proficiency),
        power=rounded(summary.power),
        done=summary.done,
        paper_length=summary.paper_length,
        unit=summary.unit,
        chosen=_chosen(summary.metric, of),
        command=command(config),
        paper=summary.paper,
        versions=summary.versions,
        commit=summary.commit,
        config=run.config,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    with explain_os_errors(f"create {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / f"{name}.safetensors", content)
    write_json(directory / f"{name}.json", dataclasses.asdict(card))
    return card


def confirm(best: RunResult, of: int, directory: Path) -> bool:
    """Whether the best of `of` results is in `directory` already; its card then says of how many.

    For a result whose run is no longer there to be shipped.
    """
    shelf, name = Shelf(directory), f"{best.task}-{best.model}"
    if name not in shelf.names() or (card := shelf.card(name)).seed != best.seed:
        return False
    if card.config != best.config:
        return False
    card = dataclasses.replace(card, chosen=_chosen(card.metric, of))
    write_json(directory / f"{name}.json", dataclasses.asdict(card))
    return True


def _chosen(metric: str, of: int) -> str:
    return f"the highest {metric.replace('_', ' ')} of {of} seeds" if of > 1 else "the only seed"


def command(config: RunConfig) -> str:
    """The `stpn train` that makes this run: what is not a default is a flag."""
    env = {"env": config.env} if hasattr(config, "env") else {}
    usual = experiments.default_config(config.task, config.model, **env).to_dict()
    # Some settings decide the defaults of all others.
    chosen = {name: getattr(config, name) for name in ("preset", "rllib", "algo") if name in usual}
    default = experiments.default_config(config.task, config.model, **env, **chosen).to_dict()
    default |= {name: usual[name] for name in chosen}
    task = ["--env", config.env] if hasattr(config, "env") else [config.task]
    words = ["stpn", "train", *task, "--model", config.model, "--seed", str(config.seed)]
    for name, value in config.to_dict().items():
        if name in ("task", "model", "seed") or value == default[name]:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return " ".join(words)


def _split(name: str) -> tuple[str, str]:
    task, _, model = name.rpartition("-")
    return task, model


def _rank(task: str, model: str) -> tuple[int, int, str, str]:
    tasks, models = list(experiments.TASKS), cores.names()
    return (
        tasks.index(task) if task in tasks else len(tasks),
        models.index(model) if model in models else len(models),
        task,
        model,
    )


def _beside(theirs: list[float] | None, metric: str) -> str:
    return "" if theirs is None else f" (paper: {paper.spread_text(theirs, metric)})"
