"""Recurrences on the kernels as operators of torch: what autograd and torch.compile understand.

`Operator` makes them from a description: the schema, the fake that knows shapes alone, the forward
and the backward operator, and their wiring to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from stpn import _native
from stpn.ops import specified
from stpn.ops.operands import (
    Operand,
    Operands,
    Sequence,
    float_dtype,
    new_call,
    present,
    schema,
)
from stpn.ops.tracing import traced

_library = torch.library.Library("stpn", "DEF")  # keeps the operators registered

InputsT = TypeVar("InputsT", bound=tuple[Any, ...])
ResultsT = TypeVar("ResultsT", bound=tuple[Any, ...])


class Sizes(NamedTuple):
    B: int
    """Batch."""
    T: int
    """Time steps."""
    I: int  # noqa: E741
    """Inputs."""
    H: int
    """Hidden units."""
    R: int
    """Rows of synapses."""
    D: int
    """Synapses per row."""


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    _library.define(name + schema)
    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"stpn::{name}", fake, lib=_library)
    return getattr(torch.ops.stpn, name).default


class Operator(Generic[InputsT, ResultsT]):
    """A recurrence on the kernels: subclasses describe it, `apply` computes it.

    The first of `inputs` is the sequence; it has `lengths`. The first of `results` is y.
    """

    name: ClassVar[str]
    inputs: type[InputsT]
    results: type[ResultsT]

    def sizes(self, inputs: InputsT) -> Sizes:
        raise NotImplementedError

    def kind(self, inputs: InputsT) -> tuple[int, int]:
        """Its cell and norm, as the kernels number them."""
        raise NotImplementedError

    def set_options(self, call: _native.Call, inputs: InputsT) -> None:
        """Check the options and tell the call."""
        raise NotImplementedError

    def gives(self, inputs: InputsT) -> tuple[bool, ...]:
        """Which of the results this call has."""
        raise NotImplementedError

    def specification(self, inputs: InputsT) -> ResultsT:
        """The same in plain PyTorch."""
        raise NotImplementedError

    def __init__(self) -> None:
        self.operands = Operands.of(self.inputs)
        self._results = Operands.of(self.results)
        self._tensors = len(self.operands)
        self._places = tuple(k for k, o in enumerate(self.operands) if o.differentiable)
        self._saving = Operands([*self._results, replace(_SAVED, optional=True)])
        self._of_results = Operands(
            replace(o, name=f"d{o.name}", field=f"d{o.field}", optional=True) for o in self._results
        )
        self._from_forward = Operands([self._results[0], _SAVED, *self._of_results])
        self._of_inputs = Operands(_gradient(self.operands[k]) for k in self._places)
        self._input_shapes = lru_cache(256)(lambda s: self.operands.shapes(s._asdict()))
        self._result_shapes = lru_cache(256)(lambda s: self._results.shapes(s._asdict()))
        self._define()
        self._eager = self._function()

    def apply(self, inputs: InputsT) -> ResultsT:
        """The results, None where there is none.

        Eager calls go around the dispatcher, whose bookkeeping would take as long as a small kernel
        (a third of a training step of ART); tracing and transforms see the operator.
        """
        save = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (*inputs,)[: self._tensors]
        )
        if traced(inputs[0]):
            both = zip(self._op(*inputs, save)[:-1], self.gives(inputs), strict=True)
            given: list[Any] = [result if there else None for result, there in both]
            return self.results(*given)
        results = self._eager.apply(*inputs) if save else self._forward(inputs, False)
        return self.results(*results[:-1])

    # --- On the kernels --------------------------------------------------------------------------

    def call(self, inputs: InputsT) -> tuple[_native.Call, Sizes, list[Tensor] | None]:
        """A call with its inputs, and what must outlive it."""
        dtype = float_dtype(self.operands[0].name, inputs[0])
        sizes = self.sizes(inputs)
        call = new_call(*self.kind(inputs), dtype, sizes.B * sizes.T * sizes.R * sizes.D)
        call.B, call.T, call.I, call.H = sizes.B, sizes.T, sizes.I, sizes.H
        self.set_options(call, inputs)
        kept = self.operands.fill(call, inputs, self._input_shapes(sizes), dtype)
        lengths = inputs.lengths  # type: ignore[attr-defined]
        if lengths is not None and sizes.B and not 1 <= lengths.min() <= lengths.max() <= sizes.T:
            raise ValueError(f"lengths: expected 1 to {sizes.T}, got {lengths.tolist()}")
        return call, sizes, kept

    def _forward(self, inputs: InputsT, save: bool) -> tuple[Tensor | None, ...]:
        """The results, and what the backward pass needs, if it is to be saved."""
        call, sizes, _kept = self.call(inputs)
        new, wanted = inputs[0].new_empty, (*self.gives(inputs), save)
        result_shapes = (*self._result_shapes(sizes), self._saved_shape(inputs, sizes))
        both = zip(result_shapes, wanted, strict=True)
        results = tuple([new(shape) if given else None for shape, given in both])
        call.saved_size = result_shapes[-1][1]
        self._saving.fill(call, results, result_shapes, inputs[0].dtype)
        _native.forward(call)
        return results

    def _backward(
        self,
        inputs: InputsT,
        y: Tensor,
        saved: Tensor,
        grads: tuple[Tensor | None, ...],
        needs: list[bool],
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the differentiable inputs, None where they are not needed."""
        call, sizes, _kept = self.call(inputs)
        dtype, result_shapes = inputs[0].dtype, self._result_shapes(sizes)
        saved_shape = self._saved_shape(inputs, sizes)
        for operand, grad, given in zip(self._of_results, grads, self.gives(inputs), strict=True):
            if grad is not None and not given:
                raise ValueError(
                    f"{operand.name}: expected None, as there is no {operand.name[1:]}"
                )
        call.saved_size = saved_shape[1]
        shapes = (result_shapes[0], saved_shape, *result_shapes)
        _results = self._from_forward.fill(call, (y, saved, *grads), shapes, dtype)
        if len(needs) != len(self._places):
            raise ValueError(f"needs: expected {len(self._places)} values, got {len(needs)}")
        wanted = zip(self._places, needs, strict=True)
        tensors = [inputs[place] if needed else None for place, needed in wanted]
        gradients = tuple([None if t is None else t.new_empty(t.shape) for t in tensors])
        gradient_shapes = tuple([() if t is None else t.shape for t in tensors])
        self._of_inputs.fill(call, gradients, gradient_shapes, dtype)
        _native.backward(call)
        return gradients

    def _saved_shape(self, inputs: InputsT, sizes: Sizes) -> tuple[int, int]:
        """A heading, and a record of each step of each sequence."""
        power = inputs.power_weight is not None  # type: ignore[attr-defined]
        per_unit, constant = _record_size(*self.kind(inputs), power, inputs[0].dtype)
        return 1 + sizes.B * sizes.T, per_unit * sizes.H + constant

    # --- To autograd -----------------------------------------------------------------------------

    def _function(self) -> Any:
        operator = self

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *values: Any) -> tuple[Tensor | None, ...]:
                results = operator._forward(operator.inputs(*values), True)
                operator._setup(ctx, values, results)
                ctx.mark_non_differentiable(results[-1])
                return results

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return operator._gradient(ctx, operator._backward, grads[:-1])

        return Eager

    def _setup(self, ctx: Any, values: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*values[: self._tensors], results[0], results[-1])
        ctx.options = values[self._tensors : len(self.inputs._fields)]  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)

    def _gradient(self, ctx: Any, backward: Callable[..., Any], grads: tuple[Any, ...]) -> Any:
        """The gradient of every input; None for those without one."""
        *tensors, y, saved = ctx.saved_tensors
        inputs, needed = self.inputs(*tensors, *ctx.options), ctx.needs_input_grad
        needs = [needed[place] for place in self._places]
        if torch.is_grad_enabled():  # a graph of the gradient is wanted, for second derivatives
            gradients = self._specified_gradient(inputs, grads, needs)
        else:
            try:
                gradients = backward(inputs, y, saved, grads, needs)
            except NotImplementedError:  # many gradients at once have no memory to point to
                gradients = self._specified_gradient(inputs, grads, needs)
        returned: list[Tensor | None] = [None] * len(needed)
        for place, gradient in zip(self._places, gradients, strict=True):
            returned[place] = gradient if needed[place] else None
        return tuple(returned)

    def _specified_gradient(
        self, inputs: InputsT, grads: tuple[Any, ...], needs: list[bool]
    ) -> list[Tensor | None]:
        """What `_backward` computes, through the specification, so that it has derivatives too."""
        wanted = [place for place, needed in zip(self._places, needs, strict=True) if needed]
        found = specified.gradients(
            lambda *values: self.specification(self.inputs(*values)), inputs, wanted, grads
        )
        return [found.get(place) for place in self._places]

    # --- To torch's dispatcher -------------------------------------------------------------------

    def _define(self) -> None:
        inputs = ", ".join(f"{kind} {name}" for name, kind in schema(self.inputs).items())
        grads = ", ".join(f"Tensor? {o.name}" for o in self._of_results)
        results = ", ".join(["Tensor"] * (len(self._results) + 1))
        gradients = ", ".join(["Tensor"] * len(self._places))
        self._op = define(
            self.name, f"({inputs}, bool save) -> ({results})", self._run_op, self._fake_op
        )
        self._backward_op = define(
            f"{self.name}_backward",
            f"({inputs}, Tensor y, Tensor saved, {grads}, bool[] needs) -> ({gradients})",
            self._run_backward_op,
            self._fake_backward_op,
        )
        torch.library.register_autograd(
            f"stpn::{self.name}",
            lambda ctx, *grads: self._gradient(ctx, self._dispatched_backward, grads[:-1]),
            setup_context=lambda ctx, inputs, output: self._setup(ctx, inputs, output),
            lib=_library,
        )
        torch.library.register_autograd(
            f"stpn::{self.name}_backward", specified.refuse, lib=_library
        )

    def _run_op(self, *args: Any) -> tuple[Tensor, ...]:
        *values, save = args
        inputs = self.inputs(*values)
        return _filled(self._forward(inputs, save), inputs[0])

    def _fake_op(self, *args: Any) -> tuple[Tensor, ...]:
        *values, save = args
        inputs = self.inputs(*values)
        present(self.operands[0].name, inputs[0])
        check_devices(**self._named(inputs))
        sizes = self.sizes(inputs)
        wanted = (*self.gives(inputs), save)
        all_shapes = (*self._results.shapes(sizes._asdict()), self._saved_shape(inputs, sizes))
        return tuple(
            inputs[0].new_empty(shape if given else 0)
            for shape, given in zip(all_shapes, wanted, strict=True)
        )

    def _named(self, inputs: InputsT) -> dict[str, Tensor | None]:
        return {o.name: tensor for o, tensor in zip(self.operands, inputs, strict=False)}

    def _split(self, args: tuple[Any, ...]) -> tuple[InputsT, tuple[Any, ...], list[bool]]:
        """Of the backward operator's arguments: inputs, what comes from the results, needs."""
        count = len(self.inputs._fields)  # type: ignore[attr-defined]
        return self.inputs(*args[:count]), args[count:-1], args[-1]

    def _run_backward_op(self, *args: Any) -> tuple[Tensor, ...]:
        inputs, (y, saved, *grads), needs = self._split(args)
        return _filled(self._backward(inputs, y, saved, tuple(grads), needs), inputs[0])

    def _fake_backward_op(self, *args: Any) -> tuple[Tensor, ...]:
        inputs, of_results, needs = self._split(args)
        y, saved, *grads = of_results
        named = zip((o.name for o in self._of_results), grads, strict=True)
        check_devices(**self._named(inputs), y=y, saved=saved, **dict(named))
        tensors = (inputs[place] for place in self._places)
        return tuple(
            tensor.new_empty(tensor.shape)
            if needed and tensor is not None
            else inputs[0].new_empty(0)
            for tensor, needed in zip(tensors, needs, strict=True)
        )

    def _dispatched_backward(
        self, inputs: InputsT, y: Tensor, saved: Tensor, grads: Iterable[Any], needs: list[bool]
    ) -> Any:
        both = zip(grads, self.gives(inputs), strict=True)  # what is not there may be asked for
        given = (grad if there else None for grad, there in both)
        return self._backward_op(*inputs, y, saved, *given, needs)


_SAVED = Operand("", name="saved", field="saved")


def _gradient(operand: Operand) -> Operand:
    """Gradients of parameters are written as one block, in the shape that the parameter has."""
    kind = Sequence if isinstance(operand, Sequence) else Operand
    name, field = f"d{operand.name}", f"d{operand.field.rstrip('_')}"
    return kind(operand.sizes, field=field, name=name, optional=True)


@lru_cache
def _record_size(cell: int, norm: int, power: bool, dtype: torch.dtype) -> tuple[int, int]:
    return _native.record_size(cell, norm, power, dtype == torch.float64)


def _filled(results: Iterable[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
    """An operator returns an empty tensor where it has nothing to return."""
    return tuple(like.new_empty(0) if result is None else result for result in results)


def check_devices(**tensors: Tensor | None) -> None:
    """torch asks the fake as soon as one tensor of a call is on the device "meta"."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(devices.values()))
    for name, device in devices.items():
        if device != first:
            raise ValueError(f"{name}: expected a tensor on {first}, got one on {device}")
