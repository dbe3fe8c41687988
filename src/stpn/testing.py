"""What every core promises, as checks that can be run on a core of one's own.

    stpn.testing.check_core("leaky")                # a registered name, or a class
    stpn.testing.check_core(Leaky, leak=0.5)        # with options

or one by one, for example by pytest:

    @pytest.mark.parametrize("check", stpn.testing.CHECKS)
    def test_leaky(check):
        stpn.testing.check_core(Leaky, only=[check])

A broken promise is an AssertionError that says which. All of it takes some seconds, most of them
for "compile". The checks say that a core is consistent, not that its rule is the intended one: that
wants a test of its own, against the definition.
"""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from stpn import cores
from stpn.nn.core import RecurrentCore
from stpn.nn.state import rebuilt
from stpn.plasticity import frozen_plasticity, trace

BATCH, STEPS, INPUTS, HIDDEN = 3, 6, 5, 4


@dataclass(frozen=True)
class _Subject:
    """What is checked."""

    cls: type[RecurrentCore]
    options: dict[str, Any]

    def __call__(self, sizes: tuple[int, int] = (INPUTS, HIDDEN), **more: Any) -> Any:
        """A core whose parameters all matter, also those that start with little effect."""
        core = self.cls(*sizes, **{"batch_first": True, **self.options, **more})
        if core.like.device.type != "meta":
            with torch.no_grad():
                for parameter in core.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return core


def check_core(
    core: str | type[RecurrentCore],
    *,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    **options: Any,
) -> None:
    """Check what every core promises: all of `CHECKS`, or `only` some, without those to `skip`."""
    if isinstance(core, str):
        entry = cores.get(core)
        core, options = entry.load(), {**entry.options, **options}
    for name in (*(only or ()), *skip):
        if name not in CHECKS:
            raise ValueError(f"check: expected one of {', '.join(CHECKS)}, got {name!r}")
    subject = _Subject(core, options)
    for name in CHECKS if only is None else only:
        if name not in skip:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                try:
                    CHECKS[name](subject)
                except Exception as error:
                    promise = (CHECKS[name].__doc__ or "").strip()
                    raise AssertionError(f"{core.__name__}, {name}: {promise} ({error})") from error


def _sequence() -> tuple[Tensor, Tensor]:
    """x (B, T, I) and reset (B, T)."""
    return torch.randn(BATCH, STEPS, INPUTS), torch.rand(BATCH, STEPS) < 0.4


def _of(state: Iterable[Any], b: int) -> tuple[tuple[Tensor, ...], ...]:
    """Sequence b of a batch's state."""
    return tuple(tuple(value[b] for value in layer) for layer in state)


def _plain(state: Iterable[Any]) -> tuple[tuple[Tensor, ...], ...]:
    return tuple(tuple(layer) for layer in state)


def _check_shapes(make: _Subject) -> None:
    """Outputs and states have the shapes that `nn.RNN` and `state_shapes` say, in every layout."""
    x, reset = _sequence()
    core = make(num_layers=2, bidirectional=True)
    y, state = core(x)
    assert y.shape == (BATCH, STEPS, 2 * HIDDEN), f"y has shape {tuple(y.shape)}"
    assert len(state) == len(core.layers) == 4
    for layer, (input_size, _) in zip(state, core.layers, strict=True):
        assert type(layer) is core.state_type
        shapes = [(BATCH, *shape) for shape in core.state_shapes(input_size)]
        assert [tuple(value.shape) for value in layer] == shapes
    first, other = make(), make(batch_first=False)
    other.load_state_dict(first.state_dict())
    y, state = first(x, None, reset)
    y_other, state_other = other(x.transpose(0, 1), None, reset.t())
    assert_close(y_other.transpose(0, 1), y)
    assert_close(_plain(state_other), _plain(state))
    for b in range(BATCH):
        alone, end = first(x[b], None, reset[b])
        assert_close(alone, y[b])
        assert_close(_plain(end), _of(state, b))


