"""Many launches as one: CUDA graphs of calls that launch a kernel per step.

A launch from Python takes some ten microseconds, longer than a step of a middle-sized network.
A graph replays the launches of a whole sequence at once, but always on the same memory: inputs are
copied into it, results out of it. That pays as long as a step is short.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stpn.ops.gpu.launch import without_memory

Tensors = tuple[Tensor | None, ...]

# Synapses of all sequences of a batch. Above, a step moves 16 MB or more: the GPU is busy anyway.
MOST_SYNAPSES = 1 << 21
# Each graph keeps memory of its own.
MOST_GRAPHS = 8

_logger = logging.getLogger("stpn")
_graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()  # None: it could not be captured


@dataclass(frozen=True)
class _Graph:
    graph: Any
    inputs: Tensors
    results: Tensors

    def __call__(self, inputs: Tensors) -> Tensors:
        for own, given in zip(self.inputs, inputs, strict=True):
            if own is not None and given is not None:
                own.copy_(given)
        self.graph.replay()
        return tuple(None if result is None else result.clone() for result in self.results)


def graphed(
    run: Callable[..., Tensors], inputs: Tensors, constants: tuple[Hashable, ...], synapses: int
) -> Tensors:
    """`run(*constants, *inputs)`, by a graph where one pays; all its tensors are among `inputs`."""
    device = next(tensor.device for tensor in inputs if tensor is not None)
    plain = device.type != "cuda" or synapses > MOST_SYNAPSES or any(map(without_memory, inputs))
    if plain or torch.cuda.is_current_stream_capturing():
        return run(*constants, *inputs)
    return _replayed(run, inputs, constants)


def _replayed(
    run: Callable[..., Tensors], inputs: Tensors, constants: tuple[Hashable, ...]
) -> Tensors:
    key = run, constants, tuple(map(_described, inputs))
    if key not in _graphs:
        try:
            _graphs[key] = _captured(run, inputs, constants)
        except RuntimeError as error:
            _logger.warning("CUDA graphs cannot be used here, so each step is launched: %s", error)
            _graphs[key] = None
        while len(_graphs) > MOST_GRAPHS:
            _graphs.popitem(last=False)
    _graphs.move_to_end(key)
    graph = _graphs[key]
    return run(*constants, *inputs) if graph is None else graph(inputs)


def _described(tensor: Tensor | None) -> Hashable:
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _captured(
    run: Callable[..., Tensors], inputs: Tensors, constants: tuple[Hashable, ...]
) -> _Graph:
    own = tuple(None if tensor is None else tensor.detach().clone() for tensor in inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles the kernels, which a capture may not
        run(*constants, *own)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(*constants, *own)
    return _Graph(graph, own, results)
