"""A backend of one's own, in one file: STPN in double precision, whatever precision the layer has.

    python examples/own_backend.py

prints how far each backend is from the truth after a long sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import stpn
from stpn.ops import reference


def precise_stpn(*inputs: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """`reference.stpn`: same arguments, same results, gradients by autograd."""
    wide = [_wide(value) for value in inputs]
    results = reference.stpn(*wide, **{name: _wide(value) for name, value in options.items()})
    return tuple(None if value is None else value.to(inputs[0].dtype) for value in results)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


class Precise(stpn.Backend):
    name = "precise"
    detail = "plain PyTorch in float64"
    recurrences = {"stpn": precise_stpn}  # noqa: RUF012

    def rejects(
        self, recurrence: str, inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> str | None:
        if inputs[0].dtype == torch.float64:
            return "float64 gains nothing in it"
        return None


stpn.register_backend(Precise())


def errors(steps: int = 500) -> dict[str, float]:
    """Of the gradient of lambda in float32, by backend, against that in float64."""
    torch.manual_seed(0)
    layer = stpn.STPNr(8, 32, batch_first=True)
    x = torch.randn(4, steps, 8)

    def gradient(backend: str, dtype: torch.dtype) -> Tensor:
        layer.to(dtype)
        with stpn.use_backend(backend):
            y, _ = layer(x.to(dtype))
        (found,) = torch.autograd.grad(y[:, -1].sum(), layer.lambda_l0)
        return found.double()

    truth = gradient("reference", torch.float64)
    usable = [b for b in stpn.backends() if b.usable and "cpu" not in b.on_request]
    able = [b.name for b in usable if "stpn" in b.recurrences]
    found = {name: gradient(name, torch.float32) for name in able}
    return {name: ((g - truth).norm() / truth.norm()).item() for name, g in found.items()}


if __name__ == "__main__":
    for name, error in errors().items():
        print(f"{name:10} {error:.1e}")
