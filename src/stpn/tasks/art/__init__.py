"""Associative retrieval: read letter-digit pairs, then answer with one letter's digit.

`c9k8j3??k` asks for k's digit: 8. Letters are drawn without replacement, digits with. Symbols are
kept as small integers, a-z 0-25, 0-9 26-35, ? 36; `one_hot` makes a core's input of them.

>>> data = dataset(train=1000, validation=100, test=100, seed=0)
>>> data.train.symbols.shape, data.train.answers.shape
(torch.Size([1000, 9]), torch.Size([1000]))
>>> decode(encode("c9k8j3??k")), solve("c9k8j3??k")
('c9k8j3??k', '8')
"""

from __future__ import annotations

import importlib
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stpn.config import RunConfig, require
from stpn.tasks.registry import Task

if TYPE_CHECKING:
    from stpn.tasks.art.data import ALPHABET as ALPHABET
    from stpn.tasks.art.data import DIGITS as DIGITS
    from stpn.tasks.art.data import LETTERS as LETTERS
    from stpn.tasks.art.data import NUM_SYMBOLS as NUM_SYMBOLS
    from stpn.tasks.art.data import QUERY as QUERY
    from stpn.tasks.art.data import Dataset as Dataset
    from stpn.tasks.art.data import Split as Split
    from stpn.tasks.art.data import answer as answer
    from stpn.tasks.art.data import dataset as dataset
    from stpn.tasks.art.data import decode as decode
    from stpn.tasks.art.data import encode as encode
    from stpn.tasks.art.data import one_hot as one_hot
    from stpn.tasks.art.data import sequences as sequences
    from stpn.tasks.art.data import solve as solve
    from stpn.tasks.art.data import split as split
    from stpn.tasks.art.training import ArtTrainer as ArtTrainer
    from stpn.training.supervised import SequenceModel


@dataclass(frozen=True, kw_only=True)
class ArtConfig(RunConfig):
    """Associative retrieval: read three letter-digit pairs, answer with one letter's digit."""

    epochs: int = 200
    """Passes through the training set."""
    batch_size: int = 128
    """Sequences in a gradient step; the last one of an epoch may be smaller."""
    train_size: int = 100_000
    """Training sequences."""
    validation_size: int = 10_000
    """Validation sequences, measured after each epoch."""
    test_size: int = 20_000
    """Test sequences, measured once at the end."""

    total_field: typing.ClassVar[str] = "epochs"

    def check(self) -> None:
        super().check()
        for name in ("batch_size", "train_size", "validation_size", "test_size"):
            require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))


class Art(Task):
    def build_network(self, config: ArtConfig) -> SequenceModel:
        from stpn.tasks.art.training import build_network

        return build_network(config)

    def build_trainer(self, config: ArtConfig, *, plain: bool = False) -> ArtTrainer:
        from stpn.tasks.art.training import ArtTrainer

        return ArtTrainer(config)


TASKS = (Art(name="art", title="Associative retrieval", metric="test_accuracy", config=ArtConfig),)


def __getattr__(name: str) -> Any:
    """Data and training need torch, settings do not."""
    module = "training" if name == "ArtTrainer" else "data"
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
