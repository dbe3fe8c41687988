"""A call of a recurrence, and how a backend is held to the specification in it.

The specification runs in float64; a backend is measured against it in either dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import stpn
from stpn.ops import backends, reference
from stpn.ops.backends import use_backend
from stpn.ops.reference import STPNOptions

BACKENDS = {
    b.name: b
    for b in stpn.backends()
    if b.usable and b.name != "reference" and "stpn" in b.recurrences and not b.on_request
}
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}

# By kind: the function, its positional arguments, and the parts of the final state it returns.
_STPN = ("x", "h0", "f0", "weight", "bias", "lambda_", "gamma")
_STPN_LSTM = ("x", "h0", "c0", "f0", "weight", "bias", "lambda_", "gamma")
_MODPLAST = ("p", "h0", "hebb0", "w", "alpha", "v", "d", "eta")
_FAST_WEIGHTS = ("p", "h0", "a0", "w_h", "ln_weight", "ln_bias")
OPS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "f": ("stpn", _STPN, ("f",)),
    "r": ("stpn", _STPN, ("f",)),
    "l": ("stpn_lstm", _STPN_LSTM, ("c", "f")),
    "modulated": ("modplast", _MODPLAST, ("hebb",)),
    "unmodulated": ("modplast", _MODPLAST, ("hebb",)),
    "fast weights": ("fast_weights", _FAST_WEIGHTS, ("a",)),
}


@dataclass(frozen=True)
class Shape:
    batch: int = 3
    steps: int = 7
    inputs: int = 5
    hidden: int = 4


# Whole vectors of sequences, long enough to lie side by side in them (csrc/side_by_side.h).
SIDE_BY_SIDE = Shape(16, 19, 5, 4)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, by name; `tensors` are those with a gradient."""

    kind: str
    options: STPNOptions | None
    tensors: dict[str, Tensor]
    reset: Tensor | None
    lengths: Tensor | None
    fixed: dict[str, Any] = field(default_factory=dict)

    def run(
        self, module: Any, dtype: torch.dtype, power: bool = True, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """Outputs, and the gradients of a random linear function of all of them."""
        leaves = {n: v.to(device, dtype).detach().requires_grad_() for n, v in self.tensors.items()}
        outputs = self.outputs(module, leaves, power)
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (v * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v)).sum()
            for v in outputs.values()
        )
        gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        named = {f"grad of {n}": g for n, g in zip(leaves, gradients, strict=True)}
        return {n: v.detach().cpu() for n, v in (outputs | named).items()}

    def outputs(self, module: Any, tensors: dict[str, Tensor], power: bool) -> dict[str, Tensor]:
        function, arguments, state = OPS[self.kind]
        options = dict(self.fixed)
        if self.options is not None:
            options |= {"options": self.options, "norm_scale": tensors.get("norm_scale")}
        device = next(iter(tensors.values())).device
        y, *final, power_out = getattr(module, function)(
            *(tensors.get(name) for name in arguments),
            **options,
            reset=None if self.reset is None else self.reset.to(device),
            lengths=None if self.lengths is None else self.lengths.to(device),
            power_weight=tensors["power_weight"].detach() if power else None,
        )
        assert (power_out is not None) == power
        named = dict(zip(state, final, strict=True))
        return {"y": y, **named} | ({"power": power_out} if power else {})


def _masks(
    shape: Shape, masks: str, generator: torch.Generator
) -> tuple[Tensor | None, Tensor | None]:
    reset = lengths = None
    if masks in ("reset", "both"):
        reset = torch.rand(shape.batch, shape.steps, generator=generator) < 0.3
    if masks in ("lengths", "both"):
        lengths = torch.randint(1, shape.steps + 1, (shape.batch,), generator=generator)
    return reset, lengths