def _check_state(make: _Subject) -> None:
    """A state is a value: zeros are the start, plain tuples do, it is saved and loaded, and what is
    given stays as it was."""
    core, (x, _) = make(), _sequence()
    y, final = core(x)
    start = core.initial_state(BATCH)
    assert not any(value.any() for layer in start for value in layer), "it does not start at 0"
    assert_close(core(x, start)[0], y)
    kept = tuple(layer.clone() for layer in final)
    expected, end = core(x, final)
    assert_close(_plain(final), _plain(kept), rtol=0, atol=0)
    for value in (value for layer in end for value in layer.detach()):
        value.fill_(torch.nan)
    assert_close(_plain(final), _plain(kept), rtol=0, atol=0)
    assert expected.isfinite().all(), "the state shares memory with y"
    assert_close(core(x, _plain(final))[0], expected)
    buffer = io.BytesIO()
    torch.save(tuple(layer.detach() for layer in kept), buffer)
    buffer.seek(0)
    assert_close(core(x, torch.load(buffer, weights_only=True))[0], expected)


def _check_chunks(make: _Subject) -> None:
    """A sequence in pieces, each from the state of the one before, is the sequence as a whole."""
    core, (x, reset) = make(num_layers=2), _sequence()
    y, final = core(x, None, reset)
    state: Any = None
    pieces = []
    for part in (slice(0, 2), slice(2, 3), slice(3, None)):
        piece, state = core(x[:, part], state, reset[:, part])
        pieces.append(piece)
    assert_close(torch.cat(pieces, 1), y)
    assert_close(_plain(state), _plain(final))


def _check_resets(make: _Subject) -> None:
    """Where `reset` is true a new sequence begins, in both directions, whatever the state held."""
    for bidirectional in (False, True):
        core, (x, reset) = make(bidirectional=bidirectional), _sequence()
        reset[:, 0] = True
        spoilt = tuple(
            rebuilt(layer, (torch.full_like(v, torch.nan) for v in layer))
            for layer in core.initial_state(BATCH)[:1]
        )
        state = (*spoilt, *core.initial_state(BATCH)[1:])
        y, end = core(x, state, reset)
        for b in range(BATCH):
            starts = [t for t in range(STEPS) if reset[b, t]] + [STEPS]
            pieces = [core(x[b, s:e]) for s, e in itertools.pairwise(starts)]
            assert_close(torch.cat([piece for piece, _ in pieces]), y[b])
            assert_close(tuple(v[b] for v in end[0]), tuple(pieces[-1][1][0]))


def _check_lengths(make: _Subject) -> None:
    """A packed sequence is each of its sequences alone, with the state at its true end."""
    lengths = torch.tensor([2, STEPS, 4])
    for bidirectional in (False, True):
        core, (x, reset) = make(num_layers=2, bidirectional=bidirectional), _sequence()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, state = core(packed, None, reset)
        padded, _ = pad_packed_sequence(y, batch_first=True)
        for b, length in enumerate(lengths.tolist()):
            alone, end = core(x[b, :length], None, reset[b, :length])
            assert_close(padded[b, :length], alone)
            assert_close(_of(state, b), _plain(end))


def _check_stream(make: _Subject) -> None:
    """Steps, steps in place and bound steps are the sequence; a step leaves its state alone."""
    core, (x, reset) = make(num_layers=2), _sequence()
    y, final = core(x, None, reset)
    state: Any = None
    for t in range(STEPS):
        given = state and tuple(layer.detach().clone() for layer in state)
        y_t, new = core.step(x[:, t], state, reset[:, t])
        assert_close(y_t, y[:, t])
        if given is not None:
            assert_close(_plain(state), _plain(given), rtol=0, atol=0)
        state = new
    assert_close(_plain(state), _plain(final))
    for single in (core, make()):
        with torch.no_grad():
            y, final = single(x, None, reset)
            streamed, bound_state = single.initial_state(BATCH), single.initial_state(BATCH)
            memory = [value.data_ptr() for layer in streamed for value in layer]
            now = torch.zeros(BATCH, INPUTS)
            bound = single.bound_step(now, bound_state)
            for t in range(STEPS):
                y_t, streamed = single.step(x[:, t], streamed, reset[:, t], inplace=True)
                assert_close(y_t, y[:, t])
                assert [v.data_ptr() for layer in streamed for v in layer] == memory
                assert y_t.data_ptr() not in memory, "y shares memory with the state"
                now.copy_(x[:, t])
                assert_close(bound(reset[:, t]), y[:, t])
            for state in (streamed, bound_state):
                assert_close(_plain(state), _plain(final))


