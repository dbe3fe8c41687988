"""A recurrence on the GPU as a function that autograd understands, and as an operator of torch.

`Recurrence` describes it once; the schema, the fake that knows shapes alone and both derivatives
follow. The fake runs the same host code, whose launches do nothing to tensors without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stpn.ops import specified
from stpn.ops.tracing import traced

Values = tuple[Any, ...]

# The operators stay registered as long as it is there.
_library = torch.library.Library("stpn", "FRAGMENT")


@dataclass(frozen=True, eq=False)
class Recurrence:
    """Its kernels, as functions of `tensors`, None where there is none, and of constants."""

    name: str
    tensors: str
    """Their names, in order."""
    differentiable: int
    """So many of them, the first ones, have a gradient."""
    constants: str
    """Their types and names, as torch writes them in the schema of an operator."""
    outputs: int
    """Of the forward pass."""
    results: int
    """So many of them, the first ones, are results; the backward pass alone sees the others."""
    padded: tuple[int, int]
    """The result whose rows are padded, and the tensor that has as many columns as it should."""
    forward: Callable[..., Values]
    """(constants, save, *tensors): the outputs, None where there is none."""
    backward: Callable[..., Values]
    """(constants, needs, tensors, outputs, gradients of the results): of the first tensors."""
    specification: Callable[..., Values]
    """(constants, *tensors): the results, in plain PyTorch."""

    def __post_init__(self) -> None:
        tensors = ", ".join(f"Tensor? {name}" for name in self.tensors.split())
        constants = f"{self.constants}, " if self.constants else ""
        outputs = ", ".join(f"Tensor? output{k}" for k in range(self.outputs))
        grads = ", ".join(f"Tensor? grad{k}" for k in range(self.results))
        self._define(
            "", f"({tensors}, {constants}bool save) -> {_many(self.outputs)}", self._run_forward
        )
        self._define(
            "_backward",
            f"({tensors}, {outputs}, {grads}, {constants}bool[] needs)"
            f" -> {_many(self.differentiable)}",
            self._run_backward,
        )
        torch.library.register_autograd(
            f"stpn::{self.name}", self._op_gradient, setup_context=self._op_context, lib=_library
        )
        torch.library.register_autograd(
            f"stpn::{self.name}_backward", specified.refuse, lib=_library
        )

    def __call__(self, constants: Values, *tensors: Tensor | None) -> Values:
        """The results. Eager calls go around torch's dispatcher; tracing sees the operator."""
        grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if traced(_first(tensors)):
            op = getattr(torch.ops.stpn, self.name)
            results = _absent(op(*tensors, *constants, grad)[: self.results])
        elif grad:
            results = _Function.apply(self, constants, *tensors)
        else:
            with torch.cuda.device_of(_first(tensors)):  # Triton launches on the current device
                results = self.forward(constants, False, *tensors)[: self.results]
        return self._cut(results, tensors)

    def _cut(self, results: Iterable[Any], tensors: Values) -> Values:
        """Without the padding."""
        place, like = self.padded
        cut = list(results)
        if cut[place] is not None:
            cut[place] = cut[place][..., : tensors[like].shape[-1]]
        return tuple(cut)

    def gradients(
        self, constants: Values, needs: Values, tensors: Values, outputs: Values, grads: Values
    ) -> Values:
        """By the kernels: of every tensor that has one, None where it is not needed."""
        found = self.backward(constants, needs, tensors, outputs, self._cut(grads, tensors))
        return tuple(f if n else None for f, n in zip(found, needs, strict=False))

    def specified(self, constants: Values, needs: Values, tensors: Values, grads: Values) -> Values:
        """The same through the specification, so that they have derivatives too."""
        wanted = [k for k in range(self.differentiable) if needs[k]]
        found = specified.gradients(
            partial(self.specification, constants), tensors, wanted, self._cut(grads, tensors)
        )
        return tuple(found.get(k) for k in range(self.differentiable))

    # --- The operators ---------------------------------------------------------------------------

    def _define(self, suffix: str, schema: str, run: Callable[..., Any]) -> None:
        name = self.name + suffix
        _library.define(name + schema)
        _library.impl(name, self._trusted(run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"stpn::{name}", run, lib=_library)

    def _trusted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """On real tensors: on their device, and not unless the kernels are right there."""

        def on_device(*arguments: Any) -> Any:
            from stpn.ops.gpu.backend import problem

            x = _first(arguments)
            recurrence = self.name.removesuffix("_triton")
            gated = recurrence == "stpn" and arguments[2] is not None
            reason = problem("stpn_lstm" if gated else recurrence, x.device)
            if reason is not None:
                raise RuntimeError(f"{reason}: trace or compile it with STPN_BACKEND=reference")
            with torch.cuda.device_of(x):
                return run(*arguments)

        return on_device

    def _split(self, arguments: Values, *more: int) -> tuple[Values, ...]:
        """Tensors, so many more groups of them, and constants; the last argument is left."""
        groups, start = [], 0
        for count in (len(self.tensors.split()), *more):
            groups.append(tuple(arguments[start : start + count]))
            start += count
        return *groups, tuple(arguments[start:-1])

    def _run_forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, constants = self._split(arguments)
        return _filled(self.forward(constants, arguments[-1], *tensors), _first(tensors))

    def _run_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, outputs, grads, constants = self._split(arguments, self.outputs, self.results)
        found = self.gradients(constants, arguments[-1], tensors, _absent(outputs), grads)
        return _filled(found, _first(tensors))

    def _op_context(self, ctx: Any, inputs: Values, output: Values) -> None:
        tensors, ctx.constants = self._split(inputs)
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    def _op_gradient(self, ctx: Any, *grads: Any) -> Any:
        count = len(self.tensors.split())
        tensors, outputs = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needs = ctx.needs_input_grad[: self.differentiable]
        there = _absent(outputs[: self.results])  # what is not there may be asked for
        given = tuple(None if r is None else g for r, g in zip(there, grads, strict=False))
        if torch.is_grad_enabled():
            found = self.specified(ctx.constants, needs, tensors, given)
        else:
            op = getattr(torch.ops.stpn, f"{self.name}_backward")
            arguments = (*tensors, *outputs, *given, *ctx.constants, list(needs))
            found = tuple(f if n else None for f, n in zip(op(*arguments), needs, strict=True))
        return *found, *(None,) * (len(ctx.needs_input_grad) - len(found))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, constants: Any, *tensors: Any) -> Values:
        with torch.cuda.device_of(_first(tensors)):
            outputs = recurrence.forward(constants, True, *tensors)
        ctx.save_for_backward(*tensors, *outputs)
        ctx.recurrence, ctx.constants, ctx.count = recurrence, constants, len(tensors)
        ctx.set_materialize_grads(False)
        return outputs[: recurrence.results]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors, outputs = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        recurrence, needs = ctx.recurrence, ctx.needs_input_grad[2:]
        # A graph of the gradient is wanted, for second derivatives, or many gradients at once.
        if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
            found = recurrence.specified(ctx.constants, needs, tensors, grads)
        else:
            with torch.cuda.device_of(_first(tensors)):
                found = recurrence.gradients(ctx.constants, needs, tensors, outputs, grads)
        return None, None, *found, *(None,) * (ctx.count - len(found))


def _many(count: int) -> str:
    return f"({', '.join(['Tensor'] * count)})"


def _first(values: Iterable[Any]) -> Tensor:
    return next(value for value in values if isinstance(value, Tensor))


def _filled(values: Iterable[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """An operator returns an empty vector where it has nothing to return."""
    return tuple(like.new_empty(0) if value is None else value for value in values)


def _absent(values: Iterable[Tensor]) -> Values:
    """None in place of the empty vectors: no output is a vector."""
    return tuple(None if v.dim() == 1 and v.shape[0] == 0 else v for v in values)
