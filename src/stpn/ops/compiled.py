"""The backend `compiled`: the specification under torch.compile, for devices that no kernel serves.

A sequence goes through graphs of a few steps, one after the other: what is compiled does not grow
with the sequence. A graph is made for a kind of call (recurrence, options, sizes) and serves every
batch. Its first call is compared with the specification, as a GPU kernel is: torch.compile has
been wrong on young devices.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from stpn.ops import reference, specified
from stpn.ops.registry import Backend
from stpn.ops.tracing import needs_plain_pytorch, traced

# A graph of four steps has less than half the overhead of four graphs, and takes twice as long to
# compile; longer ones gain little. Short sequences do not pay for it.
STEPS, LONG = 4, 16

TOLERANCE = 1e-3
"""Of the length of a result or gradient: what float32 may do, and no mistake does."""

MOST_GRAPHS = 64
"""In a process; what comes after them runs on plain PyTorch."""

COMPILER: Any = "inductor"
"""The `backend` of torch.compile."""

# How many states each has: they follow the sequence. The first is h, which the results do not have.
_STATES = {"stpn": 2, "stpn_lstm": 3, "modplast": 2, "fast_weights": 2, "gradient_plasticity": 3}

_graphs: dict[Hashable, _Graph] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _Call:
    """A call of a recurrence: what is not a tensor, and the names of tensors given by keyword."""

    recurrence: str
    count: int
    """Of tensors given by position."""
    names: tuple[str, ...]
    constants: tuple[tuple[str, Hashable], ...]

    @classmethod
    def of(
        cls, recurrence: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[_Call, list[Tensor | None]]:
        named = {n: v for n, v in options.items() if v is None or isinstance(v, Tensor)}
        constants = tuple(item for item in options.items() if item[0] not in named)
        return cls(recurrence, len(inputs), tuple(named), constants), [*inputs, *named.values()]

    def run(self, function: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
        named = dict(zip(self.names, tensors[self.count :], strict=True))
        return function(*tensors[: self.count], **named, **dict(self.constants))

    def specification(self, *tensors: Any) -> tuple[Any, ...]:
        return self.run(getattr(reference, self.recurrence), tensors)

    def place(self, name: str) -> int | None:
        """Of a tensor that is given by keyword."""
        return self.count + self.names.index(name) if name in self.names else None

    def batched(self) -> list[int]:
        """Places of the tensors whose first dimension is the batch."""
        masks = [self.place(name) for name in ("reset", "lengths")]
        return [*range(1 + _STATES[self.recurrence]), *(k for k in masks if k is not None)]


class _Graph:
    """One graph of so many steps: compiled, and compared with the specification, when first run."""

    def __init__(self, call: _Call, name: str) -> None:
        plain = getattr(reference, call.recurrence)
        # Code of its own: torch.compile counts, and limits, what it has made of each code.
        own = types.FunctionType(
            plain.__code__.replace(co_name=name), plain.__globals__, name, plain.__defaults__
        )
        own.__kwdefaults__ = plain.__kwdefaults__
        self._call, self._compiled = call, torch.compile(own, fullgraph=True, backend=COMPILER)
        self._checked = False
        self.problem: str | None = None

    def __call__(self, tensors: list[Tensor | None]) -> tuple[Any, ...]:
        """The results of these steps."""
        try:
            if not self._checked:
                self._check(tensors)
            if self._checked and self.problem is None:
                return self._call.run(self._compiled, tensors)
        except Exception as error:  # of whatever compiles, or of the call itself
            results = self._call.specification(*tensors)  # which says what is wrong with a call
            self._give_up(f"does not compile here ({_first_line(error)})")
            return results
        return self._call.specification(*tensors)

    def _check(self, tensors: list[Tensor | None]) -> None:
        """Results and gradients of this very call. One that is not finite shows nothing."""
        expected = self._measured(getattr(reference, self._call.recurrence), tensors)
        if not all(value.isfinite().all() for value in expected):
            return
        with warnings.catch_warnings():  # what a compiler says to its own developers
            warnings.simplefilter("ignore")
            actual = self._measured(self._compiled, tensors)
        both = zip(expected, actual, strict=True)
        if os.environ.get("STPN_TRUST") != "1" and not all(_near(*pair) for pair in both):
            self._give_up("gives other numbers than plain PyTorch here")
        self._checked = True

    def _measured(self, function: Callable[..., Any], tensors: list[Tensor | None]) -> list[Tensor]:
        """Results, and the gradients of a fixed linear function of them."""
        leaves = [None if t is None else t.detach() for t in tensors]
        wanted = [
            leaf.requires_grad_()
            for leaf, tensor in zip(leaves, tensors, strict=True)
            if leaf is not None and tensor is not None and tensor.requires_grad
        ]
        _mark(self._call, leaves)
        results = [v for v in self._call.run(function, leaves) if v is not None]
        if not wanted:
            return results
        factors = [torch.linspace(-1, 2, v.numel()).to(v).view(v.shape) for v in results]
        total = sum((v * factor).sum() for v, factor in zip(results, factors, strict=True))
        found = torch.autograd.grad(total, wanted, materialize_grads=True)
        return [value.detach() for value in (*results, *found)]

    def _give_up(self, reason: str) -> None:
        if self.problem is None:
            self.problem, self._checked = reason, True
            _warn(f"torch.compile of {self._call.recurrence} {reason}")


def _near(value: Tensor, found: Tensor) -> bool:
    """Not so if it is NaN."""
    allowed = TOLERANCE * value.norm() + 1e-6 * value.numel() ** 0.5
    return bool((found - value).norm() <= allowed)


def _first_line(error: Exception) -> str:
    lines = f"{type(error).__name__}: {error}".splitlines()
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


_warned: set[str] = set()


def _warn(problem: str) -> None:
    """Once for each problem, not once for each size of a network."""
    if problem not in _warned:
        _warned.add(problem)
        warnings.warn(f"{problem}; stpn runs it on plain PyTorch", stacklevel=2)


def _graph(call: _Call, tensors: list[Tensor | None], steps: int) -> _Graph | None:
    """The graph for calls of this kind, whatever their batch is; a single sequence has its own, as
    torch.compile would make it in any case."""
    batched = call.batched()
    kinds = tuple(
        None
        if t is None
        else (t.shape[1:] if k in batched else t.shape, t.dtype, t.device, t.requires_grad)
        for k, t in enumerate(tensors)
    )
    single = next(t.shape[0] == 1 for t in tensors if t is not None)
    key = call, kinds, steps, single
    with _lock:
        if key not in _graphs:
            if len(_graphs) >= MOST_GRAPHS:
                _warn(f"torch.compile has made {MOST_GRAPHS} graphs of recurrences, and no more")
                return None
            _graphs[key] = _Graph(call, f"{call.recurrence}_{len(_graphs)}")
        return _graphs[key]


def _mark(call: _Call, tensors: Sequence[Tensor | None]) -> None:
    """Let the batch of these tensors, which are ours alone, change without compiling anew."""
    for place in call.batched():
        tensor = tensors[place]
        if tensor is not None and tensor.shape[0] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _through_time(call: _Call, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The recurrence over a sequence, graph by graph."""
    sequence, *states = tensors[: 1 + _STATES[call.recurrence]]
    length = sequence.shape[1]
    long = length - length % STEPS if length >= LONG else 0
    parts = [*range(0, long, STEPS), *range(long, length), length]
    reset, lengths = call.place("reset"), call.place("lengths")
    ys, powers = [], []
    for start, end in itertools.pairwise(parts):
        part = [sequence[:, start:end], *states, *tensors[1 + len(states) :]]
        if reset is not None and part[reset] is not None:
            part[reset] = part[reset][:, start:end]
        if lengths is not None and part[lengths] is not None:
            part[lengths] = part[lengths] - start
        for place in call.batched():  # memory laid out alike, in every part and every call
            if part[place] is not None:
                part[place] = part[place].contiguous().view(-1).view(part[place].shape)
        graph = _graph(call, part, end - start)
        _mark(call, part)
        results = call.specification(*part) if graph is None else graph(part)
        y, *states, power = results
        states = [y[:, -1], *states]  # past a sequence's end it is 0, and does not count
        ys.append(y)
        powers.append(power)
    return torch.cat(ys, 1), *states[1:], None if powers[0] is None else torch.cat(powers, 1)


