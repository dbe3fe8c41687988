"""`Recurrence`: what a core is, in one layer and one direction. This is the core protocol.

A core says what one layer in one direction does; reading sequences and streams, stacking, both
directions, packing, resets, checks of arguments and power meters follow. In full:

    @stpn.nn.state
    class LeakyState(NamedTuple):
        h: Tensor                                             # (B, H)

    class Leaky(RecurrentCore):                               # LeakyCell: of RecurrentCell
        state_type = LeakyState

        def configure(self, *, leak: Annotated[float, "how much of h is kept"] = 0.9):
            self.leak = leak

        def state_shapes(self, input_size):
            return ((self.hidden_size,),)

        def parameter_shapes(self, input_size):
            return {"weight": (self.hidden_size, input_size + self.hidden_size)}

        def init_parameters(self, p, input_size):
            nn.init.xavier_uniform_(p["weight"])

        def advance(self, x, state, p):
            u = torch.cat([x, state.h], dim=1)
            h = self.leak * state.h + torch.tanh(u @ p["weight"].t())
            return h, LeakyState(h)

        def synapses(self, state, p):                         # to be metered and traced
            return torch.zeros_like(p["weight"]), p["weight"]

    stpn.register_core("leaky", Leaky, title="Leaky")         # stpn.build("leaky", 37, 20)
    stpn.testing.check_core("leaky")

Notation: B sequences, T steps, I inputs, H hidden units, R rows of synapses (H, or a multiple with
gates), D columns (I + H, inputs first; I where synapses see x alone).
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from stpn.nn import checks
from stpn.nn.operations import Operations
from stpn.nn.options import check_options, options_of, signature_with_options
from stpn.nn.state import rebuilt
from stpn.ops.registry import say_plain
from stpn.ops.scan import scan

Parameters: TypeAlias = Mapping[str, Any]
"""The parameters of a layer and direction by name: Tensors, or None for what it does without."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...] | None]

Run: TypeAlias = Callable[
    [Tensor, Any, Parameters, Tensor | None, Tensor | None, Tensor | None],
    tuple[Tensor, Any, Tensor | None],
]
"""`Recurrence.run`, or a function that stands in for it."""

_HALF = (torch.bfloat16, torch.float16)

FIRST = ("", "_l0", "_l0_reverse")
"""Suffixes of what sees the inputs of the whole core."""


class Layer(NamedTuple):
    """One layer in one direction."""

    input_size: int
    suffix: str
    """Of its parameters' names: "_l0", "_l0_reverse", "_l1", ...; "" in a cell."""


class PowerObserver(Protocol):
    """Told the power of every layer and direction that ran."""

    def __call__(self, power: Tensor, lengths: Tensor | None, suffix: str) -> None:
        """power (B, T) in the order of time, 0 past the `lengths` (B,) of a packed sequence."""