def make_case(
    kind: str,
    shape: Shape = Shape(),
    *,
    stp: str = "synapse",
    bias: bool = True,
    norm_scale: bool = False,
    masks: str = "none",
    seed: int = 0,
    **options: Any,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    recurrent = kind != "f"
    columns = shape.inputs + shape.hidden * recurrent
    rows = shape.hidden * (4 if kind == "l" else 1)
    factors = {"synapse": (rows, columns), "neuron": (rows, 1), "uniform": (1, 1)}[stp]

    def draw(*size: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    batch = shape.batch
    tensors = {
        "x": draw(batch, shape.steps, shape.inputs),
        "h0": draw(batch, shape.hidden, scale=0.5),
        "f0": draw(batch, rows, columns, scale=0.3),
        "weight": draw(rows, columns, scale=columns**-0.5),
        "lambda_": torch.rand(factors, generator=generator, dtype=torch.float64),
        "gamma": draw(*factors, scale=0.2),
        "power_weight": torch.rand(columns, generator=generator, dtype=torch.float64),
    }
    if kind == "l":
        tensors["c0"] = draw(batch, shape.hidden, scale=0.5)
    if bias:
        tensors["bias"] = draw(rows, scale=0.3)
    if norm_scale:
        tensors["norm_scale"] = draw(rows)
    reset, lengths = _masks(shape, masks, generator)
    return Case(kind, STPNOptions(recurrent=recurrent, **options), tensors, reset, lengths)


def make_baseline_case(
    kind: str, shape: Shape, *, masks: str = "none", seed: int = 0, **fixed: Any
) -> Case:
    """Of modulated plasticity and fast weights, which see no input of their own."""
    generator = torch.Generator().manual_seed(seed)
    batch, hidden = shape.batch, shape.hidden

    def draw(*size: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    synapses, scale = (hidden, hidden), hidden**-0.5
    tensors = {
        "p": draw(batch, shape.steps, hidden),
        "h0": draw(batch, hidden, scale=0.5),
        "power_weight": torch.rand(hidden, generator=generator, dtype=torch.float64),
    }
    if kind == "fast weights":
        tensors |= {
            "a0": draw(batch, *synapses, scale=scale),
            "w_h": draw(*synapses, scale=scale),
            "ln_weight": 1 + draw(hidden, scale=0.3),
            "ln_bias": draw(hidden, scale=0.3),
        }
    else:
        tensors |= {
            "hebb0": draw(batch, *synapses, scale=0.4).clamp(-1, 1),
            "w": draw(*synapses, scale=scale),
            "alpha": draw(*synapses, scale=scale),
        }
        if kind == "modulated":
            tensors |= {"v": draw(hidden, scale=scale), "d": draw(scale=0.3)}
        else:
            tensors |= {"eta": torch.tensor(0.4, dtype=torch.float64)}
    return Case(kind, None, tensors, *_masks(shape, masks, generator), fixed)


def distance(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest entry."""
    if not expected.numel():
        return 0.0
    return ((actual.double() - expected).abs().max() / (1 + expected.abs().max())).item()


def assert_near(
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    dtype: torch.dtype,
    allowance: dict[str, float] | None = None,
) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert value.dtype == dtype, name
        assert value.shape == expected[name].shape, name
        error = distance(value, expected[name])
        allowed = TOLERANCE[dtype] + (allowance or {}).get(name, 0.0)
        assert error <= allowed, f"{name}: {error:.2e} of the largest entry"


def assert_parity(case: Case, backend: str, dtype: torch.dtype, power: bool = True) -> None:
    if backend == "triton" and dtype == torch.float64:
        pytest.skip("the GPU kernels compute in float32")
    expected = case.run(reference, torch.float64, power)
    allowance = {}
    if dtype == torch.float32:  # some cases amplify rounding: what it does to the specification
        rounded = case.run(reference, dtype, power)
        allowance = {name: 30 * distance(rounded[name], expected[name]) for name in expected}
    device = BACKENDS[backend].device if backend in BACKENDS else "cpu"
    with use_backend(backend):
        actual = case.run(backends, dtype, power, device)
    assert_near(actual, expected, dtype, allowance)


def choose(names: str, *axes: Iterable[Any], rotate: Sequence[Iterable[Any]] = ()) -> Any:
    """Parametrize over all combinations of the axes.

    Axes that select no other kernel are not crossed with them: each combination gets one of their
    values, and each value comes as often as another.
    """
    combinations = list(itertools.product(*axes))
    columns = []
    for values in rotate:
        column = list(itertools.islice(itertools.cycle(values), len(combinations)))
        Random(len(columns)).shuffle(column)
        columns.append(column)
    rows = [(*row, *more) for row, *more in zip(combinations, *columns, strict=True)]
    return pytest.mark.parametrize(names, rows, ids=lambda value: str(value).split(".")[-1])


DTYPES = (torch.float32, torch.float64)
KINDS = ("f", "r", "l")
NORMS = ("pre", "post", None)
STP = ("synapse", "neuron", "uniform")
MASKS = ("none", "reset", "lengths", "both")

backend = pytest.mark.parametrize("backend", BACKENDS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
kinds = pytest.mark.parametrize("kind", KINDS)