def _check_gradients(make: _Subject) -> None:
    """Gradients reach x and every trained parameter, and equal finite differences in float64."""
    core = make((2, 2), dtype=torch.float64)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    reset = torch.tensor([[False, False, True], [False, False, False]])
    start = [
        torch.randn_like(v).mul_(0.3).requires_grad_() for s in core.initial_state(2) for v in s
    ]
    parameters = {name: p for name, p in core.named_parameters() if p.requires_grad}

    def run(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(parameters, values[len(start) :], strict=True))
        state = (core.state_type(*values[: len(start)]),)
        y, (end,) = torch.func.functional_call(core, own, (x, state, reset))
        return (y, *end)

    inputs = (x, *start, *parameters.values())
    outputs = run(*inputs)
    total = torch.stack([value.square().sum() for value in outputs]).sum()
    found = torch.autograd.grad(total, [x, *parameters.values()], allow_unused=True)
    for name, gradient in zip(("x", *parameters), found, strict=True):
        reached = gradient is not None and gradient.isfinite().all() and gradient.any()
        assert reached, f"no gradient reaches {name}"
    assert torch.autograd.gradcheck(run, inputs, check_undefined_grad=False)


def _check_frozen(make: _Subject) -> None:
    """`frozen_plasticity` holds the short-term weights still, in sequences and in streams."""
    core, (x, _) = make(), _sequence()
    suffix = core.layers[0].suffix
    _, (state,) = core(x)
    try:
        before, _ = core.synapses(state, core.layer_parameters(suffix))
    except TypeError:  # none to be seen
        return
    with frozen_plasticity(core):
        _, (after,) = core(x, (state,))
        _, (step,) = core.step(x[:, 0], (state,))
    for end in (after, step):
        assert_close(core.synapses(end, core.layer_parameters(suffix))[0], before)


