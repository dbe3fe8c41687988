"""Operators of torch: functions that autograd and torch.compile understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Forward = Callable[..., tuple[Tensor, ...]]

_library = torch.library.Library("stpn", "DEF")  # keeps the operators registered


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    _library.define(name + schema)
    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"stpn::{name}", fake, lib=_library)
    return getattr(torch.ops.stpn, name).default


def differentiable(
    name: str, op: Any, run: Forward, gradient: Callable[..., Any], tensors: int, backward: Forward,
    backward_op: Any,
) -> Forward:  # fmt: skip
    """The operator with its gradient, as one function.

    The operator's first `tensors` inputs are tensors, its last says whether to save; its first
    result is y, its last what the kernel saved. `gradient(ctx, backward, *grads)` calls the
    backward operator. Eager calls go around the dispatcher, whose bookkeeping would take as long as
    a small kernel (a third of a training step of ART); tracing and transforms see the operator.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:tensors], output[0], output[-1])
        ctx.options = inputs[tensors:-1]
        ctx.set_materialize_grads(False)

    torch.library.register_autograd(
        f"stpn::{name}",
        lambda ctx, *grads: gradient(ctx, backward_op, *grads),
        setup_context=setup_context,
        lib=_library,
    )

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            output = run(*inputs)
            setup_context(ctx, inputs, output)
            ctx.mark_non_differentiable(output[-1])
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            return gradient(ctx, backward, *grads)

    def call(*inputs: Any) -> tuple[Tensor, ...]:
        if traced(inputs[0]):
            return op(*inputs)
        return Eager.apply(*inputs) if inputs[-1] else run(*inputs)

    return call


def not_differentiable(name: str) -> None:
    """A second derivative is an error, not a wrong number."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"stpn::{name} cannot be differentiated: use the reference backend")

    torch.library.register_autograd(f"stpn::{name}", refuse, lib=_library)


def traced(tensor: Tensor) -> bool:
    """Whether something other than plain eager execution looks at this call."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
    )


def wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
