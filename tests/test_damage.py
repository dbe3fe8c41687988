"""One damaged file among many: it is named in a sentence, and everything else goes on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from stpn import experiments, zoo
from stpn.cli import main
from stpn.errors import CheckpointError, ConfigError, StpnError
from stpn.report.build import gather
from stpn.runs import Run
from stpn.training import checkpoint, session

TINY = {"epochs": 1, "train_size": 60, "validation_size": 20, "test_size": 20, "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, good and bad, of which the second is to be damaged."""
    root = tmp_path_factory.mktemp("trained")
    for name, seed in (("good", 0), ("bad", 1)):
        config = experiments.default_config("art", "stpnr", seed=seed, **TINY)
        path = session.start(config, root / "runs").run.path
        path.rename(root / name)
    shutil.rmtree(root / "runs")
    return root


@pytest.fixture
def tree(tmp_path: Path, trained: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def edited(path: Path, change: dict[str, object] | None = None, *, drop: str = "") -> None:
    """Write a JSON file anew, without its checksum: nobody who forges one leaves it wrong."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    content.pop(drop, None)
    path.write_text(json.dumps({**content, **(change or {})}))


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(2**43)


NESTED = "[" * 100_000
DAMAGE = {
    "config is nested": lambda run: (run / "config.json").write_text(NESTED),
    "config is a pipe": lambda run: fifo(run / "config.json"),
    "config is a device": lambda run: device(run / "config.json"),
    "config is huge": lambda run: huge(run / "config.json"),
    "config leads elsewhere": lambda run: edited(run / "config.json", {"model": "../../../x"}),
    "config of another type": lambda run: edited(run / "config.json", {"seed": [1]}),
    "config with an infinite seed": lambda run: (run / "config.json").write_text(
        '{"task": "art", "model": "stpnr", "seed": 1e999}'
    ),
    "summary is a list": lambda run: (run / "summary.json").write_text("[]"),
    "summary is nested": lambda run: (run / "summary.json").write_text(NESTED),
    "summary lacks done": lambda run: edited(run / "summary.json", drop="done"),
    "summary lacks proficiency": lambda run: edited(run / "summary.json", drop="proficiency"),
    "summary lacks power": lambda run: edited(run / "summary.json", drop="power"),
    "summary with NaN": lambda run: edited(run / "summary.json", {"power": float("nan")}),
    "summary with text": lambda run: edited(run / "summary.json", {"done": "many"}),
    "summary of another model": lambda run: edited(run / "summary.json", {"model": "lstm"}),
    "summary is a pipe": lambda run: fifo(run / "summary.json"),
    "metrics are a pipe": lambda run: fifo(run / "metrics.jsonl"),
    "metrics are a device": lambda run: device(run / "metrics.jsonl"),
    "metrics are huge": lambda run: huge(run / "metrics.jsonl"),
    "metrics are nested": lambda run: (run / "metrics.jsonl").write_text(NESTED + "\n"),
    "metrics hold text": lambda run: (run / "metrics.jsonl").write_text('{"step": "one"}\n'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_reads_all_runs_names_the_damaged_one_and_goes_on(
    tree: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGE[damage](tree / "bad")
    assert main(["list", "--runs", str(tree), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [Path(run["path"]).name for run in listed["runs"]] == ["good"]
    (problem,) = listed["problems"]
    assert str(tree / "bad") in problem
    assert main(["export", str(tree), str(tree / "out"), "--json"]) == 1
    exported = json.loads(capsys.readouterr().out)
    assert exported["written"] == [str(tree / "out/art/stpnr/seed0.json")]
    assert exported["problems"] == [problem]
    assert not list(tree.parent.rglob("x/seed1.json"))
    shutil.rmtree(tree / "out")
    report = gather(tree)
    assert [run.path.name for run in report.grid.runs] == ["good"]
    assert report.grid.problems == [problem]
    assert main(["show", str(tree / "bad")]) == 1


@pytest.mark.parametrize("name", ["lock", "provenance.json"])
def test_a_pipe_where_no_number_comes_from_hides_no_run(tree: Path, name: str) -> None:
    fifo(tree / "bad" / name)
    assert len(list(gather(tree).grid.runs)) == 2


def header(metadata: object) -> bytes:
    text = json.dumps({"__metadata__": metadata}).encode()
    return len(text).to_bytes(8, "little") + text


def forged(path: Path, name: str, value: object) -> None:
    """A whole checkpoint, with its checksum, in which one weight is something else."""
    state = checkpoint.read(path)
    state["trainer"]["model"][name] = value
    checkpoint.write(path, state)


CHECKPOINTS = {
    "metadata is null": lambda path: path.write_bytes(header(None)),
    "metadata is a list": lambda path: path.write_bytes(header([])),
    "metadata is text": lambda path: path.write_bytes(header("x")),
    "metadata holds numbers": lambda path: path.write_bytes(header({"stpn": 1})),
    "header is nested": lambda path: path.write_bytes(
        len(NESTED).to_bytes(8, "little") + NESTED.encode()
    ),
    "header is endless": lambda path: path.write_bytes(b"\xff" * 8 + b"{"),
    "tree is nested": lambda path: path.write_bytes(
        save({}, {"stpn": "1", "tree": NESTED, "checksum": f"{0:08x}"})
    ),
    "a weight is an object": lambda path: forged(path, "core.bias_l0", {"a": 1}),
    "a weight is text": lambda path: forged(path, "core.bias_l0", "x"),
    "a weight is too large": lambda path: forged(path, "core.bias_l0", torch.zeros(99)),
    "a pipe": fifo,
    "a device": device,
    "huge": huge,
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_a_damaged_checkpoint_is_refused_in_a_sentence(tree: Path, damage: str) -> None:
    path = tree / "good" / "checkpoint.safetensors"
    CHECKPOINTS[damage](path)
    with pytest.raises(CheckpointError), session.restored(tree / "good"):
        pass
    with pytest.raises(CheckpointError):
        session.resume(tree / "good", total=2)
    assert Run(tree / "good").summary is not None
    gather(tree)


@pytest.mark.parametrize("change", [{"hidden_size": 2**31}, {"hidden_size": 10**6},
                                    {"num_layers": 2**31}, {"train_size": 2**40}])  # fmt: skip
def test_sizes_beyond_all_bounds_are_refused_before_memory_is_taken(
    tree: Path, change: dict[str, object]
) -> None:
    edited(tree / "good" / "config.json", change)
    with pytest.raises(ConfigError), session.restored(tree / "good"):
        pass
    with pytest.raises(ConfigError):
        session.resume(tree / "good", total=2)
    assert {run.path.name for run in gather(tree).grid.runs} == {"good", "bad"}


@pytest.mark.parametrize("damage", ["weights", "card", "card nested", "pipe"])
def test_a_damaged_network_is_refused_in_a_sentence(tmp_path: Path, damage: str) -> None:
    import hashlib

    shelf = zoo.Shelf(tmp_path)
    for suffix in ("json", "safetensors"):
        shutil.copy(zoo.SHELF / f"art-stpnr.{suffix}", tmp_path)
    card, weights = tmp_path / "art-stpnr.json", tmp_path / "art-stpnr.safetensors"
    if damage == "weights":  # and a card that was made to fit
        weights.write_bytes(weights.read_bytes()[:-3])
        edited(card, {"sha256": hashlib.sha256(weights.read_bytes()).hexdigest()})
    elif damage == "card":
        edited(card, {"config": []})
    elif damage == "card nested":
        card.write_text(NESTED)
    else:
        fifo(weights)
    with pytest.raises(StpnError):
        shelf("art-stpnr")
