"""The rivals' recurrences on the backend that is in use equal the specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stpn.ops import backends, reference_rivals

pytestmark = pytest.mark.usefixtures("poisoned_memory", "short_segments")

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
SHAPES = [(1, 1, 1), (3, 7, 5), (2, 20, 17), (16, 19, 5)]  # B, T, H; the last side by side


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64)


def arguments(name: str, batch: int, steps: int, hidden: int) -> dict[str, Tensor]:
    scale = hidden**-0.5
    shared = {"p": draw(batch, steps, hidden), "h0": draw(batch, hidden, scale=0.5)}
    if name == "fast_weights":
        return shared | {
            "a0": draw(batch, hidden, hidden, scale=scale),
            "w_h": draw(hidden, hidden, scale=scale),
            "ln_weight": 1 + draw(hidden, scale=0.3),
            "ln_bias": draw(hidden, scale=0.3),
        }
    rule = (
        {"v": draw(hidden, scale=scale), "d": draw(scale=0.3)}
        if name == "modulated"
        else {"eta": torch.tensor(0.4, dtype=torch.float64)}
    )
    return shared | {
        "hebb0": draw(batch, hidden, hidden, scale=0.4).clamp(-1, 1),
        "w": draw(hidden, hidden, scale=scale),
        "alpha": draw(hidden, hidden, scale=scale),
        **rule,
    }


def run(
    module: Any, name: str, given: dict[str, Tensor], dtype: torch.dtype, **fixed: Any
) -> dict[str, Tensor]:
    leaves = {n: v.to(dtype).detach().requires_grad_() for n, v in given.items()}
    if name == "fast_weights":
        outputs = module.fast_weights(**leaves, **fixed)
    else:
        order = ("p", "h0", "hebb0", "w", "alpha", "v", "d", "eta")
        outputs = module.modplast(*(leaves.get(n) for n in order), **fixed)
    named = {n: v for n, v in zip(("y", "final", "power"), outputs, strict=True) if v is not None}
    generator = torch.Generator().manual_seed(1)
    total = sum(
        (v * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
        for v in named.values()
    )
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    return {n: v.detach() for n, v in named.items()} | {
        f"grad of {n}": g for n, g in zip(leaves, gradients, strict=True)
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("masks", ["none", "reset", "lengths", "both"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["modulated", "unmodulated", "fast_weights"])
def test_parity(name: str, shape: Any, masks: str, power: bool, dtype: torch.dtype) -> None:
    batch, steps, hidden = shape
    given = arguments(name, *shape)
    fixed: dict[str, Any] = {}
    if masks in ("reset", "both"):
        fixed["reset"] = torch.rand(batch, steps) < 0.2
    if masks in ("lengths", "both"):
        fixed["lengths"] = torch.randint(1, steps + 1, (batch,))
    weight = torch.rand(hidden, dtype=torch.float64)
    if name == "fast_weights":
        fixed["steps"] = 2 if masks == "both" else 1
    expected = run(
        reference_rivals, name, given, torch.float64,
        **fixed, power_weight=weight if power else None,
    )  # fmt: skip
    actual = run(
        backends, name, given, dtype, **fixed, power_weight=weight.to(dtype) if power else None
    )
    assert actual.keys() == expected.keys()
    for key, value in actual.items():
        assert value.dtype == dtype
        error = (value.double() - expected[key]).abs().max() / (1 + expected[key].abs().max())
        assert error < TOLERANCE[dtype], (key, error)
