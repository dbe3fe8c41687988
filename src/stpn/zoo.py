"""Trained networks that come with the package, each with a card that says where it comes from.

    network = stpn.pretrained("art-stpnr")    # ready to use, nothing is downloaded
    print(stpn.pretrained.card("art-stpnr"))
    stpn.pretrained.names(), stpn.pretrained.cards()

A network is two files: NAME.safetensors with its weights by their usual names, and NAME.json, the
card: task, model, seed, results, the command that trained it, versions and commit. `ship` makes
both from a run (`stpn export RUNS --networks DIRECTORY`). Reading cards needs no torch.

A directory with the same two files as config.json and model.safetensors is a published network
(`stpn.hub` writes it); `load` reads it, and all that takes a run or the name of a network does.
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
from stpn.runs import PUBLISHED, Run, is_published
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
    paper: dict[str, list[float]] | None  # mean and deviation of the paper's numbers
    versions: dict[str, str]
    commit: str | None
    config: dict[str, Any]  # settings of the run
    sha256: str  # of the weights

    def __post_init__(self) -> None:
        if self.done < 0 or self.paper_length < 0:
            raise ValueError("a length in it is negative")
        if any(len(numbers) != 2 for numbers in (self.paper or {}).values()):
            raise ValueError("'paper' must hold a mean and a deviation for each number")

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
        card = _card(read_object(path, remedy="install the package again"), path)
        config = registry.get(card.task).config.migrated(card.config)
        if config != card.config:  # the names of an earlier version
            card = replace(card, config=config, command=command(from_dict(config)))
        return card

    def cards(self) -> list[Card]:
        return [self.card(name) for name in self.names()]

    def measure(self, name: str, **settings: Any) -> tuple[Trainer, Evaluation]:
        """The numbers of a network, measured again as at the end of its training.

        `settings` change the configuration: with `final_episodes=200` it is a quick look.
        """
        with self.restored(name, **settings) as trainer:
            return trainer, trainer.evaluate()

    def restored(
        self, name: str, *, env: str | None = None, **settings: Any
    ) -> AbstractContextManager[Trainer]:
        """The trainer of a network's run with its trained weights, to look at, measure or use."""
        config = trusted(from_dict({**self.card(name).config, **settings}), env, name)
        return _restored(config, self._weights(name), settings)

    def content(self, name: str) -> bytes:
        """The file of its weights, if it is the one that the card describes."""
        return _content(self.directory / f"{name}.safetensors", self.card(name))

    def _weights(self, name: str) -> dict[str, Tensor]:
        return _tensors(self.content(name), self.directory / f"{name}.safetensors")


pretrained = Shelf()


