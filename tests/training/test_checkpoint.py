"""Checkpoints: everything comes back bit by bit, and damage is told from health."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from stpn.errors import CheckpointError
from stpn.training import checkpoint


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


def same(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        assert type(a) is type(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        return (torch.as_tensor(a) == torch.as_tensor(b)).all()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.text(max_size=5) | st.integers(-5, 5)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(tree=trees)
def test_any_plain_state_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "c.safetensors"
    checkpoint.write(path, {"state": tree})
    assert same(checkpoint.read(path), {"state": tree})


def test_tensors_and_arrays_come_back(path):
    state = {
        "float": torch.randn(3, 4),
        "double": torch.randn(2, dtype=torch.float64),
        "half": torch.randn(2).bfloat16(),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 5),
        "bool": torch.tensor([True, False]),
        "bytes": torch.get_rng_state(),
        "transposed": torch.randn(3, 4).T,
        "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "nested": [{"deep": (torch.ones(1), 1)}],
    }
    checkpoint.write(path, state)
    assert same(checkpoint.read(path), state)


def test_shared_memory_is_no_obstacle(path):
    tensor = torch.arange(4.0)
    checkpoint.write(path, {"a": tensor, "b": tensor, "c": tensor[1:]})
    assert checkpoint.read(path)["c"].tolist() == [1, 2, 3]


def test_optimizer_state_comes_back_exactly(path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
    checkpoint.write(path, {"optimizer": optimizer.state_dict()})
    fresh = torch.optim.Adam(model.parameters(), fused=True)
    checkpoint.load_optimizer(fresh, checkpoint.read(path)["optimizer"])
    assert same(fresh.state_dict(), optimizer.state_dict())


def test_what_cannot_be_saved_is_named(path):
    with pytest.raises(TypeError, match="cannot hold inner/function: function"):
        checkpoint.write(path, {"inner": {"function": same}})
    assert not path.exists()


def test_writing_replaces_whole_files(path):
    checkpoint.write(path, {"n": 1})
    checkpoint.write(path, {"n": 2})
    assert checkpoint.read(path) == {"n": 2}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_missing(path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoint.read(path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, b"PK\x03\x04" + b"x" * 500])
def test_files_of_another_kind_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
        checkpoint.read(path)


def test_a_foreign_safetensors_file_is_refused(path):
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="was not written by stpn"):
        checkpoint.read(path)


def test_another_format_is_refused_by_its_number(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        checkpoint.write(path, {"n": 1})
    with pytest.raises(CheckpointError, match=r"has format 99 \(stpn .*\), stpn .* reads format 1"):
        checkpoint.read(path)


def test_truncation_and_flipped_bits_anywhere_are_found(path):
    checkpoint.write(path, {"weights": torch.arange(50.0), "seconds": 12.5, "rows": [1, 2, 3]})
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            checkpoint.read(path)
    expected = checkpoint.read(write_bytes(path, whole))
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x04
        path.write_bytes(damaged)
        try:
            read = checkpoint.read(path)
        except CheckpointError:
            continue
        assert same(read, expected)  # a flip in the padding of the header changes nothing


def write_bytes(path, content):
    path.write_bytes(content)
    return path


def test_a_checkpoint_of_another_shape_is_refused():
    state = nn.Linear(3, 2).state_dict()
    with pytest.raises(CheckpointError, match=r"'weight' is \(2, 3\) there and \(2, 4\) here"):
        checkpoint.load_module(nn.Linear(4, 2), state)
    with pytest.raises(CheckpointError, match="it has an unknown 'bias'"):
        checkpoint.load_module(nn.Linear(3, 2, bias=False), state)
    with pytest.raises(CheckpointError, match="it lacks 'bias'"):
        checkpoint.load_module(nn.Linear(3, 2), {"weight": state["weight"]})


def test_a_checkpoint_of_another_optimizer_is_refused():
    small, large = nn.Linear(3, 2, bias=False), nn.Linear(3, 2)
    state = torch.optim.Adam(small.parameters()).state_dict()
    with pytest.raises(CheckpointError, match="does not fit this optimizer"):
        checkpoint.load_optimizer(torch.optim.Adam(large.parameters()), state)


@pytest.mark.parametrize("change", ["text", "shape", "missing"])
def test_an_optimizer_that_was_tampered_with_is_refused(change):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    if change == "missing":
        del state["state"][0]["exp_avg"]
    else:
        state["state"][0]["exp_avg"] = "x" if change == "text" else torch.zeros(7)
    with pytest.raises(CheckpointError, match="does not fit this optimizer"):
        checkpoint.load_optimizer(torch.optim.Adam(model.parameters()), state)


@pytest.mark.parametrize("wrong", ["x", [1], None, {"a": 1}, 10**400])
def test_a_counter_must_be_a_number(wrong):
    own = {"done": 3, "nested": {"loss": 0.5, "none": None}, "betas": (0.9, 0.99)}
    assert checkpoint.like({"done": 4, "new": "y", "betas": [1, 2]}, own)
    with pytest.raises(TypeError, match="'nested', 'loss' is a"):
        checkpoint.like({"nested": {"loss": wrong}}, own)


def test_floats_are_exact(path):
    values = [math.pi, 1e-310, float("inf"), -0.0, 0.1 + 0.2]
    checkpoint.write(path, {"values": values})
    assert [v.hex() for v in checkpoint.read(path)["values"]] == [v.hex() for v in values]
