"""`flops`: how many floating-point operations a forward pass takes, the plastic update included.

The operations of the specification are counted, whatever kernel usually runs:

- a matrix product or convolution, its bias included: 2 for each multiplication with its addition,
  1 where nothing is added, as in the outer product of the Hebbian rule;
- arithmetic on elements, tanh and the like among it: 1 for each element of the result;
- a sum or mean: 1 for each element that goes in, a norm 2.

Copies, masks, comparisons and arithmetic on integers count nothing. Layer norms, softmax and other
composed operations count as what they are composed of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from stpn.nn.core import RecurrentCore
from stpn.ops.backends import use_backend

_aten: Any = torch.ops.aten
_REDUCTIONS = {
    _aten.sum: 1,
    _aten.mean: 1,
    _aten.prod: 1,
    _aten.amax: 1,
    _aten.amin: 1,
    _aten.max: 1,
    _aten.min: 1,
    _aten.cumsum: 1,
    _aten.linalg_vector_norm: 2,
    _aten.norm: 2,
    _aten.var: 3,
    _aten.var_mean: 3,
}
"""Operations for each element that goes in."""
_OF_AN_ELEMENT = {_aten.addcmul: 2, _aten.addcdiv: 2, _aten.lerp: 3, _aten.silu: 2}
"""Where it is not one for each element that comes out."""
_FREE = {
    _aten._to_copy, _aten.clone, _aten.copy_, _aten.fill_, _aten.zero_, _aten.where,
    _aten.masked_fill, _aten.masked_fill_, _aten.cat, _aten.stack, _aten.index,
    _aten.index_put, _aten.index_put_, _aten.index_select, _aten.gather, _aten.scatter,
    _aten.scatter_, _aten.embedding, _aten.detach, _aten.detach_, _aten.lift_fresh,
    _aten.lift_fresh_copy, _aten.zeros, _aten.zeros_like, _aten.ones, _aten.ones_like,
    _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.full, _aten.full_like,
    _aten.new_zeros, _aten.new_ones, _aten.new_empty, _aten.new_full, _aten.arange,
    _aten.scalar_tensor, _aten.constant_pad_nd, _aten.flip, _aten.roll, _aten.repeat,
    _aten.tril, _aten.triu, _aten._local_scalar_dense, _aten.nonzero, _aten.sort, _aten.topk,
    _aten.bernoulli, _aten.bernoulli_, _aten.rand, _aten.rand_like, _aten.randn,
    _aten.randn_like, _aten.randint, _aten.argmax, _aten.argmin, _aten.any, _aten.all,
    _aten.max_pool2d_with_indices, _aten._unsafe_view,
}  # fmt: skip
"""Moves, factories, choices: nothing is computed."""


@dataclass(frozen=True)
class FlopCount:
    """Of one call: what `flops` returns."""

    total: int
    """Of the whole call."""
    steps: int
    """Time steps of all sequences that the call read; samples, of a model without a core."""
    by_module: dict[str, int]
    """By the module's name, "" for the model itself: each with all that is inside it."""
    uncounted: tuple[str, ...] = ()
    """Operations for which no rule is known: they are not in the numbers."""

    @property
    def per_step(self) -> float:
        return self.total / self.steps

    def __str__(self) -> str:
        lines = [f"{self.per_step:,.0f} FLOPs a step, {self.total:,} in {self.steps:,} steps"]
        lines += [f"  {name}  {count:,}" for name, count in self.by_module.items() if name]
        if self.uncounted:
            lines.append(f"  not counted, for want of a rule: {', '.join(self.uncounted)}")
        return "\n".join(lines)


@torch.no_grad()
def flops(model: nn.Module, *inputs: Any, **kwargs: Any) -> FlopCount:
    """Count the operations of `model(*inputs, **kwargs)`.

    count = stpn.flops(stpn.STPNr(37, 11, batch_first=True), torch.zeros(1, 9, 37))
    print(count.per_step)       # of one time step of one sequence
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a module, got {type(model).__name__}")
    steps: list[int] = []
    cores = [module for module in model.modules() if isinstance(module, RecurrentCore)]
    hooks = [
        core.register_forward_pre_hook(lambda _, given: steps.append(_steps(given[0])))
        for core in cores
    ]
    names = {f"{type(model).__name__}.{name}": name for name, _ in model.named_modules() if name}
    names[type(model).__name__] = ""
    tracker = ModuleTracker()
    counter = _Counter(tracker)
    try:
        with use_backend("reference"), tracker, counter:
            model(*inputs, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    tensors = [value for value in tree_leaves((inputs, kwargs)) if isinstance(value, Tensor)]
    seen = steps[0] if steps else (tensors[0].shape[0] if tensors and tensors[0].dim() else 1)
    by_module = {
        own: counter.counts[name] for name, own in names.items() if counter.counts[name] or not own
    }
    by_module = {name: by_module[name] for name, _ in model.named_modules() if name in by_module}
    return FlopCount(counter.total, seen, by_module, tuple(sorted(counter.unknown)))


def _steps(x: Any) -> int:
    if isinstance(x, PackedSequence):
        return x.data.shape[0]
    return x.shape[:-1].numel()


class _Counter(TorchDispatchMode):
    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.counts: Counter[str] = Counter()
        self.total = 0
        self.unknown: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet in flop_registry:
            out = func(*args, **kwargs)
            count = flop_registry[packet](*args, **kwargs, out_val=out)
            self._add(count // 2 if _nothing_is_added(packet, args) else count)
            return out
        if func.is_view or packet in _FREE or func.namespace == "prim":
            return func(*args, **kwargs)
        if packet in _REDUCTIONS:
            self._add(_REDUCTIONS[packet] * args[0].numel() if _is_float(args[0]) else 0)
            return func(*args, **kwargs)
        if torch.Tag.pointwise in func.tags:
            out = func(*args, **kwargs)
            if _is_float(out):
                self._add(_OF_AN_ELEMENT.get(packet, 1) * out.numel())
            return out
        if func in decomposition_table:
            with self:
                return decomposition_table[func](*args, **kwargs)
        out = func(*args, **kwargs)
        if any(_is_float(value) for value in tree_leaves(out)):
            self.unknown.add(str(packet))
        return out

    def _add(self, count: int) -> None:
        self.total += count
        for name in self.tracker.parents:
            self.counts["" if name == "Global" else name] += count


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _nothing_is_added(packet: Any, args: tuple[Any, ...]) -> bool:
    """An outer product, written as a product of matrices."""
    return packet in (_aten.mm, _aten.bmm) and args[0].shape[-1] == 1
