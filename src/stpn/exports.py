"""A network for other programs: one time step, with every tensor of the state in and out.

    program = stpn.exports.program(core)                  # torch.export, plain operations of torch
    stpn.exports.onnx(network, "agent.onnx")              # torch.onnx.export, any ONNX runtime
    stpn.exports.largest_difference(network, "agent.onnx")  # beside onnxruntime

Inputs, in this order: `x` (B, I), or `observation` (B, ...) of an agent; `reset` (B,) bool, true
where a new sequence begins; the state, `h_l0` (B, H), `f_l0` (B, H, D), ... with the names of the
core's state and the suffix of the layer. Outputs: `y` (B, H) of a core, `logits` (B, C) of a
network with a readout, `policy` (B, P) and `value` (B,) of an agent; `power` (B,) of the core in
this step; the state after it, `h_l0_next`, ... A core without a state has no `reset`.
The batch B is open; the first state is zeros.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stpn import __version__, cores
from stpn._extras import need
from stpn._files import write_atomic
from stpn.errors import StpnError
from stpn.nn.base import clear
from stpn.nn.core import RecurrentCore
from stpn.ops.backends import use_backend
from stpn.training.agent import Agent
from stpn.training.supervised import SequenceModel

STEPS = 1000
"""Steps of a comparison with onnxruntime."""


class NotExported(StpnError, ValueError):
    """A network that cannot be written as one step, or a file that computes something else."""


class Step(nn.Module):
    """One time step of a core, of a core with a readout, or of an agent, on flat tensors.

    `forward(x, reset, *state)` gives a tuple of tensors, named by `inputs` and `outputs`.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        core = network if isinstance(network, RecurrentCore) else getattr(network, "core", None)
        if not isinstance(network, (RecurrentCore, SequenceModel, Agent)) or not isinstance(
            core, RecurrentCore
        ):
            raise NotExported(
                "expected a core, a network with a core and a readout, or an agent, got "
                f"{type(network).__name__}; of a model of your own export its core"
            )
        if core.bidirectional:
            raise NotExported(
                "expected a core of one direction, got bidirectional=True, which needs the whole "
                "sequence at once and has no step to export"
            )
        # A copy: exporting neither ends the training mode of the caller's network nor meets meters.
        self.network = _plain_copy(network, core).eval()
        self.core: RecurrentCore = (
            self.network if isinstance(self.network, RecurrentCore) else self.network.core
        )
        fields = getattr(core.state_type, "_fields", ())
        self.state = tuple(name + suffix for _, suffix in core.layers for name in fields)
        first = "observation" if isinstance(network, Agent) else "x"
        self.inputs = (first, "reset", *self.state) if self.state else (first,)
        results = {RecurrentCore: ("y",), SequenceModel: ("logits",), Agent: ("policy", "value")}
        result = next(names for kind, names in results.items() if isinstance(network, kind))
        self.outputs = (*result, "power", *(f"{name}_next" for name in self.state))

    def example(self, batch: int = 2, generator: torch.Generator | None = None) -> list[Tensor]:
        """Inputs of the right shapes, with a zero state."""
        state = [value for layer in self.core.initial_state(batch) for value in layer]
        reset = [torch.zeros(batch, dtype=torch.bool)] if state else []
        return [self.random_input(batch, generator), *reset, *state]

    def random_input(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        if not isinstance(self.network, Agent):
            like = self.core.like
            x = torch.randn(batch, self.core.input_size, generator=generator)
            return x.to(like.device, like.dtype)
        encoder = self.network.encoder
        return encoder.random(batch, generator).to(self.core.like.device)

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        states = self._states(rest[1:])
        if rest:
            states = tuple(layer.clone() for layer in states)
            for layer in states:
                clear(layer, rest[0])
        if isinstance(self.network, Agent):
            x = self.network.encoder(x)
        powers: list[Tensor] = []
        end = self.core.observe_power(lambda power, *_: powers.append(power.squeeze(1)))
        try:
            y, new = self.core.step(x, states)
        finally:
            end()
        result: tuple[Tensor, ...] = (y,)
        if isinstance(self.network, Agent):
            result = self.network.read(y)
        elif isinstance(self.network, SequenceModel):
            result = (self.network.readout(y),)
        return (*result, torch.stack(powers).sum(0), *(v for layer in new for v in layer))

    def _states(self, flat: tuple[Tensor, ...]) -> tuple[Any, ...]:
        size = len(flat) // len(self.core.layers)
        return tuple(
            self.core.state_type(*flat[k * size : (k + 1) * size])
            for k in range(len(self.core.layers))
        )


def program(network: nn.Module) -> torch.export.ExportedProgram:
    """The step as a graph of `torch.export`, any batch, of torch's own operations alone.

    `torch.export.save` keeps it, and where it is loaded nothing of this package is needed.
    """
    step = Step(network)
    inputs, shapes = _arguments(step)
    with _quiet(), torch.no_grad(), use_backend("reference"):
        # not strict, as is the default since torch 2.7
        return torch.export.export(step, inputs, dynamic_shapes=shapes, strict=False)


def onnx(
    network: nn.Module, path: str | Path, *, metadata: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Write the step as an ONNX file, and return the entries that describe it in the file.

    These are the sizes, the core's options and the shapes of the state as JSON, and `metadata`.
    """
    for module in ("onnx", "onnxscript"):
        need(module, extra="onnx")
    step = Step(network)
    inputs, shapes = _arguments(step)
    try:
        with _quiet(), torch.no_grad(), use_backend("reference"):
            made = torch.onnx.export(
                step,
                inputs,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=step.inputs,
                output_names=step.outputs,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0]
        raise NotExported(f"torch.onnx.export cannot take this network: {cause}") from error
    assert made is not None
    entries = {**describe(step), **{key: _text(value) for key, value in (metadata or {}).items()}}
    made.model.metadata_props.update(entries)
    made.model.producer_name, made.model.producer_version = "stpn", __version__
    write_atomic(Path(path), made.model_proto.SerializeToString())
    return entries


def describe(step: Step) -> dict[str, str]:
    """What the file says of itself."""
    core = step.core
    shapes = {
        f"{name}{suffix}": ["batch", *shape]
        for size, suffix in core.layers
        for name, shape in zip(
            getattr(core.state_type, "_fields", ()), core.state_shapes(size), strict=True
        )
    }
    facts = {
        "stpn_version": __version__,
        "model": _name(core),
        "input_size": core.input_size,
        "hidden_size": core.hidden_size,
        "num_layers": core.num_layers,
        "options": core.configuration,
        "state": shapes,
        "parameters": sum(value.numel() for value in step.network.parameters()),
    }
    return {key: _text(value) for key, value in facts.items()}


def largest_difference(
    network: nn.Module,
    path: str | Path,
    *,
    steps: int = STEPS,
    batch: int = 3,
    seed: int = 0,
    stream: bool = False,
) -> float:
    """The largest difference between onnxruntime and the network over so many steps.

    Of each output, relative to its largest entry where that is above 1. The input is random, with a
    reset now and then. Both sides start each step from the network's state; with `stream` each goes
    on from its own, where a network that amplifies small differences, as many trained ones do,
    amplifies rounding too. NaN if one side has a number where the other has none.
    """
    runtime = need("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        Path(path).read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    step = Step(network)
    names = [given.name for given in session.get_inputs()]
    if names != list(step.inputs) or [o.name for o in session.get_outputs()] != list(step.outputs):
        raise NotExported(f"{path} is not a step of this network: its inputs are {names}")
    generator = torch.Generator().manual_seed(seed)
    _, *ours = step.example(batch, generator)
    theirs = list(ours)
    largest, kept = torch.zeros(()), len(step.state)
    for _ in range(steps):
        x = step.random_input(batch, generator)
        if kept:
            ours[0] = theirs[0] = torch.rand(batch, generator=generator) < 0.002
        given = (value.numpy() for value in (x, *theirs))
        found = session.run(None, dict(zip(step.inputs, given, strict=True)))
        found = [torch.from_numpy(value) for value in found]
        with torch.no_grad():
            expected = step(x, *ours)
        for a, b in zip(expected, found, strict=True):
            if not a.numel():  # the window of a core without a convolution
                continue
            scale = a.abs().max().clamp(min=1)
            largest = torch.maximum(largest, (a - b).abs().max() / scale)
        if kept:
            ours[1:] = expected[-kept:]
            theirs[1:] = found[-kept:] if stream else expected[-kept:]
    return float(largest)


def _arguments(step: Step) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """An example, and that its batch is open; `forward` has one argument and a tuple of others."""
    example = step.example()
    open_batch: dict[int, Any] = {0: torch.export.Dim("batch")}
    rest = (tuple(open_batch for _ in example[1:]),) if len(example) > 1 else ()
    return tuple(example), (open_batch, *rest)


def _plain_copy(network: nn.Module, core: RecurrentCore) -> Any:
    if core.observed:
        raise NotExported("a meter or trace watches the core: export it outside of that `with`")
    return copy.deepcopy(network)


def _name(core: RecurrentCore) -> str:
    """Of the registry, the most particular one that this core answers to."""
    known = [entry for name in cores.names() if (entry := cores.get(name)).load() is type(core)]
    fitting = [
        entry
        for entry in known
        if all(core.configuration.get(key) == value for key, value in entry.options.items())
    ]
    best = max(fitting, key=lambda entry: len(entry.options), default=None)
    return type(core).__name__ if best is None else best.name


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_TALKERS = ("torch.onnx._internal.exporter._registration", "onnx_ir", "onnxscript")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of libraries that are not there and of their own code."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
