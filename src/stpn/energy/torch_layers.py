"""Power of the layers that PyTorch brings, from what went into and came out of a call.

`P = sum over synapses of u_j^2 |w_ij|`. A linear layer's u is its input, an embedding's its index
as a one-hot vector, a convolution's are the patches under its kernel, and all gates of a recurrent
layer see u = [x ; h_prev], where h_prev is read off the output. Layers below the top of a stack do
not show their outputs: they are run again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from stpn.energy import attention
from stpn.energy.calls import Call, Reading, by_step, counted, padded, wide
from stpn.nn.operations import Operations
from stpn.nn.time import reversed_time
from stpn.ops import aten
from stpn.ops.power import hidden_power, static_power

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
ORDERED = (*RECURRENT, nn.MultiheadAttention)
"""Layers that say themselves whether the batch comes first."""
CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KNOWN = (
    nn.Linear, nn.Embedding, nn.MultiheadAttention, *CONVOLUTIONS, *TRANSPOSED, *RECURRENT, *CELLS,
)  # fmt: skip


def input_size(module: nn.Module) -> int:
    """How many input channels a known module has."""
    for name in ("in_features", "in_channels", "input_size", "num_embeddings", "embed_dim"):
        if hasattr(module, name):
            return int(getattr(module, name))
    raise TypeError(f"expected a layer that is known, got {type(module).__name__}")


def parts(module: nn.Module) -> dict[str, int]:
    """The layers and directions of a known module, with their numbers of synapses."""
    if isinstance(module, RECURRENT):
        return {
            part: sum(getattr(module, f"{name}_{part}").numel() for name in _matrices(module))
            for part in _suffixes(module)
        }
    if isinstance(module, CELLS):
        return {"": module.weight_ih.numel() + module.weight_hh.numel()}
    if isinstance(module, nn.MultiheadAttention):
        return {part: weight.numel() for part, weight in attention.weights(module).items()}
    weight = module.weight
    assert isinstance(weight, Tensor)
    return {"": 0 if is_lazy(weight) else weight.numel()}


def needs_rng(module: nn.Module) -> bool:
    """Whether what runs again, lower layers and attention, must repeat its dropout."""
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0 and module.training
    return (
        isinstance(module, RECURRENT)
        and module.num_layers > 1
        and module.dropout > 0
        and module.training
    )


def read(
    module: nn.Module, call: Call, ignored: Sequence[int], batch_first: bool
) -> Iterator[Reading]:
    """The power of every layer and direction of a known module in one call.

    `ignored` inputs cost nothing; `batch_first` says how to read sequences into `nn.Linear` and
    `nn.Embedding`.
    """
    if isinstance(module, nn.Linear):
        yield _linear(module, call, ignored, batch_first)
    elif isinstance(module, nn.Embedding):
        yield _embedding(module, call, ignored, batch_first)
    elif isinstance(module, nn.MultiheadAttention):
        yield from attention.read(module, call, ignored)
    elif isinstance(module, CONVOLUTIONS):
        yield _convolution(module, call, ignored)
    elif isinstance(module, TRANSPOSED):
        yield _transposed(module, call, ignored)
    elif isinstance(module, CELLS):
        yield _cell(module, call, ignored)
    else:
        assert isinstance(module, RECURRENT)
        yield from _recurrent(module, call, ignored)


def _linear(module: nn.Linear, call: Call, ignored: Sequence[int], batch_first: bool) -> Reading:
    x, lengths = padded(wide(call.argument(0, "input")))
    power = static_power(x, wide(_held(module)), counted(x, x.shape[-1], ignored))
    step = by_step(power, batch_first or lengths is not None)
    return Reading("", step, _fully(module.weight, len(ignored)), lengths)


def _embedding(
    module: nn.Embedding, call: Call, ignored: Sequence[int], batch_first: bool
) -> Reading:
    rows = wide(module.weight).abs().sum(1)  # (symbols,): what reading each of them costs
    power = (rows * counted(rows, len(rows), ignored))[call.argument(0, "input")]
    size = module.embedding_dim  # one line is driven, and its synapses are read
    operations = Operations(
        cells=module.weight.numel(), reads=size, inputs=1, outputs=size, fan_in=1
    )
    return Reading("", by_step(power, batch_first), operations)


def _convolution(module: Any, call: Call, ignored: Sequence[int]) -> Reading:
    squares = _squares(module, call, ignored)
    power = module._conv_forward(squares, wide(_held(module)).abs(), None)
    positions = math.prod(power.shape[2:])
    operations = _patches(module, positions, len(ignored))
    return Reading("", power.flatten(1).sum(1, keepdim=True), operations)


def _transposed(module: Any, call: Call, ignored: Sequence[int]) -> Reading:
    """Synapses whose output would lie outside, where it is cut off, are not there."""
    squares, space = _squares(module, call, ignored), module.weight.dim() - 2
    size = call.argument(1, "output_size")
    padding = module._output_padding(
        squares, size, module.stride, module.padding, module.kernel_size, space, module.dilation
    )
    transpose = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )
    power = transpose[space - 1](
        squares, wide(module.weight).abs(), None, module.stride, module.padding, padding,
        module.groups, module.dilation,
    )  # fmt: skip
    operations = _patches(module, math.prod(power.shape[2:]), len(ignored))
    return Reading("", power.flatten(1).sum(1, keepdim=True), operations)


def _held(module: Any) -> Tensor:
    """The weights, or what the cells of a converted layer (`stpn.analog`) hold."""
    return module.conductances() if hasattr(module, "conductances") else module.weight


def _fully(weight: Tensor, ignored: int) -> Operations:
    """Of a matrix (outputs, inputs) that is used once."""
    outputs, inputs = weight.shape
    cells, driven = weight.numel(), inputs - ignored
    return Operations(cells=cells, reads=cells, inputs=driven, outputs=outputs, fan_in=inputs)


def _patches(module: Any, positions: int, ignored: int) -> Operations:
    """Of a convolution: its kernel is used at every position of the output, a patch each time."""
    cells, kernel = module.weight.numel(), math.prod(module.kernel_size)
    return Operations(
        cells=cells,
        reads=cells * positions,
        inputs=(module.in_channels - ignored) * kernel * positions,
        outputs=module.out_channels * positions,
        fan_in=module.in_channels // module.groups * kernel,
    )


def _recurrent_operations(
    module: Any, weights: Sequence[Tensor], ignored: int = 0, projection: Tensor | None = None
) -> Operations:
    """Of a step: all gates see [x ; h_prev]; a GRU's candidate is two sums."""
    w_ih, w_hh = weights[:2]
    seen = w_ih.shape[1] + w_hh.shape[1]
    rows = w_ih.shape[0] + (module.hidden_size if isinstance(module, (nn.GRU, nn.GRUCell)) else 0)
    cells, inputs = w_ih.numel() + w_hh.numel(), seen - ignored
    if projection is not None:
        cells += projection.numel()
        inputs += projection.shape[1]
        rows += projection.shape[0]
    return Operations(cells=cells, reads=cells, inputs=inputs, outputs=rows, fan_in=seen)