class Recurrence(nn.Module):
    """The protocol of cores and cells. Inside its hooks everything is batched, batch first.

    A core defines

    - `state_type`, a named tuple of tensors made a state by `stpn.nn.state`, and `recurrent`;
    - `configure`, its own options as keyword arguments with defaults;
    - `state_shapes`, `parameter_shapes`, `init_parameters`;
    - `advance`, one time step in plain PyTorch;
    - `synapses`, to be metered and traced, if advance has one matrix of efficacies.

    With kernels of its own it may define, from the definition to its fastest form, `run` (a whole
    sequence), `run_in_place` (one step of a stream) and `bind` (a step on the same tensors again
    and again). A subclass that changes one of `advance`, `run`, `run_in_place`, `bind` must change
    those after it that its base has changed: else sequences and streams would follow two rules, so
    such a class is refused.

    Of x, state and parameters the hooks see float32 or float64 only; bfloat16 and float16 are
    converted before and after. A plastic core leaves its synapses alone while `frozen` is true.
    """

    state_type: ClassVar[Callable[..., Any]]
    """The named tuple of the state."""
    recurrent: ClassVar[bool] = True
    """Whether synapses see h_prev beside x; then `power_weight` has I + H entries, else I."""

    input_size: int
    hidden_size: int
    has_bias: bool
    layers: tuple[Layer, ...]
    """Every layer and direction, in the order of the state."""
    configuration: dict[str, Any]
    """The core's own options, as given or by default."""
    plain_because: str = ""
    """Why no kernel takes sequences of a core of the package, which is logged once; `configure` may
    set it."""
    untrained: tuple[str, ...] = ()
    """Parameters by name that training leaves alone; `configure` may set it."""
    freezes: int = 0
    """Nested `stpn.frozen_plasticity` contexts around this module."""
    power_graph: bool = True
    """Whether an observer wants gradients of the power."""

    _observers: dict[PowerObserver, bool] | None = None  # and whether each wants gradients
    _ignored: tuple[int, ...] = ()  # inputs that cost nothing
    _power_weights: Mapping[str, Tensor]  # (D,) by suffix: what each input counts in the power
    _names: dict[str, tuple[tuple[str, str], ...]]  # by suffix: (name, attribute) of parameters

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _refuse_two_rules(cls)
        # So that help() and completion show the options of this core.
        cls.__signature__ = signature_with_options(cls)  # type: ignore[attr-defined]

    # What a core defines.

    def configure(self) -> None:
        """Check and keep the options, which are keyword arguments with defaults."""

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        """The shape of each field of the state, without the batch."""
        raise NotImplementedError

    def parameter_shapes(self, input_size: int) -> Shapes:
        """The parameters by name; None for one that this configuration does without."""
        raise NotImplementedError

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        """Give the parameters of a layer and direction their initial values."""
        raise NotImplementedError

    def advance(self, x: Tensor, state: Any, p: Parameters) -> tuple[Tensor, Any]:
        """One time step, x (B, I): y (B, H) and the new state."""
        raise NotImplementedError

    def run(
        self,
        x: Tensor,  # (B, T, I)
        state: Any,
        p: Parameters,
        reset: Tensor | None,  # (B, T) bool: this step starts from a zero state
        lengths: Tensor | None,  # (B,) int64, at least 1
        power_weight: Tensor | None,  # (D,): what each input counts in the power
    ) -> tuple[Tensor, Any, Tensor | None]:
        """y (B, T, H), the state at each sequence's end, and, if asked, the power (B, T).

        Past its end a sequence keeps its state, and y and power are 0. No tensor of the new state
        may share memory with y or with the old state.
        """
        if self.plain_because:
            say_plain(self.plain_because)

        def step(x_t: Tensor, values: tuple[Tensor, ...]) -> Any:
            old = rebuilt(state, values)
            power = None
            if power_weight is not None:
                power = self._power_of_a_step(x_t, old, p, power_weight)  # (B,)
            y, new = self.advance(x_t, old, p)
            return y, tuple(new), power

        y, values, power = scan(step, x, tuple(state), reset, lengths)
        final = [v.clone() if v is old else v for v, old in zip(values, state, strict=True)]
        return y, rebuilt(state, final), power

    def run_in_place(
        self, x: Tensor, state: Any, p: Parameters, power_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One step without gradients, x (B, I), that overwrites `state`.

        Returns y (B, H), which shares no memory with the state, and the power (B,).
        """
        y, new, power = self.run(x.unsqueeze(1), state, p, None, None, power_weight)
        for old, value in zip(state, new, strict=True):
            old.copy_(value)
        return y.squeeze(1), None if power is None else power.squeeze(1)

    def bind(self, x: Tensor, state: Any) -> Callable[[], Tensor] | None:
        """A step of the only layer without any overhead, if there is one for these tensors."""
        return None

    def synapses(self, state: Any, p: Parameters) -> tuple[Tensor, Tensor]:
        """The short-term weights and the efficacies that the next step uses.

        (R, D) or (B, R, D) each. The next step's power is the sum of u_j^2 |g_ij| over them.
        """
        raise TypeError(f"{type(self).__name__} has no short-term weights to trace")

    def count_synapses(self, input_size: int) -> int:
        """How many there are in a layer and direction: by default the entries of all weights."""
        shapes = self.parameter_shapes(input_size).items()
        return sum(math.prod(s) for name, s in shapes if s and name.startswith("weight"))

    def operations(self, input_size: int) -> Operations:
        """What one step of a layer and direction asks of hardware, for `EnergyMeter.energy`.

        By default all synapses of a unit lie on one line and add up there, and every entry of a
        state with two dimensions is a synapse that is written.
        """
        shapes = self.parameter_shapes(input_size).items()
        rows = [s[0] for name, s in shapes if s and len(s) == 2 and name.startswith("weight")]
        seen = input_size + self.hidden_size * self.recurrent
        states = self.state_shapes(input_size)
        cells = self.count_synapses(input_size)
        return Operations(
            cells=cells,
            reads=cells,
            inputs=seen,
            outputs=max(rows, default=self.hidden_size),
            fan_in=seen,
            writes=sum(math.prod(s) for s in states if len(s) == 2),
        )

    # What all have.

    @property
    def frozen(self) -> bool:
        """Whether the synapses are to stay as they are."""
        return self.freezes > 0

    @property
    def observed(self) -> bool:
        """Whether someone is told its power."""
        return self._observers is not None

    @property
    def state_size(self) -> int:
        """How many numbers the state of one sequence has, in all layers and directions."""
        sizes = (self.state_shapes(input_size) for input_size, _ in self.layers)
        return sum(math.prod(shape) for shapes in sizes for shape in shapes)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        with torch.no_grad():
            for input_size, suffix in self.layers:
                named = {name: getattr(self, key) for name, key in self._names[suffix]}
                self.init_parameters(named, input_size)

    def layer_parameters(self, suffix: str) -> dict[str, Any]:
        """The parameters of a layer and direction as the computation uses them."""
        own = self._parameters
        # One that is not there is parametrised, and computed by its module.
        p = {
            name: own[key] if key in own else getattr(self, key)
            for name, key in self._names[suffix]
        }
        if self.like.dtype in _HALF:
            p = {name: None if value is None else value.float() for name, value in p.items()}
        return p

    @property
    def like(self) -> Tensor:
        """Any parameter: they share device and dtype."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter
        return next(self.parameters())  # all of them are parametrised, in a module of their own

    def observe_power(
        self, observer: PowerObserver, *, ignored: Sequence[int] = (), graph: bool = True
    ) -> Callable[[], None]:
        """Tell `observer` the power of all that runs from now on; the result ends that.

        Inputs of the first layer that are `ignored` cost nothing. `graph` says whether the power
        is wanted with gradients.
        """
        if self._observers is None:
            self._ignored, self._power_weights = tuple(ignored), self._counted(ignored)
            self._observers = {}
        elif self._ignored != tuple(ignored):
            raise ValueError(
                f"ignore_inputs: expected {list(self._ignored)} of this {type(self).__name__}, as "
                f"in the meter around this one, got {list(ignored)}"
            )
        observers = self._observers
        observers[observer] = graph
        self.power_graph = any(observers.values())

        def end() -> None:
            del observers[observer]
            self.power_graph = any(observers.values())
            if not observers:
                del self._observers, self._ignored, self._power_weights, self.power_graph

        return end

    def _counted(self, ignored: Sequence[int]) -> dict[str, Tensor]:
        """What each input counts, made once: in a small network that can be felt in a call."""
        like, weights = self.like, {}
        for input_size, suffix in self.layers:
            size = input_size + self.hidden_size * self.recurrent
            with torch.inference_mode(False):  # training may follow inside the same watch
                counted = torch.ones(size, dtype=compute_dtype(like.dtype))
                if suffix in FIRST:
                    counted[list(ignored)] = 0
                weights[suffix] = counted.to(like.device)
        return weights

    def _power_weight(self, suffix: str, x: Tensor) -> Tensor | None:
        if self._observers is None:
            return None
        return self._power_weights[suffix].to(x)  # the model may have moved since

    def _tell(self, power: Tensor | None, lengths: Tensor | None, suffix: str) -> None:
        if self._observers is not None and power is not None:
            for observer in self._observers:
                observer(power, lengths, suffix)

    def _power_of_a_step(
        self, x: Tensor, state: Any, p: Parameters, power_weight: Tensor
    ) -> Tensor:  # (B,)
        _, g = self.synapses(state, p)
        u = torch.cat([x, state[0]], dim=1) if self.recurrent else x  # (B, D)
        return (g.abs() * (power_weight * u * u).unsqueeze(1)).sum((1, 2))

    def _layout(self) -> Iterable[Layer]:
        raise NotImplementedError

    def _set_up(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        options: dict[str, Any],
    ) -> None:
        """What is left of the constructor when a layer or a cell has checked its own arguments."""
        self.input_size = checks.positive_int("input_size", input_size)
        self.hidden_size = checks.positive_int("hidden_size", hidden_size)
        self.has_bias = checks.flag("bias", bias)
        checks.floating_dtype("dtype", dtype)
        self.layers = tuple(self._layout())
        check_options(type(self), options)
        usual = {name: option.default for name, option in options_of(type(self)).items()}
        self.configuration = {**usual, **options}
        self.configure(**self.configuration)
        self._names = {}
        for layer_inputs, suffix in self.layers:
            shapes = self.parameter_shapes(layer_inputs)
            self._names[suffix] = tuple((name, _attribute(name, suffix)) for name in shapes)
            for name, shape in shapes.items():
                parameter = None
                if shape is not None:
                    made = torch.empty(shape, device=device, dtype=dtype)
                    parameter = nn.Parameter(made, requires_grad=name not in self.untrained)
                self.register_parameter(_attribute(name, suffix), parameter)
        self.reset_parameters()

    def _changed_options(self) -> list[str]:
        """For `repr`: the options that are not the usual ones."""
        usual = options_of(type(self))
        return [
            f"{name}={value!r}"
            for name, value in self.configuration.items()
            if value != usual[name].default
        ]

    def _zero_state(
        self, input_size: int, batch: tuple[int, ...], device: Any, dtype: torch.dtype | None
    ) -> Any:
        shapes = self.state_shapes(input_size)
        return self.state_type(
            *(torch.zeros(batch + shape, device=device, dtype=dtype) for shape in shapes)
        )

    def _start_state(self, input_size: int, batch: tuple[int, ...], like: Tensor) -> Any:
        """A zero state that is only read: one zero, expanded. F of a large batch would take time
        to clear and memory to read that the kernels do without."""
        zero = like.new_zeros(())
        shapes = self.state_shapes(input_size)
        return self.state_type(*(zero.expand(batch + shape) for shape in shapes))

    def _checked_state(
        self, name: str, state: object, input_size: int, batch: tuple[int, ...], like: Tensor
    ) -> Any:
        shapes = [batch + shape for shape in self.state_shapes(input_size)]
        dtype = expected_dtype(like)
        return checks.state(name, state, self.state_type, shapes, like.device, dtype)

    def _one_step(
        self,
        x: Tensor,  # (B, I)
        state: Any,
        reset: Tensor | None,  # (B,)
        suffix: str,
        inplace: bool,
    ) -> tuple[Tensor, Any]:
        """y (B, H) and the new state, which `inplace` is the old one, overwritten."""
        p, power_weight = self.layer_parameters(suffix), self._power_weight(suffix, x)
        if inplace:
            if reset is not None:
                clear(state, reset)
            y, power = self.run_in_place(x, state, p, power_weight)
        else:
            mask = None if reset is None else reset.unsqueeze(1)
            y, state, power = self.run(x.unsqueeze(1), state, p, mask, None, power_weight)
            y, power = y.squeeze(1), None if power is None else power.squeeze(1)
        self._tell(None if power is None else power.unsqueeze(1), None, suffix)
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
        dtype = self.like.dtype
        compute = compute_dtype(dtype)
        y = x if x.dtype == compute else x.to(compute)
        y = y if batched else y.unsqueeze(0)
        if reset is not None and not batched:
            reset = reset.unsqueeze(0)
        new_states = []
        for k, (_, suffix) in enumerate(self.layers):
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
                new_states.append(converted(new, dtype))
        y = y if batched else y.squeeze(0)
        return y if compute == dtype else y.to(dtype), tuple(new_states)


_RULE = ("advance", "run", "run_in_place", "bind")
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
                    f"`{faster} = RecurrentCore.{faster}`"
                )


def _attribute(name: str, suffix: str) -> str:
    """`lambda` of a cell is `lambda_`, as Python keeps the word for itself."""
    return name + (suffix or ("_" if keyword.iskeyword(name) else ""))


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
    return (kind == "cpu" or torch.amp.is_autocast_available(kind)) and (
        torch.is_autocast_enabled(kind)
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def converted(state: Any, dtype: torch.dtype) -> Any:
    """The state in this dtype; most are already."""
    for value in state:
        if value.dtype != dtype:
            return state.to(dtype)
    return state
