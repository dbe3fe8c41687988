"""A second device for machines that have one only: tensors that claim to be elsewhere.

Their values lie on the CPU, and every operation is computed there, so what comes out can be
compared. As on a GPU, tensors of both devices do not mix, and `.numpy()` refuses. The device is
called lazy, for torch knows that name, has nothing of its own for it, and runs its backward passes
in the caller's thread.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = torch.device("lazy:0")
aten = torch.ops.aten
# What takes tensors of two devices: a copy from one to the other, indices of the CPU.
MIXES = {aten.copy_.default, aten._to_copy.default, aten.index.Tensor, aten.index_put_.default}


class There(torch.Tensor):
    """A tensor whose values are `here`, on the CPU."""

    @staticmethod
    def __new__(cls, here):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(),
            dtype=here.dtype, device=DEVICE,
        )  # fmt: skip
        tensor.here = here
        return tensor

    def __repr__(self, **_):
        return f"There({self.here})"

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return dispatch(operator, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


def dispatch(operator, args, kwargs):
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    there = [t for t in tensors if isinstance(t, There)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    if not there and (asked is None or asked.type == "cpu"):
        return operator(*args, **kwargs)
    here = [t for t in tensors if not isinstance(t, There) and t.dim()]
    if there and here and operator not in MIXES:
        raise RuntimeError(f"{operator}: expected all tensors to be on the same device")
    if operator is aten.index.Tensor and not isinstance(args[0], There):
        raise RuntimeError("indices should be on the CPU as the indexed tensor is")
    if asked is not None:
        kwargs = {**kwargs, "device": "cpu"}
    owners = {id(t.here): t for t in there}
    args, kwargs = tree_map_only(There, lambda t: t.here, (args, kwargs))
    result = operator(*args, **kwargs)
    if asked is not None and asked.type == "cpu":
        return result
    if operator is aten.copy_.default and not isinstance(tensors[0], There):
        return tensors[0]

    def back(tensor):
        return owners[id(tensor)] if id(tensor) in owners else There(tensor)

    return tree_map_only(torch.Tensor, back, result)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return dispatch(operator, args, kwargs or {})


@contextmanager
def second_device():
    """Inside, torch has it."""
    state = torch.zeros(16, dtype=torch.uint8)
    own = SimpleNamespace(get_rng_state=lambda _=None: state, set_rng_state=lambda *_: None)
    with (
        mock.patch.object(torch, "lazy", own, create=True),
        mock.patch.object(torch, "inference_mode", return_value=nullcontext()),
        _Mode(),
    ):
        yield
