"""A recurrence on the GPU as a function that autograd understands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stpn.ops import specified

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Recurrence:
    """Its kernels, as functions of `tensors`, None where there is none, and `constants`."""

    forward: Callable[..., tuple[Values, Values]]
    """(constants, save, *tensors): the results, and what the backward pass needs beside tensors."""
    backward: Callable[..., Values]
    """(constants, needs, tensors, saved, gradients of the results): those of the first tensors."""
    specification: Callable[..., Values]
    """(constants, *tensors): the results, in plain PyTorch."""

    @torch.compiler.disable  # a graph of torch.compile breaks here, as it does at nn.LSTM
    def __call__(self, constants: Any, *tensors: Tensor | None) -> Values:
        with torch.cuda.device_of(tensors[0]):  # Triton launches on the device that is current
            if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
                return _Function.apply(self, constants, *tensors)
            return self.forward(constants, False, *tensors)[0]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, constants: Any, *tensors: Any) -> Values:
        results, saved = recurrence.forward(constants, True, *tensors)
        ctx.save_for_backward(*tensors, *saved)
        ctx.recurrence, ctx.constants, ctx.count = recurrence, constants, len(tensors)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        needs = ctx.needs_input_grad[2:]
        # A graph of the gradient is wanted, for second derivatives, or many gradients at once.
        if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
            wanted = [k for k, needed in enumerate(needs) if needed]
            specification = partial(ctx.recurrence.specification, ctx.constants)
            by_place = specified.gradients(specification, tensors, wanted, gradients)
            found = tuple(by_place.get(k) for k in range(len(tensors)))
        else:
            found = ctx.recurrence.backward(ctx.constants, needs, tensors, saved, gradients)
        none = (None,) * (ctx.count - len(found))
        return None, None, *(f if n else None for f, n in zip(found, needs, strict=False)), *none
