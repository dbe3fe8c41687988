"""One safetensors file that holds everything a run needs to go on, and nothing that can execute.

Tensors are stored as safetensors does; the rest of a nested state is JSON in the file's metadata,
with each tensor's place marked by its name. A checksum covers both. The file is written atomically.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import stpn
from stpn import _safetensors
from stpn._files import half_of_memory, read_file, write_atomic
from stpn._typed import fits
from stpn.errors import CheckpointError, RunError, StpnError

FORMAT = 1
"""Raised when an old file can no longer be read as a new one."""
REMEDY = "restore it from a copy, or delete the run's directory and start again"


def write(path: Path, state: Mapping[str, Any], *, done: int | None = None) -> None:
    """Save nested dicts, lists and tuples of tensors, arrays and plain JSON values.

    `done`, units of training, can be read without the rest (`Run.saved`).
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encode(dict(state), "", tensors))
    metadata = {
        "stpn": str(FORMAT),
        "version": stpn.__version__,
        "tree": tree,
        "checksum": _checksum(tree, tensors),
    }
    if done is not None:
        metadata["done"] = str(done)
    write_atomic(path, save(tensors, metadata))


def read(path: Path) -> dict[str, Any]:
    """What `write` saved; CheckpointError for a file that is not whole or not ours."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = read_file(path, most=half_of_memory())
    except RunError as error:
        raise CheckpointError(str(error)) from error
    try:
        metadata = _safetensors.metadata(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file; {REMEDY}") from error
    if "stpn" not in metadata:
        raise CheckpointError(f"{path} was not written by stpn: its header lacks the mark")
    if metadata["stpn"] != str(FORMAT):
        raise CheckpointError(
            f"{path} has format {metadata['stpn']} (stpn {metadata.get('version', '?')}), "
            f"stpn {stpn.__version__} reads format {FORMAT}: use the version that wrote it"
        )
    try:
        tensors = load(content)
        tree = metadata["tree"]
        if metadata["checksum"] != _checksum(tree, tensors):
            raise ValueError("its checksum does not match")
        state = _decode(json.loads(tree), tensors)
        if not isinstance(state, dict):
            raise ValueError("it does not hold the state of a run")
        return state
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; {REMEDY}") from error


def weights(path: Path) -> dict[str, Tensor]:
    """The weights of a run's network, by their names."""
    with explain_misfit(path, "a run's network"):
        found = read(path)["trainer"]["model"]
        if not fits(found, dict[str, Tensor]):
            raise TypeError("its weights are not tensors")
        return dict(found)


def _checksum(tree: str, tensors: Mapping[str, Tensor]) -> str:
    value = zlib.crc32(tree.encode())
    for name in sorted(tensors):
        # a view of the raw bytes: works for every dtype, bfloat16 included
        raw = tensors[name].reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(raw.data, value)
    return f"{value:08x}"


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value).detach().cpu()
        tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
        return {"$array" if isinstance(value, np.ndarray) else "$tensor": name}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, f"{name}/{key}", tensors) for key, item in value.items()}
        pairs = enumerate(value.items())
        return {"$dict": [[k, _encode(item, f"{name}/{i}", tensors)] for i, (k, item) in pairs]}
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {name.lstrip('/')}: {type(value).__name__}")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, content), *_ = value.items()
        if mark == "$tensor":
            return tensors[content]
        if mark == "$array":
            return tensors[content].numpy()
        if mark == "$tuple":
            return tuple(_decode(item, tensors) for item in content)
        if mark == "$dict":
            return {key: _decode(item, tensors) for key, item in content}
    return {key: _decode(item, tensors) for key, item in value.items()}


@contextmanager
def explain_misfit(path: Path, taker: object, remedy: str = REMEDY) -> Iterator[None]:
    """Around what takes a checkpoint up: a whole one may still be of something else, in any way."""
    try:
        yield
    except StpnError:
        raise
    except Exception as error:
        what = taker if isinstance(taker, str) else type(taker).__name__
        raise CheckpointError(f"{path} does not fit {what}: {error!r}; {remedy}") from error


def load_module(module: torch.nn.Module, state: Mapping[str, Tensor], what: str = "model") -> None:
    """`module.load_state_dict`, with a sentence for the first tensor that does not fit."""
    misfit = f"the checkpoint does not fit this {what}"
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{misfit}: it has no tensors by name")
    own = module.state_dict()
    missing, surplus = own.keys() - state.keys(), state.keys() - own.keys()
    if missing or surplus:
        name, verb = (min(missing), "lacks") if missing else (min(surplus), "has an unknown")
        raise CheckpointError(f"{misfit}: it {verb} {name!r}")
    for name, tensor in own.items():
        found = state[name]
        if not isinstance(found, Tensor):
            raise CheckpointError(f"{misfit}: {name!r} is not a tensor")
        if tensor.shape != found.shape:
            raise CheckpointError(
                f"{misfit}: {name!r} is {tuple(found.shape)} there and {tuple(tensor.shape)} here"
            )
    module.load_state_dict(dict(state))


# How an optimizer computes, which is a matter of the device and not of the run.
_OF_DEVICE = frozenset({"fused", "foreach"})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    misfit = "the checkpoint does not fit this optimizer"
    try:
        own = optimizer.state_dict()["param_groups"]
        groups = [
            {**saved, **{name: ours[name] for name in _OF_DEVICE & ours.keys()}}
            for saved, ours in zip(state["param_groups"], own, strict=True)
        ]
        optimizer.load_state_dict({**state, "param_groups": groups})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{misfit}: {error}") from error
    names = {frozenset(values) for values in optimizer.state.values()}
    if len(names) > 1:
        raise CheckpointError(f"{misfit}: what it keeps differs between parameters")
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape in (parameter.shape, torch.Size([])):
                continue
            if isinstance(value, Tensor) or not fits(value, float | bool | None):
                raise CheckpointError(f"{misfit}: {name!r} is not of its parameter's shape")


def like(state: Any, own: Any, place: str = "the state") -> Any:
    """`state`, if what it shares with the state of a new trainer is of the same kinds.

    A checkpoint that was tampered with is refused here, not in the middle of the training.
    """
    if isinstance(own, dict) and isinstance(state, dict):
        for name in (own.keys() & state.keys()) - _OF_DEVICE:
            like(state[name], own[name], f"{place}, {name!r}")
        return state
    if isinstance(own, list | tuple) and isinstance(state, list | tuple):
        for index, (theirs, ours) in enumerate(zip(state, own, strict=False)):
            like(theirs, ours, f"{place}, item {index}")
        return state
    if isinstance(own, np.generic):
        own = own.item()
    kind = Tensor if isinstance(own, Tensor) else type(own)  # a parameter is one
    number = kind in (bool, int, float)
    if own is None or (fits(state, kind) if number else isinstance(state, kind)):
        return state
    raise TypeError(f"{place} is a {type(state).__name__}, not a {type(own).__name__}")