class Published:
    """A directory with a network as model hubs have it: its card in config.json, weights in
    model.safetensors. It may come from anywhere: nothing in it is executed, and what is wrong with
    it is one sentence.
    """

    LIBRARY = "stpn"
    FORMAT = 1
    """Raised when an old directory can no longer be read as a new one."""
    REMEDY = "download or export it again"

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.config = self.directory / "config.json"
        self.weights = self.directory / PUBLISHED

    @property
    def card(self) -> Card:
        content = read_object(self.config, remedy=self.REMEDY)
        if content.pop("library_name", None) != self.LIBRARY:
            raise CheckpointError(
                f"{self.config} is not of a network of {self.LIBRARY}: it does not name it as its "
                "library_name"
            )
        if (found := content.pop("format", None)) != self.FORMAT:
            raise CheckpointError(
                f"{self.config} has format {found!r:.20}, this version of stpn reads {self.FORMAT}"
            )
        card = _card(content, self.config)
        try:
            config = from_dict(card.config)
        except ConfigError as error:
            raise CheckpointError(f"{self.config}: {error}") from error
        for name in ("task", "model", "seed"):
            if getattr(config, name) != getattr(card, name):
                raise CheckpointError(
                    f"{self.config} is damaged: its {name} is {getattr(card, name)!r}, and that of "
                    f"its settings {getattr(config, name)!r}; {self.REMEDY}"
                )
        # not the command that is written there, which people will copy into a shell
        settings = registry.get(card.task).config.migrated(card.config)
        return replace(card, config=settings, command=command(config))

    def content(self) -> bytes:
        """The file of its weights, if it is the one that the card describes."""
        return _content(self.weights, self.card)

    def load(self, *, env: str | None = None, device: str | torch.device = "cpu") -> nn.Module:
        from stpn.training import checkpoint

        config = trusted(from_dict(self.card.config), env, self.directory)
        with checkpoint.explain_misfit(self.weights, config.task, self.REMEDY):
            return _network(config, self._tensors(), device)

    def restored(
        self, *, env: str | None = None, **settings: Any
    ) -> AbstractContextManager[Trainer]:
        """As `Shelf.restored`."""
        config = trusted(from_dict({**self.card.config, **settings}), env, self.directory)
        return _restored(config, self._tensors(), settings)

    def write(self, card: Card, content: bytes) -> None:
        with explain_os_errors(f"create {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
        mark = {"library_name": self.LIBRARY, "format": self.FORMAT}
        write_atomic(self.weights, content)
        write_json(self.config, {**mark, **dataclasses.asdict(card)})

    def _tensors(self) -> dict[str, Tensor]:
        return _tensors(self.content(), self.weights)


def _card(content: dict[str, Any], path: Path) -> Card:
    content = {RENAMED.get(name, name): value for name, value in content.items()}
    try:
        return build(Card, content)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged or of another version: {error}") from error


def _content(path: Path, card: Card) -> bytes:
    content = read_file(path, most=half_of_memory())
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise CheckpointError(f"{path} is damaged: it is not the file that its card describes")
    return content


def _tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


@contextmanager
def _restored(
    config: RunConfig, weights: dict[str, Tensor], settings: dict[str, Any]
) -> Iterator[Trainer]:
    from stpn.training import checkpoint, session

    config = session.possible_here(config, settings)
    with session.built(config, plain=True) as trainer:
        checkpoint.load_module(trainer.model, weights)
        yield trainer


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


def card_of(source: str | Path) -> Card | None:
    """The card of a network of the package, or of a published one; of a run None."""
    if is_shipped(source):
        return pretrained.card(str(source))
    return Published(source).card if is_published(source) else None


def settings_of(source: str | Path) -> dict[str, Any]:
    """The configuration of a run, or of the run that a network comes from."""
    card = card_of(source)
    return Run.open(source).config if card is None else card.config


def opened(
    source: str | Path, *, env: str | None = None, **settings: Any
) -> AbstractContextManager[Trainer]:
    """The trainer of a run, or of a network with a card, with the network as it was trained.

    `env` and `settings` as in `stpn.training.session.restored`.
    """
    from stpn.training import session

    if is_shipped(source):
        return pretrained.restored(str(source), env=env, **settings)
    if is_published(source):
        return Published(source).restored(env=env, **settings)
    return session.restored(source, env=env, **settings)


def load(
    run: str | Path, *, env: str | None = None, device: str | torch.device = "cpu"
) -> nn.Module:
    """The network of a run with its weights as saved, in evaluation mode, on `device`, wherever it
    was trained; `.config` has the run's settings. The same kinds of networks as `stpn.pretrained`.

        network = stpn.load("runs/art/stpnr/seed0")

    Or the directory of a network that `stpn export-hub` wrote, downloaded or your own. A run in an
    environment "module:Name" imports that module: repeat the name as `env`.
    """
    from stpn.training import checkpoint

    if is_published(run):
        return Published(run).load(env=env, device=device)
    found = Run.open(run)
    config = trusted(from_dict(found.config), env, found.path)
    with checkpoint.explain_misfit(found.checkpoint, registry.get(config.task)):
        return _network(config, checkpoint.read(found.checkpoint)["trainer"]["model"], device)


def network(source: str | Path) -> nn.Module:
    """The network of a run, a published one, or one of the package."""
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
    """Of each task and model the best finished result, and of how many it is the best.

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


def described(run: Run, name: str, chosen: str) -> tuple[Card, bytes]:
    """The card of a finished run's network under that name, and the file of its weights."""
    from safetensors.torch import save

    from stpn.training import checkpoint

    summary = run.summary
    if summary is None or summary.proficiency is None or summary.power is None:
        why = "has not finished" if summary is None else "could not be measured"
        raise RunError(f"{run.path} {why}: a card needs its numbers; `stpn resume {run.path}`")
    config = from_dict(run.config)
    weights = checkpoint.weights(run.checkpoint)
    content = save({name: tensor.contiguous() for name, tensor in weights.items()})
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
        chosen=chosen,
        command=command(config),
        paper=summary.paper,
        versions=summary.versions,
        commit=summary.commit,
        config=run.config,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    return card, content


def ship(run: Run, of: int, directory: Path) -> Card:
    """Write the network of a finished run, the best of `of`, with its card into `directory`."""
    name = f"{run.config['task']}-{run.config['model']}"
    metric = experiments.get(run.config["task"]).metric
    card, content = described(run, name, _chosen(metric, of))
    if len(content) > LARGEST:
        raise TooLarge(
            f"{name} has {len(content):,} bytes, more than the {LARGEST:,} of a shipped network"
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
