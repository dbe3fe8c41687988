"""What all recurrent cores share: layers, directions, packed and unbatched input, streaming.

`RecurrentCore` reads sequences with the conventions of `nn.RNN`, `RecurrentCell` single steps. A
model says only what one layer in one direction does, in a subclass of `Recurrence`, and is combined
with either:

    class _Leaky(Recurrence):
        state_type = RNNState

        def _state_shapes(self, input_size):
            return ((self.hidden_size,),)

        def _make_parameters(self, input_size, suffix, factory):
            self._register("weight", suffix, (self.hidden_size, input_size), factory)

        def _reset_parameters(self, input_size, suffix):
            ...

        def _run(self, x, state, reset, lengths, suffix, power_weight):
            ...

    class Leaky(_Leaky, RecurrentCore): ...
    class LeakyCell(_Leaky, RecurrentCell): ...
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

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
    `_state_shapes`, `_make_parameters`, `_reset_parameters` and `_run`. It may define `_step`, to
    stream without allocation, and `_synapses`, to be traced. Parameters are named
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
    _ignored_inputs: Sequence[int] = ()  # inputs of the first layer that cost no power
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
        raise NotImplementedError

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
        dtype = _expected_dtype(like)
        return checks.state(name, state, self.state_type, shapes, like.device, dtype)

    def _power_weight(self, input_size: int, first: bool, x: Tensor) -> Tensor | None:
        if self._power_observer is None:
            return None
        weight = x.new_ones(input_size + self.hidden_size * self.recurrent)
        if first and len(self._ignored_inputs):
            weight[list(self._ignored_inputs)] = 0
        return weight

    def _one_step(
        self,
        x: Tensor,  # (B, I)
        state: Any,
        reset: Tensor | None,  # (B,)
        input_size: int,
        suffix: str,
        first: bool,
    ) -> tuple[Tensor, Any]:
        """y (B, H) and the new state, which without gradients is the old one, updated in place."""
        power_weight = self._power_weight(input_size, first, x)
        if torch.is_grad_enabled():
            mask = None if reset is None else reset.unsqueeze(1)
            y, state, power = self._run(x.unsqueeze(1), state, mask, None, suffix, power_weight)
            y, power = y.squeeze(1), None if power is None else power.squeeze(1)
        else:
            if reset is not None:
                _clear(state, reset)
            y, power = self._step(x, state, suffix, power_weight)
        if self._power_observer is not None and power is not None:
            self._power_observer(power.unsqueeze(1), None, suffix)
        return y, state

    def _stream(
        self,
        x: Tensor,  # (B, I) or (I,)
        states: Sequence[Any],
        reset: Tensor | None,  # (B,) or ()
        between: Callable[[Tensor], Tensor] = lambda y: y,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """One step through the layers, `between` applied to what goes from one to the next."""
        batched, in_place = x.dim() == 2, not torch.is_grad_enabled()
        dtype = self._like().dtype
        compute = _compute_dtype(dtype)
        y = x.to(compute) if batched else x.to(compute).unsqueeze(0)
        if reset is not None and not batched:
            reset = reset.unsqueeze(0)
        new_states = []
        for k, (input_size, suffix) in enumerate(self._layers()):
            # Never write to a tensor that takes part in training, such as a learnt initial state.
            given = states[k]
            if in_place and any(value.requires_grad for value in given):
                given = given.clone()
            batch = given if batched else rebuilt(given, [v.unsqueeze(0) for v in given])
            work = _converted(batch, compute)
            y, new = self._one_step(between(y) if k else y, work, reset, input_size, suffix, k == 0)
            if in_place:
                if new is not batch:  # converted: the caller's tensors are to change
                    for old, value in zip(batch, new, strict=True):
                        old.copy_(value)
                new_states.append(given)
            else:
                new = new if batched else rebuilt(new, [v.squeeze(0) for v in new])
                new_states.append(new.to(dtype))
        return (y if batched else y.squeeze(0)).to(dtype), tuple(new_states)


class RecurrentCore(Recurrence):
    """Base of all layers: the arguments, calls and parameter names of `nn.RNN`.

    `core(x, state=None, reset=None)` returns the output and the final state.

    - x: (T, B, I), (B, T, I) with `batch_first`, unbatched (T, I), or a `PackedSequence`.
    - state: a tuple with one state per layer and direction, index `layer * num_directions +
      direction`, as returned by an earlier call or by `initial_state`; None starts from zeros.
    - reset: bool, shaped as x without its last dimension. Where it is true a new sequence begins:
      the step starts from a zero state, and in the reverse direction so does the step before it.
      For a `PackedSequence` it is the padded mask.
    - output: as x, with H * num_directions features. The final state of a packed sequence is taken
      at its true length.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        """A subclass then sets its own options and calls `_build(device, dtype)`."""
        super().__init__()
        self.input_size = checks.positive_int("input_size", input_size)
        self.hidden_size = checks.positive_int("hidden_size", hidden_size)
        self.num_layers = checks.positive_int("num_layers", num_layers)
        self.bias = self.has_bias = checks.flag("bias", bias)
        self.batch_first = checks.flag("batch_first", batch_first)
        self.dropout = checks.probability("dropout", dropout)
        self.bidirectional = checks.flag("bidirectional", bidirectional)
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout acts between layers, so it does nothing with num_layers=1", stacklevel=3
            )

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _layers(self) -> Iterator[tuple[int, str]]:
        for layer in range(self.num_layers):
            size = self.hidden_size * self.num_directions if layer else self.input_size
            yield size, f"_l{layer}"
            if self.bidirectional:
                yield size, f"_l{layer}_reverse"

    def initial_state(
        self,
        batch_size: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Any, ...]:
        """Zeros for a batch (None: unbatched), by default on the device of the parameters."""
        batch = () if batch_size is None else (checks.positive_int("batch_size", batch_size),)
        checks.floating_dtype("dtype", dtype)
        like = self._like()
        device, dtype = device or like.device, dtype or like.dtype
        return tuple(self._zero_state(size, batch, device, dtype) for size, _ in self._layers())

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: tuple[Any, ...] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        if isinstance(x, PackedSequence):
            return self._packed_sequence(x, state, reset)
        return self._sequence(x, state, reset, self._run)

    def _sequence(
        self, x: Tensor, state: tuple[Any, ...] | None, reset: Tensor | None, run: Run
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """A tensor, batched or not, through all layers, each of them by `run`."""
        x = self._checked_input(x, (2, 3), "(T, I), (B, T, I)" if self.batch_first else "(T, B, I)")
        batched = x.dim() == 3
        time = 1 if batched and self.batch_first else 0
        batch = (x.shape[1 - time],) if batched else ()
        if x.shape[time] == 0:
            raise ValueError(f"x: expected at least one time step, got shape {tuple(x.shape)}")
        states = self._checked_states(state, batch)
        if reset is not None:
            reset = checks.mask("reset", reset, x.shape[:-1], "(x without features)", x.device)

        if not batched:
            x, reset = x.unsqueeze(0), None if reset is None else reset.unsqueeze(0)
            states = tuple(rebuilt(s, [v.unsqueeze(0) for v in s]) for s in states)
        elif not self.batch_first:
            x, reset = x.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
        y, states = self._run_layers(x, states, reset, None, run)
        if not batched:
            y = y.squeeze(0)
            states = tuple(rebuilt(s, [v.squeeze(0) for v in s]) for s in states)
        elif not self.batch_first:
            y = y.transpose(0, 1)
        return y, states

    def _packed_sequence(
        self, x: PackedSequence, state: tuple[Any, ...] | None, reset: Tensor | None
    ) -> tuple[PackedSequence, tuple[Any, ...]]:
        self._checked_input(x.data, (2,), "(sum of lengths, I) in a PackedSequence")
        padded, lengths = pad_packed_sequence(x, batch_first=True)  # (B, T, I), (B,), user's order
        batch, steps, _ = padded.shape
        states = self._checked_states(state, (batch,))
        if reset is not None:
            shape = (batch, steps) if self.batch_first else (steps, batch)
            reset = checks.mask("reset", reset, shape, "(the padded x, no features)", padded.device)
            reset = reset if self.batch_first else reset.transpose(0, 1)
        y, states = self._run_layers(padded, states, reset, lengths.to(padded.device), self._run)
        order = slice(None) if x.sorted_indices is None else x.sorted_indices
        data = pack_padded_sequence(y[order], lengths[_cpu(order)], batch_first=True).data
        return PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices), states

    def step(
        self, x: Tensor, state: tuple[Any, ...] | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """One time step: x (B, I) or (I,) to y (B, H) or (H,); reset bool (B,) or ().

        Under `torch.no_grad()` a given state is updated in place and returned: clone it to keep it.
        A state that requires gradients is never written to.
        """
        if self.bidirectional:
            raise ValueError(
                "step: expected a core of one direction, got bidirectional=True, "
                "which needs the whole sequence at once"
            )
        x = self._checked_input(x, (1, 2), "(B, I) or (I,)")
        batch = tuple(x.shape[:-1])
        states = self._checked_states(state, batch, writable=True)
        if reset is not None:
            reset = checks.mask("reset", reset, batch, "(x without features)", x.device)
        if _autocast(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._stream(x, states, reset, self._drop)
        return self._stream(x, states, reset, self._drop)

    @torch.no_grad()
    def bound_step(self, x: Tensor, state: tuple[Any, ...]) -> BoundStep:
        """`step` without gradients on the same tensors again and again: `y = bound(reset=None)`.

        Each call reads x (B, I), which the caller fills, and updates `state` in place. y (B, H)
        belongs to the core: the next call may overwrite it. Bind anew when parameters have been
        replaced rather than changed in place.
        """
        self._checked_input(x, (2,), "(B, I)")
        self._checked_states(state, x.shape[:1])
        fast = self._bound_kernel(x, state[0]) if len(state) == 1 else None

        @torch.no_grad()
        def bound(reset: Tensor | None = None) -> Tensor:
            if fast is None or self._power_observer is not None:
                return self.step(x, state, reset)[0]
            if reset is not None:
                _clear(state[0], reset)
            return fast()

        return bound

    def _bound_kernel(self, x: Tensor, state: Any) -> Callable[[], Tensor] | None:
        """A step of the only layer without any overhead, if the model has one for these tensors."""
        return None

    def _checked_input(self, x: object, ranks: tuple[int, ...], shapes: str) -> Tensor:
        like = self._like()
        x = checks.tensor("x", x, like.device, _expected_dtype(like))
        if x.dim() not in ranks or x.shape[-1] != self.input_size:
            raise ValueError(
                f"x: expected {shapes} with I = {self.input_size}, got shape {tuple(x.shape)}"
            )
        return x

    def _checked_states(
        self, state: object, batch: tuple[int, ...], writable: bool = False
    ) -> tuple[Any, ...]:
        like, layers = self._like(), list(self._layers())
        if state is None and not writable:
            return tuple(self._start_state(n, batch, like) for n, _ in layers)
        if state is None:
            return tuple(self._zero_state(n, batch, like.device, like.dtype) for n, _ in layers)
        if not isinstance(state, tuple) or type(state) is self.state_type:
            raise TypeError(
                f"state: expected a tuple with one {self.state_type.__name__} per layer and "
                f"direction, got {type(state).__name__}"
            )
        if len(state) != len(layers):
            raise ValueError(
                f"state: expected {len(layers)} {self.state_type.__name__} (num_layers "
                f"{self.num_layers}, directions {self.num_directions}), got {len(state)}"
            )
        return tuple(
            self._checked_state(f"state[{k}]", state[k], input_size, batch, like)
            for k, (input_size, _) in enumerate(layers)
        )

    def _run_layers(
        self,
        x: Tensor,  # (B, T, I)
        states: tuple[Any, ...],
        reset: Tensor | None,  # (B, T)
        lengths: Tensor | None,  # (B,)
        run: Run,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        if _autocast(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._run_layers(x, states, reset, lengths, run)
        dtype = self._like().dtype
        compute = _compute_dtype(dtype)
        x = x.to(compute)
        reset_reversed = None
        if self.bidirectional and reset is not None:
            reset_reversed = _reversed_reset(reset, lengths)
        finals: list[Any] = []
        outputs: list[Tensor] = []
        for k, (input_size, suffix) in enumerate(self._layers()):
            reverse = k % self.num_directions == 1
            first = k < self.num_directions
            y, final, power = run(
                reversed_time(x, lengths) if reverse else x,
                _converted(states[k], compute),
                reset_reversed if reverse else reset,
                lengths,
                suffix,
                self._power_weight(input_size, first, x),
            )
            if self._power_observer is not None and power is not None:
                power = reversed_time(power, lengths) if reverse else power
                self._power_observer(power, lengths, suffix)
            finals.append(_converted(final, dtype))
            outputs.append(reversed_time(y, lengths) if reverse else y)
            if len(outputs) == self.num_directions:
                x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
                outputs = []
                if k + 1 < self.num_layers * self.num_directions:
                    x = self._drop(x)
        return x.to(dtype), tuple(finals)

    def _drop(self, y: Tensor) -> Tensor:
        """Dropout between layers."""
        return functional.dropout(y, self.dropout, self.training) if self.dropout else y

    def extra_repr(self) -> str:
        shown = {
            "num_layers": (self.num_layers, 1),
            "bias": (self.bias, True),
            "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0),
            "bidirectional": (self.bidirectional, False),
        }
        changed = [f"{name}={value}" for name, (value, usual) in shown.items() if value != usual]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *changed])


class RecurrentCell(Recurrence):
    """Base of all cells: `h, state = cell(x, state=None, reset=None)`.

    x (B, I) or (I,), reset bool (B,) or (); the state is a single named tuple. Under
    `torch.no_grad()` a given state is updated in place and returned: clone it to keep it.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        """A subclass then sets its own options and calls `_build(device, dtype)`."""
        super().__init__()
        self.input_size = checks.positive_int("input_size", input_size)
        self.hidden_size = checks.positive_int("hidden_size", hidden_size)
        self.has_bias = checks.flag("bias", bias)

    def _layers(self) -> Iterator[tuple[int, str]]:
        yield self.input_size, ""

    def initial_state(
        self,
        batch_size: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Zeros for a batch (None: unbatched), by default on the device of the parameters."""
        batch = () if batch_size is None else (checks.positive_int("batch_size", batch_size),)
        checks.floating_dtype("dtype", dtype)
        like = self._like()
        return self._zero_state(self.input_size, batch, device or like.device, dtype or like.dtype)

    def forward(
        self, x: Tensor, state: Any = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        like = self._like()
        x = checks.tensor("x", x, like.device, _expected_dtype(like))
        if x.dim() not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"x: expected (B, I) or (I,) with I = {self.input_size}, got {tuple(x.shape)}"
            )
        batch = tuple(x.shape[:-1])
        if state is None:
            state = self._zero_state(self.input_size, batch, like.device, like.dtype)
        else:
            state = self._checked_state("state", state, self.input_size, batch, like)
        if reset is not None:
            reset = checks.mask("reset", reset, batch, "(x without features)", x.device)
        if _autocast(x):
            with torch.autocast(x.device.type, enabled=False):
                y, (state,) = self._stream(x, (state,), reset)
        else:
            y, (state,) = self._stream(x, (state,), reset)
        return y, state

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.has_bias else ", bias=False")


def last_step(y: Tensor, lengths: Tensor | None) -> Tensor:
    """y (B, T, H) at each sequence's end, as a tensor of its own (B, H)."""
    if lengths is None:
        return y[:, -1].clone()
    return y[torch.arange(y.shape[0], device=y.device), lengths - 1]


def _clear(state: Any, reset: Tensor) -> None:
    """Zero the state of the sequences that start anew, reset (B,)."""
    for value in state:
        value.masked_fill_(reset.reshape(-1, *(1,) * (value.dim() - 1)), 0)


def _expected_dtype(like: Tensor) -> torch.dtype | None:
    """Of arguments: that of the parameters, or any (None) under autocast."""
    return None if _autocast(like) else like.dtype


def _autocast(like: Tensor) -> bool:
    kind = like.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def _converted(state: Any, dtype: torch.dtype) -> Any:
    """The state in this dtype; most are already."""
    return state if all(value.dtype == dtype for value in state) else state.to(dtype)


def _cpu(order: slice | Tensor) -> slice | Tensor:
    return order.cpu() if isinstance(order, Tensor) else order


def reversed_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, T, ...) backwards in time, each sequence within its own length."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    end = lengths.unsqueeze(1)  # (B, 1)
    index = torch.where(t < end, end - 1 - t, t)  # (B, T)
    return x[torch.arange(x.shape[0], device=x.device).unsqueeze(1), index]


def _reversed_reset(reset: Tensor, lengths: Tensor | None) -> Tensor:
    """The mask (B, T) for the reverse direction, in its order of time.

    A sequence that begins at step t ends, seen backwards, before step t - 1: that one starts fresh.
    """
    backwards = reversed_time(reset, lengths)
    return torch.cat([torch.zeros_like(backwards[:, :1]), backwards[:, :-1]], dim=1)
