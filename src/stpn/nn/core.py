"""`RecurrentCore`: sequences with the conventions of `nn.RNN`, and streams of single steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from stpn.nn import checks
from stpn.nn.base import (
    Layer,
    Recurrence,
    Run,
    autocast,
    check_overwritable,
    clear,
    compute_dtype,
    converted,
    expected_dtype,
)
from stpn.nn.state import rebuilt
from stpn.nn.time import reversed_reset, reversed_time


class BoundStep(Protocol):
    """One more time step of a stream."""

    def __call__(self, reset: Tensor | None = None) -> Tensor:
        """reset bool (B,) -> y (B, H)"""


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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """`options` are the core's own: keyword arguments of its `configure`."""
        super().__init__()
        self.num_layers = checks.positive_int("num_layers", num_layers)
        self.batch_first = checks.flag("batch_first", batch_first)
        self.dropout = checks.probability("dropout", dropout)
        self.bidirectional = checks.flag("bidirectional", bidirectional)
        if self.dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout acts between layers, so it does nothing with num_layers=1", stacklevel=2
            )
        self._set_up(input_size, hidden_size, bias, device, dtype, options)
        self.bias = self.has_bias  # as nn.RNN has it

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def flatten_parameters(self) -> None:
        """Nothing to do: for code that was written for `nn.LSTM`."""

    def _layout(self) -> Iterator[Layer]:
        for layer in range(self.num_layers):
            size = self.hidden_size * self.num_directions if layer else self.input_size
            yield Layer(size, f"_l{layer}")
            if self.bidirectional:
                yield Layer(size, f"_l{layer}_reverse")

    def initial_state(
        self,
        batch_size: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Any, ...]:
        """Zeros for a batch (None: unbatched), by default on the device of the parameters."""
        batch = () if batch_size is None else (checks.positive_int("batch_size", batch_size),)
        checks.floating_dtype("dtype", dtype)
        like = self.like
        device, dtype = device or like.device, dtype or like.dtype
        return tuple(self._zero_state(size, batch, device, dtype) for size, _ in self.layers)

    def forward(
        self,
        x: Tensor | PackedSequence,
        state: tuple[Any, ...] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        if isinstance(x, PackedSequence):
            return self._packed_sequence(x, state, reset)
        return self.forward_by(self.run, x, state, reset)

    def forward_by(
        self,
        run: Run,
        x: Tensor,
        state: tuple[Any, ...] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """`forward` of a tensor, with `run` in place of the core's own, to look inside."""
        x = self._checked_input(x, (2, 3), "(T, I), (B, T, I)" if self.batch_first else "(T, B, I)")
        batched = x.dim() == 3
        time = 1 if batched and self.batch_first else 0
        batch = (x.shape[1 - time],) if batched else ()
        if x.shape[time] == 0:
            raise ValueError(f"x: expected at least one time step, got shape {tuple(x.shape)}")
        states = self.checked_states(state, batch)
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
        states = self.checked_states(state, (batch,))
        if reset is not None:
            shape = (batch, steps) if self.batch_first else (steps, batch)
            reset = checks.mask("reset", reset, shape, "(the padded x, no features)", padded.device)
            reset = reset if self.batch_first else reset.transpose(0, 1)
        y, states = self._run_layers(padded, states, reset, lengths.to(padded.device), self.run)
        order = slice(None) if x.sorted_indices is None else x.sorted_indices
        data = pack_padded_sequence(y[order], lengths[_cpu(order)], batch_first=True).data
        return PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices), states

    def step(
        self,
        x: Tensor,
        state: tuple[Any, ...] | None = None,
        reset: Tensor | None = None,
        *,
        inplace: bool = False,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """One time step: x (B, I) or (I,) to y (B, H) or (H,); reset bool (B,) or ().

        The given state is left as it is. With `inplace=True`, for long streams under
        `torch.no_grad()`, its tensors are overwritten and returned.
        """
        if self.bidirectional:
            raise ValueError(
                "step: expected a core of one direction, got bidirectional=True, "
                "which needs the whole sequence at once"
            )
        x = self._checked_input(x, (1, 2), "(B, I) or (I,)")
        batch = tuple(x.shape[:-1])
        states = self.checked_states(state, batch, writable=inplace)
        if reset is not None:
            reset = checks.mask("reset", reset, batch, "(x without features)", x.device)
        return self._stream(x, states, reset, inplace, self._drop)

    @torch.no_grad()
    def bound_step(self, x: Tensor, state: tuple[Any, ...]) -> BoundStep:
        """`step(..., inplace=True)` on the same tensors again and again: `y = bound(reset=None)`.

        Each call reads x (B, I), which the caller fills, and updates `state` in place. y (B, H)
        belongs to the core: the next call may overwrite it. Bind anew when parameters have been
        replaced rather than changed in place.
        """
        self._checked_input(x, (2,), "(B, I)")
        state = self.checked_states(state, x.shape[:1])
        check_overwritable(state)
        fast = self.bind(x, state[0]) if len(state) == 1 else None

        @torch.no_grad()
        def bound(reset: Tensor | None = None) -> Tensor:
            if fast is None or self.freezes or self._observers is not None:
                return self.step(x, state, reset, inplace=True)[0]
            if reset is not None:
                clear(state[0], reset)
            return fast()

        return bound

    def _checked_input(self, x: object, ranks: tuple[int, ...], shapes: str) -> Tensor:
        like = self.like
        x = checks.tensor("x", x, like.device, expected_dtype(like))
        if x.dim() not in ranks or x.shape[-1] != self.input_size:
            raise ValueError(
                f"x: expected {shapes} with I = {self.input_size}, got shape {tuple(x.shape)}"
            )
        return x

    def checked_states(
        self, state: object, batch: tuple[int, ...], writable: bool = False
    ) -> tuple[Any, ...]:
        like, layers = self.like, self.layers
        if state is None and not writable:
            return tuple(self._start_state(n, batch, like) for n, _ in layers)
        if state is None:
            return tuple(self._zero_state(n, batch, like.device, like.dtype) for n, _ in layers)
        if not isinstance(state, (tuple, list)) or any(isinstance(s, Tensor) for s in state):
            raise TypeError(
                f"state: expected a tuple with one {self.state_type.__name__} per layer and "
                f"direction, got {type(state).__name__}; of one layer it is (state,)"
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
        if autocast(x):
            with torch.autocast(x.device.type, enabled=False):
                return self._run_layers(x, states, reset, lengths, run)
        dtype, directions = self.like.dtype, self.num_directions
        compute = compute_dtype(dtype)
        x = x if x.dtype == compute else x.to(compute)
        reset_reversed = None
        if self.bidirectional and reset is not None:
            reset_reversed = reversed_reset(reset, lengths)
        finals: list[Any] = []
        outputs: list[Tensor] = []
        for k, (_, suffix) in enumerate(self.layers):
            reverse = k % directions == 1
            y, final, power = run(
                reversed_time(x, lengths) if reverse else x,
                converted(states[k], compute),
                self.layer_parameters(suffix),
                reset_reversed if reverse else reset,
                lengths,
                self._power_weight(suffix, x),
            )
            if reverse and power is not None:
                power = reversed_time(power, lengths)
            self._tell(power, lengths, suffix)
            finals.append(converted(final, dtype))
            outputs.append(reversed_time(y, lengths) if reverse else y)
            if len(outputs) == directions:
                x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
                outputs = []
                if k + 1 < len(self.layers):
                    x = self._drop(x)
        return x if compute == dtype else x.to(dtype), tuple(finals)

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
        sizes = f"{self.input_size}, {self.hidden_size}"
        return ", ".join([sizes, *changed, *self._changed_options()])


def _cpu(order: slice | Tensor) -> slice | Tensor:
    return order.cpu() if isinstance(order, Tensor) else order