def _check_power(make: _Subject) -> None:
    """An observer is told the power of every layer: the sum of u^2 |g|, 0 past the ends, the same
    in streams, and y is what it is without."""
    core, (x, reset) = make(num_layers=2, bidirectional=True), _sequence()
    y, _ = core(x, None, reset)
    told: dict[str, Tensor] = {}
    end = core.observe_power(lambda power, lengths, suffix: told.update({suffix: power}))
    assert_close(core(x, None, reset)[0], y, rtol=0, atol=0)
    assert list(told) == [layer.suffix for layer in core.layers]
    for power in told.values():
        assert power.shape == (BATCH, STEPS)
        assert power.isfinite().all()
        assert (power >= 0).all()
    lengths = [2, STEPS, 4]
    core(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    packed = dict(told)
    for b, length in enumerate(lengths):
        core(x[b, :length])
        for suffix, power in told.items():
            assert_close(packed[suffix][b, :length], power[0])
            assert not packed[suffix][b, length:].any()
    end()
    single, powers = make(), list[Tensor]()
    end = single.observe_power(lambda power, lengths, suffix: powers.append(power))
    single(x)
    state = single.initial_state(BATCH)
    with torch.no_grad():
        for t in range(STEPS):
            single.step(x[:, t], state, inplace=True)
    assert_close(torch.cat(powers[1:], 1), powers[0])
    end()
    try:
        traced = trace(single, x)
    except TypeError:  # no single matrix of efficacies
        return
    h = torch.cat([torch.zeros_like(traced.h[:, :1]), traced.h[:, :-1]], 1)
    u = torch.cat([x, h], -1) if single.recurrent else x
    assert_close((u.square().unsqueeze(-2) * traced.g.abs()).sum((-2, -1)), powers[0])


def _check_dtypes(make: _Subject) -> None:
    """It runs in float64, and bfloat16 and autocast are computed in float32."""
    core, (x, _) = make(), _sequence()
    double = make(dtype=torch.float64)
    double.load_state_dict(core.state_dict())
    y, _ = double(x.double())
    assert y.dtype == torch.float64
    assert_close(y.float(), core(x)[0], rtol=1e-3, atol=1e-4)
    half = make(dtype=torch.bfloat16)
    half.load_state_dict(core.state_dict())
    core.load_state_dict(half.state_dict())
    y, state = half(x.bfloat16())
    assert {y.dtype, *(value.dtype for value in state[0])} == {torch.bfloat16}
    expected, _ = core(x.bfloat16().float())
    assert_close(y, expected.bfloat16(), rtol=0.02, atol=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = core(x.bfloat16())
    assert_close(y, expected)


def _check_meta(make: _Subject) -> None:
    """On the meta device it has shapes and no values."""
    core = make(device="meta")
    y, state = core(torch.empty(BATCH, STEPS, INPUTS, device="meta"))
    assert y.shape == (BATCH, STEPS, HIDDEN)
    assert y.device.type == "meta"
    assert all(value.device.type == "meta" for layer in state for value in layer)


def _check_copies(make: _Subject) -> None:
    """`state_dict` and `deepcopy` carry all of it, a seed repeats its start, `repr` its options."""
    core, (x, _) = make(num_layers=2), _sequence()
    y, _ = core(x)
    other, copied = make(num_layers=2), copy.deepcopy(core)
    other.load_state_dict(core.state_dict())
    assert_close(other(x)[0], y, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
    assert_close(copied(x)[0], y, rtol=0, atol=0)
    starts = []
    for _ in range(2):
        torch.manual_seed(1)
        core.reset_parameters()
        starts.append([parameter.detach().clone() for parameter in core.parameters()])
    assert all(map(torch.equal, *starts)), "the same seed gives another start"
    assert repr(core).startswith(f"{make.cls.__name__}({INPUTS}, {HIDDEN}")


def _check_compile(make: _Subject) -> None:
    """`torch.compile` takes it as one graph, and its values stay."""
    core, (x, reset) = make(), _sequence()
    compiled = torch.compile(core, fullgraph=True, backend="aot_eager")
    y, state = core(x, None, reset)
    compiled_y, compiled_state = compiled(x, None, reset)
    assert_close(compiled_y, y)
    assert_close(_plain(compiled_state), _plain(state))


def _check_bad_input(make: _Subject) -> None:
    """What does not fit is a TypeError or ValueError that names the argument."""
    core, (x, reset) = make(), _sequence()
    state = core.initial_state(BATCH)
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("x", lambda: core(x[..., :-1])),
        ("x", lambda: core(x.double())),
        ("x", lambda: core(x[:, :0])),
        ("reset", lambda: core(x, None, reset.float())),
        ("reset", lambda: core(x, None, reset.t())),
        ("state", lambda: core(x, ())),
        ("state", lambda: core(x, (*state, *state))),
        ("no_such_option", lambda: make.cls(INPUTS, HIDDEN, no_such_option=1)),
    ]
    if state[0]:
        wrong.append(("state", lambda: core(x, core.initial_state(BATCH - 1))))
    for argument, call in wrong:
        try:
            call()
        except (TypeError, ValueError) as error:
            said = str(error)
        else:
            said = "no error"
        assert argument in said, f"a wrong {argument} gave: {said}"


CHECKS: dict[str, Callable[[_Subject], None]] = {
    "shapes": _check_shapes,
    "state": _check_state,
    "chunks": _check_chunks,
    "resets": _check_resets,
    "lengths": _check_lengths,
    "stream": _check_stream,
    "gradients": _check_gradients,
    "frozen": _check_frozen,
    "power": _check_power,
    "dtypes": _check_dtypes,
    "meta": _check_meta,
    "copies": _check_copies,
    "compile": _check_compile,
    "bad input": _check_bad_input,
}
"""What is checked, by name."""
