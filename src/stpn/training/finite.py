"""NaN and infinity: found at once, named by parameter, never saved."""

from __future__ import annotations

import math

from torch import Tensor, nn

from stpn.errors import NonFinite


def check_loss(loss: Tensor, model: nn.Module, when: str) -> float:
    """The loss as a number; NonFinite with the step and the offending parameter if it is not one.

    Call it before `backward`, so that the bad value reaches neither gradients nor the optimizer.
    """
    value = loss.item()
    if not math.isfinite(value):
        raise NonFinite(f"the loss became {value} at {when}: {diagnose(model)}")
    return value


def check_parameters(model: nn.Module, when: str) -> None:
    """Refuse to go on (to save, say) with a parameter that is not finite."""
    if any(not tensor.isfinite().all() for tensor in model.parameters()):
        raise NonFinite(f"a parameter is no longer finite at {when}: {diagnose(model)}")


def diagnose(model: nn.Module) -> str:
    """Who is to blame: a broken parameter, else a broken gradient, else the largest value."""
    for kind in ("value", "gradient"):
        for name, parameter in model.named_parameters():
            tensor = parameter.detach() if kind == "value" else parameter.grad
            if tensor is not None and not tensor.isfinite().all():
                bad = int((~tensor.isfinite()).sum())
                what = f"{name} has {bad} of {tensor.numel()} entries that are NaN or infinite"
                return what if kind == "value" else f"the gradient of {what}"
    largest = {name: float(p.detach().abs().max()) for name, p in model.named_parameters()}
    name = max(largest, key=largest.__getitem__)
    return f"all parameters are finite; the largest is {name} with an entry of {largest[name]:.3g}"