def _squares(module: Any, call: Call, ignored: Sequence[int]) -> Tensor:
    """u^2 (B, C, ...), 0 in the `ignored` channels."""
    x = wide(call.argument(0, "input"))  # (B, C, ...) or (C, ...)
    space = module.weight.dim() - 2
    x = x if x.dim() == space + 2 else x.unsqueeze(0)
    return x.square() * counted(x, module.in_channels, ignored).view(-1, *(1,) * space)


def _cell(module: Any, call: Call, ignored: Sequence[int]) -> Reading:
    x, state = wide(call.argument(0, "input")), call.argument(1, "hx")
    power = static_power(x, wide(module.weight_ih), counted(x, x.shape[-1], ignored))
    if state is not None:
        h = state[0] if isinstance(module, nn.LSTMCell) else state
        power = power + static_power(wide(h), wide(module.weight_hh))
    operations = _recurrent_operations(module, (module.weight_ih, module.weight_hh), len(ignored))
    return Reading("", power.reshape(-1, 1), operations)


def _recurrent(module: Any, call: Call, ignored: Sequence[int]) -> Iterator[Reading]:
    sequence, state = call.argument(0, "input"), call.argument(1, "hx")
    layout = _Layout.of(module, sequence)
    x = layout.unified(sequence)  # (B, T, I)
    y = layout.unified(call.output[0])  # (B, T, directions * outputs)
    states = _initial(module, state, x)
    directions = 2 if module.bidirectional else 1
    count: Tensor | None = counted(x, x.shape[-1], ignored)
    generator = _replay(call.rng)
    for layer in range(module.num_layers):
        top = layer == module.num_layers - 1
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            part = _suffixes(module)[k]
            weights = _weights(module, part)
            u = reversed_time(x, layout.lengths) if direction else x
            start = tuple(value[k] for value in states)
            h, projected = None, None  # outputs (B, T, O), and what an LSTM's projection sees
            if isinstance(module, nn.LSTM) and module.proj_size:
                h, projected = _projected_lstm(u, start[0], start[1], weights, layout.lengths)
            elif not top:
                h = _run_again(module, u, start, weights, layout.lengths)
            if h is None:
                own = y.chunk(directions, -1)[direction]
                h = reversed_time(own, layout.lengths) if direction else own
            power = static_power(u, weights[0], count) + hidden_power(
                h, start[0], weights[1], lengths=layout.lengths
            )
            if projected is not None:
                power = power + static_power(projected, weights[-1])
            if direction:
                power, h = reversed_time(power, layout.lengths), reversed_time(h, layout.lengths)
            operations = _recurrent_operations(
                module,
                weights,
                0 if layer else len(ignored),
                None if projected is None else weights[-1],
            )
            named = part if len(_suffixes(module)) > 1 else ""
            yield Reading(named, power, operations, layout.lengths)
            outputs.append(h)
        if not top:
            x, count = torch.cat(outputs, -1), None
            if generator is not None:
                x = layout.dropped(x, module.dropout, generator)


