"""`Recurrence`: what a recurrent model is, in one layer and one direction.

A model says only what one layer in one direction does, in a subclass of `Recurrence`, and is
combined with `RecurrentCore`, which reads sequences, and `RecurrentCell`, which reads single steps:

    class _Leaky(Recurrence):
        state_type = RNNState

        def _state_shapes(self, input_size):
            return ((self.hidden_size,),)

        def _make_parameters(self, input_size, suffix, factory):
            self._register("weight", suffix, (self.hidden_size, input_size), factory)

        def _reset_parameters(self, input_size, suffix):
            ...

        def _advance(self, x, state, suffix):
            ...

    class Leaky(_Leaky, RecurrentCore): ...
    class LeakyCell(_Leaky, RecurrentCell): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from stpn.nn import checks
from stpn.nn.state import rebuilt

_HALF = (torch.bfloat16, torch.float16)


# `Recurrence._run`, or a function that stands in for it.
Run: TypeAlias = Callable[
    [Tensor, Any, Tensor | None, Tensor | None, str, Tensor | None],
    tuple[Tensor, Any, Tensor | None],
]


class BoundStep(Protocol):
    """One more time step of a stream."""

    def __call__(self, reset: Tensor | None = None) -> Tensor:
        """reset bool (B,) -> y (B, H)"""


class PowerObserver(Protocol):
    """Told the power of every layer and direction that ran."""

    def __call__(self, power: Tensor, lengths: Tensor | None, suffix: str) -> None:
        """power (B, T) in the order of time, 0 past the `lengths` (B,) of a packed sequence."""


class Recurrence(nn.Module):
    """One layer in one direction. Inside, everything is batched, batch first.

    A model defines the class attributes `state_type` and `recurrent`, and the hooks
    `_state_shapes`, `_make_parameters`, `_reset_parameters` and `_advance`, one time step in plain
    PyTorch. It may define `_synapses`, to be traced and metered, and, with kernels of its own,
    `_run`, a whole sequence, `_step` and `_bound_kernel`, to stream without allocation. A subclass
    that changes one of these must change those after it too. Parameters are named
    `<name><suffix>`: suffix "_l0", "_l0_reverse", "_l1", ... in a layer, "" in a cell. Hooks read
    them through `_parameter`. A plastic model leaves its synapses alone while `_frozen` is true.

    Of x, state and parameters the hooks see float32 or float64 only; bfloat16 and float16 are
    converted before and after.
    """

    state_type: ClassVar[Callable[..., Any]]
    """The named tuple of the state."""
    recurrent: ClassVar[bool] = True
    """Whether synapses see h_prev beside x; then `power_weight` has I + H entries, else I."""

    input_size: int
    hidden_size: int
    has_bias: bool

    _power_observer: PowerObserver | None = None
    _power_graph: bool = True  # whether the observer wants gradients of the power
    _power_weights: Mapping[str, Tensor]  # (D,) by suffix: what each input counts in the power
    _freezes: int = 0  # nested `frozen_plasticity` contexts around this module

    def _state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        """The shape of each field of the state, without the batch."""
        raise NotImplementedError

    def _make_parameters(self, input_size: int, suffix: str, factory: dict[str, Any]) -> None:
        """Register the parameters of a layer and direction, uninitialised, by `_register`."""
        raise NotImplementedError

    def _reset_parameters(self, input_size: int, suffix: str) -> None:
        """Give them their initial values."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _refuse_two_rules(cls)

    def _advance(self, x: Tensor, state: Any, suffix: str) -> tuple[Tensor, Any]:
        """One time step, x (B, I): y (B, H) and the new state."""
        raise NotImplementedError

    def _run(
        self,
        x: Tensor,  # (B, T, I)
        state: Any,
        reset: Tensor | None,  # (B, T) bool: this step starts from a zero state
        lengths: Tensor | None,  # (B,) int64, at least 1
        suffix: str,
        power_weight: Tensor | None,  # (D,): what each input counts in the power
    ) -> tuple[Tensor, Any, Tensor | None]:
        """y (B, T, H), the state at each sequence's end, and, if asked, the power (B, T).

        No tensor of the new state may share memory with y or with the old state.
        """
        outputs, powers, start = [], [], state
        for t, x_t in enumerate(x.unbind(1)):
            if reset is not None:
                state = rebuilt(state, [_zero_where(v, reset[:, t]) for v in state])
            power = None
            if power_weight is not None:
                power = self._power_of_a_step(x_t, state, suffix, power_weight)  # (B,)
            y, new = self._advance(x_t, state, suffix)
            if lengths is not None:  # past its end a sequence keeps its state and is silent
                over = t >= lengths  # (B,)
                new = rebuilt(new, [_where(over, a, b) for a, b in zip(state, new, strict=True)])
                y = _zero_where(y, over)
                power = None if power is None else _zero_where(power, over)
            state = new
            outputs.append(y)
            if power is not None:
                powers.append(power)
        final = rebuilt(
            state, [v.clone() if v is old else v for v, old in zip(state, start, strict=True)]
        )
        return torch.stack(outputs, 1), final, torch.stack(powers, 1) if powers else None

    def _power_of_a_step(
        self, x: Tensor, state: Any, suffix: str, power_weight: Tensor
    ) -> Tensor:  # (B,)
        _, g = self._synapses(state, suffix)
        u = torch.cat([x, state.h], dim=1) if self.recurrent else x  # (B, D)
        return (g.abs() * (power_weight * u * u).unsqueeze(1)).sum((1, 2))

    def _step(
        self, x: Tensor, state: Any, suffix: str, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One step without gradients, x (B, I), that updates `state` in place.

        Returns y (B, H), which shares no memory with the state, and the power (B,).
        """
        y, new, power = self._run(x.unsqueeze(1), state, None, None, suffix, power_weight)
        for old, value in zip(state, new, strict=True):
            old.copy_(value)
        return y.squeeze(1), None if power is None else power.squeeze(1)

    def _bound_kernel(self, x: Tensor, state: Any) -> Callable[[], Tensor] | None:
        """A step of the only layer without any overhead, if the model has one for these tensors."""
        return None

    def _synapses(self, state: Any, suffix: str) -> tuple[Tensor, Tensor]:
        """The short-term weights and the efficacies that the next step uses, (B, R, D) each."""
        raise TypeError(f"{type(self).__name__} has no short-term weights to trace")

    def _layers(self) -> Iterator[tuple[int, str]]:
        """Input size and suffix of each layer and direction, in the order of the state."""
        raise NotImplementedError

    @property
    def _frozen(self) -> bool:
        return self._freezes > 0

    def _register(
        self, name: str, suffix: str, shape: tuple[int, ...] | None, factory: dict[str, Any]
    ) -> None:
        """A parameter of this shape; None for one that this configuration does without."""
        parameter = None if shape is None else nn.Parameter(torch.empty(shape, **factory))
        self.register_parameter(f"{name}{suffix}", parameter)

    def _parameter(self, name: str, suffix: str) -> Any:
        """The parameter as the computation uses it: a Tensor, or None."""
        value = getattr(self, f"{name}{suffix}")
        return value.float() if value is not None and value.dtype in _HALF else value

    def _build(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Make and initialise all parameters: the last line of every `__init__`."""
        checks.floating_dtype("dtype", dtype)
        for input_size, suffix in self._layers():
            self._make_parameters(input_size, suffix, {"device": device, "dtype": dtype})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        with torch.no_grad():
            for input_size, suffix in self._layers():
                self._reset_parameters(input_size, suffix)

    def _like(self) -> Tensor:
        """Any parameter: they share device and dtype."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter
        return next(self.parameters())  # all of them are parametrised, in a module of their own

    def _zero_state(
        self, input_size: int, batch: tuple[int, ...], device: Any, dtype: torch.dtype | None
    ) -> Any:
        shapes = self._state_shapes(input_size)
        return self.state_type(
            *(torch.zeros(batch + shape, device=device, dtype=dtype) for shape in shapes)
        )

    def _start_state(self, input_size: int, batch: tuple[int, ...], like: Tensor) -> Any:
        """A zero state that is only read: one zero, expanded. F of a large batch would take time
        to clear and memory to read that the kernels do without."""
        zero = like.new_zeros(())
        shapes = self._state_shapes(input_size)
        return self.state_type(*(zero.expand(batch + shape) for shape in shapes))

    def _checked_state(
        self, name: str, state: object, input_size: int, batch: tuple[int, ...], like: Tensor
    ) -> Any:
        shapes = [batch + shape for shape in self._state_shapes(input_size)]
        dtype = expected_dtype(like)
        return checks.state(name, state, self.state_type, shapes, like.device, dtype)

    def _observe_power(self, observer: PowerObserver, ignored: Sequence[int] = ()) -> None:
        """From now on tell `observer`; inputs of the first layer that are `ignored` cost nothing.

        What each input counts is made here, once: in a small network that can be felt in a call.
        """
        like, weights = self._like(), {}
        for input_size, suffix in self._layers():
            size = input_size + self.hidden_size * self.recurrent
            with torch.inference_mode(False):  # training may follow inside the same watch
                counted = torch.ones(size, device=like.device, dtype=compute_dtype(like.dtype))
            if suffix in ("", "_l0", "_l0_reverse"):
                counted[list(ignored)] = 0
            weights[suffix] = counted
        self._power_observer, self._power_weights = observer, weights

    def _power_weight(self, suffix: str, x: Tensor) -> Tensor | None:
        if self._power_observer is None:
            return None
        return self._power_weights[suffix].to(x)  # the model may have moved since

    def _one_step(
        self,
        x: Tensor,  # (B, I)
        state: Any,
        reset: Tensor | None,  # (B,)
        suffix: str,
        inplace: bool,
    ) -> tuple[Tensor, Any]:
        """y (B, H) and the new state, which `inplace` is the old one, updated."""
        power_weight = self._power_weight(suffix, x)
        if inplace:
            if reset is not None:
                clear(state, reset)
            y, power = self._step(x, state, suffix, power_weight)
        else:
            mask = None if reset is None else reset.unsqueeze(1)
            y, state, power = self._run(x.unsqueeze(1), state, mask, None, suffix, power_weight)
            y, power = y.squeeze(1), None if power is None else power.squeeze(1)
        if self._power_observer is not None and power is not None:
            self._power_observer(power.unsqueeze(1), None, suffix)
        return y, state

    def _stream(
        self,
        x: Tensor,  # (B, I) or (I,)
        states: Sequence[Any],
        reset: Tensor | None,  # (B,) or ()
        inplace: bool,
        between: Callable[[Tensor], Tensor] = lambda y: y,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """One step through the layers, `between` applied to what goes from one to the next."""
        if inplace:
            check_overwritable(states)
        if autocast(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._stream(x, states, reset, inplace, between)
        batched = x.dim() == 2
        dtype = self._like().dtype
        compute = compute_dtype(dtype)
        y = x.to(compute) if batched else x.to(compute).unsqueeze(0)
        if reset is not None and not batched:
            reset = reset.unsqueeze(0)
        new_states = []
        for k, (_, suffix) in enumerate(self._layers()):
            given = states[k]
            batch = given if batched else rebuilt(given, [v.unsqueeze(0) for v in given])
            work = converted(batch, compute)
            y, new = self._one_step(between(y) if k else y, work, reset, suffix, inplace)
            if inplace:
                if new is not batch:  # converted: the caller's tensors are to change
                    for old, value in zip(batch, new, strict=True):
                        old.copy_(value)
                new_states.append(given)
            else:
                new = new if batched else rebuilt(new, [v.squeeze(0) for v in new])
                new_states.append(new.to(dtype))
        return (y if batched else y.squeeze(0)).to(dtype), tuple(new_states)


_RULE = ("_advance", "_run", "_step", "_bound_kernel")
"""What one rule of a model looks like, from its definition to its fastest form."""


def _refuse_two_rules(cls: type[Recurrence]) -> None:
    """A class that changes a hook and inherits a faster form of the old one would follow the new
    rule in sequences and the old one in streams."""

    def definer(hook: str) -> int:
        return next(place for place, base in enumerate(cls.__mro__) if hook in vars(base))

    for k, hook in enumerate(_RULE):
        for faster in _RULE[k + 1 :]:
            stale = cls.__mro__[definer(faster)]
            if definer(hook) < definer(faster) and stale is not Recurrence:
                raise TypeError(
                    f"{cls.__name__} changes {hook}, but inherits {faster} of {stale.__name__}, "
                    f"which follows the old rule: define {faster} too, or let it follow {hook} by "
                    f"`{faster} = Recurrence.{faster}`"
                )


def _zero_where(value: Tensor, rows: Tensor) -> Tensor:
    """value (B, ...) with zeros in these rows (B,)."""
    return value.masked_fill(rows.reshape(-1, *(1,) * (value.dim() - 1)), 0)


def _where(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (a.dim() - 1)), a, b)


def check_overwritable(states: Sequence[Any]) -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "inplace: expected False while gradients are on, which need the state as it was; "
            "step under torch.no_grad()"
        )
    if any(value.requires_grad for state in states for value in state):
        raise ValueError(
            "inplace: expected a state without gradients, such as state.detach().clone(), got one "
            "that requires them"
        )


def clear(state: Any, reset: Tensor) -> None:
    """Zero the state of the sequences that start anew, reset (B,)."""
    for value in state:
        value.masked_fill_(reset.reshape(-1, *(1,) * (value.dim() - 1)), 0)


def expected_dtype(like: Tensor) -> torch.dtype | None:
    """Of arguments: that of the parameters, or any (None) under autocast."""
    return None if autocast(like) else like.dtype


def autocast(like: Tensor) -> bool:
    kind = like.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def converted(state: Any, dtype: torch.dtype) -> Any:
    """The state in this dtype; most are already."""
    return state if all(value.dtype == dtype for value in state) else state.to(dtype)
