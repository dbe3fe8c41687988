"""Damaged files: whatever lies in a directory of runs, its readers say so in a sentence or go on.

A case is a small tree (a finished run, a stopped one, an exported result, a network with its card,
a published one), one file of which is damaged: bytes changed, cut, doubled; JSON that stays JSON
but means something else, with the checksum put right; or something that is no file at all. Then
everything that reads such a tree does. What it raises must be an `StpnError`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from . import Broken, attack

ODD = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 1.5, -0.0, 1e308, "", "x", "../../x", "\0", [], {},
    [[]], {"a": {}}, [None], ["x"],
]  # fmt: skip
MEMORY = 2 * 2**20  # KiB, far above what any case needs


@attack("files", isolated=True)
def damaged_file(random: Random) -> str:
    with tempfile.TemporaryDirectory(prefix="stpn-attack-") as scratch:
        root = Path(scratch) / "tree"
        shutil.copytree(_template(), root)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
        target = random.choice(files)
        how = _damage(random, target)
        outcomes = set()
        for name, read in READERS.items():
            try:
                outcomes.add(_quietly(read, root))
            except Exception as error:
                raise Broken(
                    f"{target.relative_to(root)} {how}: {name} raised {error!r}"
                ) from error
        outside = {path.name for path in Path(scratch).iterdir()} - {"tree", "out"}
        if outside:
            raise Broken(f"{target.relative_to(root)} {how}: wrote {outside} outside")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > MEMORY:
            raise Broken(f"{target.relative_to(root)} {how}: took over {MEMORY // 2**20} GiB")
    return "refused in a sentence" if "refused" in outcomes else "read"


def _quietly(read: Callable[[Path], Any], root: Path) -> str:
    from stpn.errors import StpnError

    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        try:
            return "refused" if read(root) else "read"
        except StpnError:
            return "refused"
        except SystemExit:
            return "refused"


def _load(root: Path) -> bool:
    from stpn.results import load_results

    problems: list[str] = []
    load_results(root, problems)
    return bool(problems)


def _command(*words: str) -> Callable[[Path], bool]:
    def read(root: Path) -> bool:
        from stpn.cli import main

        return main([word.replace("ROOT", str(root)) for word in words]) != 0

    return read


def _gather(root: Path) -> bool:
    from stpn.report.build import gather
    from stpn.zoo import Shelf

    return bool(gather(root / "runs", shelf=Shelf(root / "networks")).grid.problems)


def _restore(root: Path) -> bool:
    from stpn.training.session import restored

    with restored(root / "runs" / "finished"):
        return False


def _resume(root: Path) -> bool:
    from stpn.training.session import resume

    resume(root / "runs" / "stopped")
    return False


def _network(root: Path) -> bool:
    from stpn.zoo import Shelf

    shelf = Shelf(root / "networks")
    for name in shelf.names():
        shelf(name)
    return False


def _published(root: Path) -> bool:
    import stpn

    stpn.load(root / "hub" / "art-stpnr-seed0")
    return False


READERS: dict[str, Callable[[Path], bool]] = {
    "load_results": _load,
    "list": _command("list", "--runs", "ROOT"),
    "list --json": _command("list", "--runs", "ROOT", "--json"),
    "show finished": _command("show", "ROOT/runs/finished"),
    "show stopped": _command("show", "ROOT/runs/stopped"),
    "gather": _gather,
    "restored": _restore,
    "export": _command("export", "ROOT/runs", "ROOT/../out", "--checkpoints", "--unfinished"),
    "resume": _resume,
    "pretrained": _network,
    "load published": _published,
    "show published": _command("show", "ROOT/hub/art-stpnr-seed0"),
    "eval published": _command("eval", "ROOT/hub/art-stpnr-seed0"),
}


def _damage(random: Random, path: Path) -> str:
    kinds: list[Callable[[Random, Path], str]] = [_bytes, _bytes, _no_file]
    if path.suffix in (".json", ".jsonl"):
        kinds += [_meaning] * 4
    if path.suffix == ".safetensors":
        kinds += [_tree, _bytes]
    how = random.choice(kinds)(random, path)
    published = path.name == "model.safetensors"
    card = path.with_name("config.json") if published else path.with_suffix(".json")
    small = path.is_file() and path.stat().st_size < 2**20
    if card != path and card.is_file() and small and random.random() < 0.7:
        content = json.loads(card.read_text())
        content["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        card.write_text(json.dumps(content))
        how += ", with a card that fits"
    return how


def _bytes(random: Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    kind = random.choice(["flipped", "cut", "doubled", "zeroed", "replaced", "inserted"])
    # headers and braces are where it hurts
    place = random.randrange(len(content)) if random.random() < 0.5 else random.randrange(100)
    place = min(place, len(content) - 1)
    if kind == "flipped":
        for _ in range(random.choice([1, 1, 3, 20])):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "doubled":
        content = content * 2
    elif kind == "zeroed":
        content[place : place + 16] = bytes(len(content[place : place + 16]))
    elif kind == "replaced":
        content[:] = random.choice([b"", b"[]", b"{}", b"null", b"x", b"[" * 99_999, b"\xff" * 99])
    else:
        content[place:place] = random.choice([b"[", b'"', b"1e999", b"NaN", b",", b"\n", b"\0"])
    path.write_bytes(content)
    return kind


def _meaning(random: Random, path: Path) -> str:
    """Valid JSON that says something else, sealed anew as a forger would."""
    from stpn._json import SEAL, _checksum

    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    if not lines:
        return "left empty"
    index = random.randrange(len(lines))
    content = json.loads(lines[index])
    sealed = isinstance(content, dict) and content.pop(SEAL, None)
    holder, key = random.choice(list(_places(content)))
    kind = random.choice(["changed", "changed", "dropped", "deepened"])
    if kind == "dropped":
        del holder[key]
    elif kind == "deepened":
        for _ in range(random.choice([1, 30, 300])):
            holder[key] = [holder[key]]
    else:
        holder[key] = random.choice(ODD)
    with contextlib.suppress(ValueError, RecursionError):
        if sealed:
            content[SEAL] = _checksum(content)
    lines[index] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")
    return f"{kind} at {key!r}"


def _places(content: Any, depth: int = 0) -> Any:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(items)[:50]:
        yield content, key
        if isinstance(value, (dict, list)) and value and depth < 3:
            yield from _places(value, depth + 1)


def _tree(random: Random, path: Path) -> str:
    """A whole checkpoint, with its checksum, in which something is not what it was."""
    from stpn.errors import CheckpointError
    from stpn.training import checkpoint

    try:
        state = checkpoint.read(path)
    except CheckpointError:  # a network: weights alone
        return _bytes(random, path)
    holder, key = random.choice(list(_places(state)))
    if random.random() < 0.2:
        del holder[key]
        kind = "dropped"
    else:
        holder[key] = random.choice(ODD)
        kind = "changed"
    checkpoint.write(path, state)
    return f"{kind} at {key!r}"


def _no_file(random: Random, path: Path) -> str:
    path.unlink()
    kind = random.choice(["pipe", "device", "link", "directory", "huge", "missing"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        path.symlink_to(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(2**40)
    return f"is now: {kind}"


@functools.cache
def _template() -> Path:
    """Made once in each process; nothing in it depends on chance."""
    from stpn import experiments, hub, results, zoo
    from stpn.runs import Run
    from stpn.summary import Row
    from stpn.training import loop, provenance, session
    from stpn.training.loop import Reporter, Stop

    # What takes longer than all else in a case: collecting garbage, and asking git.
    loop._only_new_garbage = contextlib.nullcontext
    provenance.commit = functools.cache(provenance.commit)
    place = Path(tempfile.mkdtemp(prefix="stpn-attack-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    tiny = {"epochs": 2, "train_size": 64, "validation_size": 8, "test_size": 8, "threads": 1}
    tiny |= {"hidden_size": 4, "batch_size": 32, "checkpoint_seconds": 0}

    class AfterOneRow(Reporter):
        def measured(self, row: Row) -> None:
            stop.request()

    stop = Stop()
    root = place / "tree"
    for seed, name in enumerate(("finished", "stopped")):
        config = experiments.default_config("art", "stpnr", seed=seed, **tiny)
        reporter = AfterOneRow() if name == "stopped" else Reporter()
        run = session.start(config, place / name, reporter=reporter, stop=stop).run
        (root / "runs").mkdir(parents=True, exist_ok=True)
        run.path.rename(root / "runs" / name)
    finished = Run(root / "runs" / "finished")
    results.export(finished, root / "results")
    zoo.ship(finished, 1, root / "networks")
    hub.publish(finished.path, root / "hub")
    return root
