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
from stpn._files import explain_os_errors, write_atomic
from stpn.errors import CheckpointError

FORMAT = 1
"""Raised when an old file can no longer be read as a new one."""


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Save nested dicts, lists and tuples of tensors, arrays and plain JSON values."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_encode(dict(state), "", tensors))
    metadata = {
        "stpn": str(FORMAT),
        "version": stpn.__version__,
        "tree": tree,
        "checksum": _checksum(tree, tensors),
    }
    write_atomic(path, save(tensors, metadata))


def read(path: Path) -> dict[str, Any]:
    """What `write` saved; CheckpointError for a file that is not whole or not ours."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}")
    with explain_os_errors(f"read {path}"):
        content = path.read_bytes()
    metadata = _metadata(path, content)
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
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        return _decode(json.loads(tree), tensors)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _metadata(path: Path, content: bytes) -> dict[str, str]:
    # safetensors: 8 bytes with the length of a JSON header, then that header
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length]) if 8 + length <= len(content) else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is damaged or not a safetensors file")
    return dict(header.get("__metadata__", {}))


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
def explain_misfit(path: Path, trainer: object) -> Iterator[None]:
    """Around `trainer.load_state_dict`: a whole checkpoint may still be of something else."""
    try:
        yield
    except (KeyError, TypeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit {type(trainer).__name__}: {error!r}") from error


def load_module(module: torch.nn.Module, state: Mapping[str, Tensor], what: str = "model") -> None:
    """`module.load_state_dict`, with a sentence for the first tensor that does not fit."""
    own = module.state_dict()
    missing, surplus = own.keys() - state.keys(), state.keys() - own.keys()
    if missing or surplus:
        name, verb = (min(missing), "lacks") if missing else (min(surplus), "has an unknown")
        raise CheckpointError(f"the checkpoint does not fit this {what}: it {verb} {name!r}")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise CheckpointError(
                f"the checkpoint does not fit this {what}: {name!r} is "
                f"{tuple(state[name].shape)} there and {tuple(tensor.shape)} here"
            )
    module.load_state_dict(dict(state))


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    try:
        optimizer.load_state_dict(dict(state))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this optimizer: {error}") from error