class _Function(torch.autograd.Function):
    """Around all graphs of a sequence, as what torch.compile makes has no second derivative."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[Any, ...]:
        ctx.save_for_backward(*tensors)
        ctx.call, ctx.needs = call, ctx.needs_input_grad[1:]
        ctx.set_materialize_grads(False)
        ctx.recorded = _recorded(call, tensors, ctx.needs)
        return tuple(None if r is None else r.detach() for r in ctx.recorded[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = ctx.saved_tensors
        wanted = [k for k, needed in enumerate(ctx.needs) if needed]
        # A graph of the gradient is wanted, for second derivatives, or many gradients at once.
        if torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
            found = specified.gradients(ctx.call.specification, tensors, wanted, grads)
        else:
            try:
                found = _gradients(ctx, tensors, wanted, grads)
            except Exception as error:  # a backward pass is compiled when it is first run
                found = specified.gradients(ctx.call.specification, tensors, wanted, grads)
                problem = f"does not compile here ({_first_line(error)})"
                _warn(f"torch.compile of the gradient of {ctx.call.recurrence} {problem}")
        return None, *(found.get(k) for k in range(len(tensors)))


def _gradients(
    ctx: Any, tensors: Sequence[Any], wanted: list[int], grads: Sequence[Any]
) -> dict[int, Tensor | None]:
    """Through the graphs; a second time, if the first one was not to be the last, anew."""
    results, leaves = ctx.recorded or _recorded(ctx.call, tensors, ctx.needs)
    ctx.recorded = None
    both = zip(results, grads, strict=True)
    used = [(r, g) for r, g in both if g is not None and r.requires_grad]
    found = torch.autograd.grad(
        [r for r, _ in used], [leaves[k] for k in wanted], [g for _, g in used], allow_unused=True
    )
    return dict(zip(wanted, found, strict=True))


def _recorded(
    call: _Call, tensors: Sequence[Any], needs: Sequence[bool]
) -> tuple[tuple[Any, ...], list[Any]]:
    """The results with their graph, and the leaves of that."""
    leaves = [None if t is None else t.detach() for t in tensors]
    states = range(1, 1 + _STATES[call.recurrence])
    for place, leaf in enumerate(leaves):  # states of later parts have a gradient, so the first do
        if leaf is not None and (needs[place] or place in states):
            leaf.requires_grad_()
    with torch.enable_grad():
        return _through_time(call, leaves), leaves


def _recurrence(name: str) -> Callable[..., Any]:
    def run(*inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():  # a model around it: all of it is one graph
            return getattr(reference, name)(*inputs, **options)
        call, tensors = _Call.of(name, inputs, options)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            return _Function.apply(call, *tensors)
        with torch.no_grad():
            return _through_time(call, [None if t is None else t.detach() for t in tensors])

    return run


def _step(recurrence: str) -> Callable[..., Any]:
    run = _recurrence(recurrence)

    @torch.no_grad()
    def step(x: Tensor, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        y, *final, power = run(x.unsqueeze(1), *inputs, **options)
        for state, new in zip(inputs[1:], final, strict=False):
            state.copy_(new)
        return y.squeeze(1), None if power is None else power.squeeze(1)

    return step


@lru_cache
def _unserved(device: str) -> str | None:
    """Why torch.compile cannot serve a device, or None."""
    if device == "cpu":
        names = filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))
        if not any(map(shutil.which, names)):
            return "torch.compile needs a C++ compiler on the CPU, and found none"
    elif device in ("cuda", "xpu"):
        if find_spec("triton") is None:
            return f"torch.compile needs Triton on {device}, and found none"
    elif device != "mps":
        return f"torch.compile does not serve the device {device}"
    return None


def _accelerator() -> str | None:
    """The device beside the CPU that PyTorch sees."""
    there: dict[str, Callable[[], bool]] = {
        "mps": torch.backends.mps.is_available, "xpu": torch.xpu.is_available,
        "cuda": torch.cuda.is_available,
    }  # fmt: skip
    return next((name for name, available in there.items() if available()), None)


class Compiled(Backend):
    name = "compiled"
    on_request = frozenset({"cpu", "cuda"})  # which have kernels
    recurrences: Mapping[str, Callable[..., Any]] = {
        **{name: _recurrence(name) for name in _STATES},
        "stpn_step_": _step("stpn"),
        "stpn_lstm_step_": _step("stpn_lstm"),
        "plus_static_power": reference.plus_static_power,
    }

    @property
    def device(self) -> str:  # type: ignore[override]
        found = _accelerator()
        return "cpu" if found is None or _unserved(found) else found

    @property
    def detail(self) -> str:  # type: ignore[override]
        when = ", on request" if self.device in self.on_request else "; the CPU on request"
        return f"torch.compile of plain PyTorch; {self.device}{when}; float32 and float64"

    def unusable(self) -> str | None:
        return _unserved(self.device)

    def rejects(
        self, recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> str | None:
        x = inputs[0]
        reason = needs_plain_pytorch()
        if reason is not None or torch.compiler.is_compiling():
            return reason
        if traced(x):
            return "what looks at this call sees plain PyTorch alone"
        if x.dtype not in (torch.float32, torch.float64):
            return f"it is compared with plain PyTorch in float32 and float64, not in {x.dtype}"
        if not x.numel() or not inputs[1].numel():
            return "there is nothing to compute"
        return _unserved(x.device.type)
