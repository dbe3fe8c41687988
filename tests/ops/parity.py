"""A call of an STPN recurrence, and how a backend is held to the specification in it.

The specification runs in float64; a backend is measured against it in either dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from stpn.ops import backends, reference
from stpn.ops.backends import use_backend
from stpn.ops.reference import STPNOptions

BACKENDS = ["native"]
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
OPS = {"f": "stpn", "r": "stpn", "l": "stpn_lstm"}


@dataclass(frozen=True)
class Shape:
    batch: int = 3
    steps: int = 7
    inputs: int = 5
    hidden: int = 4


# Whole vectors of sequences, long enough to lie side by side in them (csrc/kernels.cpp).
SIDE_BY_SIDE = Shape(16, 19, 5, 4)


@dataclass(frozen=True)
class Case:
    """The arguments of one call, by name; `tensors` are those with a gradient."""

    kind: str
    options: STPNOptions
    tensors: dict[str, Tensor]
    reset: Tensor | None
    lengths: Tensor | None

    def run(self, module: Any, dtype: torch.dtype, power: bool = True) -> dict[str, Tensor]:
        """Outputs, and the gradients of a random linear function of all of them."""
        leaves = {n: v.to(dtype).detach().requires_grad_() for n, v in self.tensors.items()}
        outputs = self.outputs(module, leaves, power)
        generator = torch.Generator().manual_seed(1)
        total = sum(
            (v * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
            for v in outputs.values()
        )
        gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        named = {f"grad of {n}": g for n, g in zip(leaves, gradients, strict=True)}
        return {n: v.detach() for n, v in outputs.items()} | named

    def outputs(self, module: Any, tensors: dict[str, Tensor], power: bool) -> dict[str, Tensor]:
        names = ("h0", "c0", "f0") if self.kind == "l" else ("h0", "f0")
        y, *final, power_out = getattr(module, OPS[self.kind])(
            tensors["x"],
            *(tensors[name] for name in names),
            tensors["weight"],
            tensors.get("bias"),
            tensors["lambda_"],
            tensors["gamma"],
            options=self.options,
            norm_scale=tensors.get("norm_scale"),
            reset=self.reset,
            lengths=self.lengths,
            power_weight=tensors["power_weight"].detach() if power else None,
        )
        assert (power_out is not None) == power
        named = dict(zip(("c", "f") if self.kind == "l" else ("f",), final, strict=True))
        return {"y": y, **named} | ({"power": power_out} if power else {})


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
    reset = lengths = None
    if masks in ("reset", "both"):
        reset = torch.rand(batch, shape.steps, generator=generator) < 0.3
    if masks in ("lengths", "both"):
        lengths = torch.randint(1, shape.steps + 1, (batch,), generator=generator)
    return Case(kind, STPNOptions(recurrent=recurrent, **options), tensors, reset, lengths)


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
    expected = case.run(reference, torch.float64, power)
    allowance = {}
    if dtype == torch.float32:  # some cases amplify rounding: what it does to the specification
        rounded = case.run(reference, dtype, power)
        allowance = {name: 30 * distance(rounded[name], expected[name]) for name in expected}
    with use_backend(backend):
        actual = case.run(backends, dtype, power)
    assert_near(actual, expected, dtype, allowance)


backend = pytest.mark.parametrize("backend", BACKENDS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
kinds = pytest.mark.parametrize("kind", ["f", "r", "l"])