@dataclass(frozen=True)
class _Layout:
    """How the sequences of a call lie in memory."""

    batched: bool
    batch_first: bool
    packed: PackedSequence | None
    lengths: Tensor | None

    @classmethod
    def of(cls, module: Any, sequence: Any) -> _Layout:
        if isinstance(sequence, PackedSequence):
            _, lengths = pad_packed_sequence(sequence, batch_first=True)
            return cls(True, True, sequence, lengths.to(sequence.data.device))
        return cls(sequence.dim() == 3, module.batch_first, None, None)

    def unified(self, sequence: Any) -> Tensor:
        """(B, T, features), 0 past the ends."""
        if isinstance(sequence, PackedSequence):
            sequence, _ = pad_packed_sequence(sequence, batch_first=True)
        elif not self.batched:
            sequence = sequence.unsqueeze(0)
        elif not self.batch_first:
            sequence = sequence.transpose(0, 1)
        return wide(sequence)

    def dropped(self, x: Tensor, probability: float, generator: torch.Generator) -> Tensor:
        """The dropout that the call applied: its noise was drawn in the order of this memory."""
        if self.packed is None:
            noise = x.new_empty(x.shape[1], x.shape[0], x.shape[2])
            noise = noise.bernoulli_(1 - probability, generator=generator).transpose(0, 1)
        else:
            assert self.lengths is not None
            order = self.packed.sorted_indices
            noise = x.new_empty(self.packed.data.shape[0], x.shape[2])
            noise = noise.bernoulli_(1 - probability, generator=generator)
            noise, _ = pad_packed_sequence(
                PackedSequence(noise, self.packed.batch_sizes, order, self.packed.unsorted_indices),
                batch_first=True,
            )
        return x * noise / (1 - probability)


def _replay(rng: Tensor | None) -> torch.Generator | None:
    if rng is None:
        return None
    generator = torch.Generator()
    generator.set_state(rng)
    return generator


def _suffixes(module: Any) -> list[str]:
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"l{layer}{end}" for layer in range(module.num_layers) for end in directions]


def _matrices(module: Any) -> tuple[str, ...]:
    projected = isinstance(module, nn.LSTM) and module.proj_size > 0
    return ("weight_ih", "weight_hh", "weight_hr") if projected else ("weight_ih", "weight_hh")


def _weights(module: Any, part: str) -> tuple[Tensor, ...]:
    """w_ih, w_hh, with biases b_ih and b_hh, with a projection w_hr."""
    biases = ("bias_ih", "bias_hh") if module.bias else ()
    matrices = _matrices(module)
    names = (*matrices[:2], *biases, *matrices[2:])
    return tuple(wide(getattr(module, f"{name}_{part}")) for name in names)


def _initial(module: Any, state: Any, x: Tensor) -> tuple[Tensor, ...]:
    """h0, and c0 of an LSTM, (layers * directions, B, ...) each."""
    count, batch, hidden = len(_suffixes(module)), x.shape[0], module.hidden_size
    gated = isinstance(module, nn.LSTM)
    if state is None:
        sizes = (module.proj_size or hidden, hidden) if gated else (hidden,)
        return tuple(x.new_zeros(count, batch, size) for size in sizes)
    states = tuple(wide(value) for value in (state if gated else (state,)))
    return tuple(value if value.dim() == 3 else value.unsqueeze(1) for value in states)


def _run_again(
    module: Any,
    x: Tensor,
    start: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    lengths: Tensor | None,
) -> Tensor:
    h0 = start[0]
    if isinstance(module, nn.LSTM):
        return aten.lstm(x, h0, start[1], weights, lengths=lengths)[0]
    if isinstance(module, nn.GRU):
        return aten.gru(x, h0, weights, lengths=lengths)
    return aten.rnn(x, h0, weights, nonlinearity=module.nonlinearity, lengths=lengths)


def _projected_lstm(
    x: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor, ...], lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs (B, T, P), and what their projection sees (B, T, H), which nothing else shows."""
    w_ih, w_hh, *biases, w_hr = weights
    bias = biases[0] + biases[1] if biases else None
    seen, outputs = [], []
    for p in functional.linear(x, w_ih, bias).unbind(1):
        i, f, g, o = (p + h @ w_hh.t()).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        seen.append(o.sigmoid() * c.tanh())
        h = seen[-1] @ w_hr.t()
        outputs.append(h)
    y, m = torch.stack(outputs, 1), torch.stack(seen, 1)
    return aten.zero_past_the_ends(y, lengths), aten.zero_past_the_ends(m, lengths)
