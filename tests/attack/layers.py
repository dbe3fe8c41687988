"""Hostile operands of layers and cells: the kernels do what the specification does, or refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import stpn

from . import Broken, attack
from .tensors import UNBOUNDED, VALUES, draw, laid_out, spoiled, wrong

CORES = {
    "stpnf": stpn.STPNf,
    "stpnr": stpn.STPNr,
    "stpnl": stpn.STPNl,
    "fastweights": stpn.FastWeights,
    "modplast": stpn.ModPlast,
    "hebbff": stpn.HebbFF,
}
MEMORIES = {
    "deltanet": stpn.DeltaNet,
    "gateddeltanet": stpn.GatedDeltaNet,
    "fwp": stpn.FastWeightProgrammer,
    "gla": stpn.GatedLinearAttention,
    "gradplast": stpn.GradientPlasticity,
}
REFUSALS = (ValueError, TypeError, RuntimeError, AttributeError)
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}


@attack("layers", isolated=True)
def hostile_layer(random: Random) -> str:
    return _tried(*_case(random, CORES, steps=[1, 2, 5, 9, 20]))


@attack("memories", isolated=True)
def hostile_memory(random: Random) -> str:
    """The cores of today, most of which run in chunks of 16 or 32 steps."""
    return _tried(*_case(random, MEMORIES, steps=[1, 2, 16, 33, 40]))


def _tried(core: nn.Module, inputs: Any, state: Any, reset: Any, label: str) -> str:
    results = {}
    for backend in ("reference", "native"):
        with stpn.use_backend("auto" if backend == "native" else backend):
            try:
                results[backend] = _results(core, inputs, state, reset)
            except REFUSALS as error:
                results[backend] = type(error)

    def truth() -> Any:
        """In double precision, where the difference may be one of rounding only."""
        double = state and tuple(type(s)(*(v.double() for v in s)) for s in state)
        with stpn.use_backend("reference"):
            return _results(copy.deepcopy(core).double(), inputs.double(), double, reset)

    def shaken(seed: int) -> Any:
        """The specification, with operands that are one rounding away."""
        generator = torch.Generator().manual_seed(seed)

        def nearby(value: Tensor) -> Tensor:
            steps = torch.randint(-1, 2, value.shape, generator=generator)
            return value.detach() * (1 + torch.finfo(value.dtype).eps * steps.to(value.dtype))

        near = copy.deepcopy(core)
        with torch.no_grad():
            for parameter in near.parameters():
                parameter.copy_(nearby(parameter))
        with stpn.use_backend("reference"):
            return _results(near, nearby(inputs), state, reset)

    return _verdict(results["native"], results["reference"], truth, shaken, label)


def _case(
    random: Random, cores: dict[str, Any], steps: list[int]
) -> tuple[nn.Module, Tensor, Any, Tensor | None, str]:
    """A core, x, state, reset, and what is strange about them."""
    name = random.choice(list(cores))
    dtype = random.choice([torch.float32, torch.float64])
    batch = random.choice([1, 2, 3, 8, 16])
    length = random.choice(steps)
    size = random.choice([1, 2, 3, 7, 8, 17])
    core = cores[name](
        size, random.choice([1, 2, 5, 8, 17]), num_layers=random.choice([1, 1, 2]),
        bidirectional=random.random() < 0.2, batch_first=True, dtype=dtype,
        **_options(random, name),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(draw(random, *parameter.shape, dtype=dtype, scale=0.4))
    x = laid_out(random, draw(random, batch, length, size, dtype=dtype))
    state = reset = None
    if random.random() < 0.5:
        zero = core.initial_state(batch)
        state = tuple(
            type(s)(*(laid_out(random, draw(random, *v.shape, dtype=dtype, scale=0.3)) for v in s))
            for s in zero
        )
    if random.random() < 0.4:
        generator = torch.Generator().manual_seed(random.getrandbits(60))
        reset = torch.rand(batch, length, generator=generator) < 0.2
    label = random.choice(["ordinary", "ordinary", "odd values", "unbounded", "wrong", "wrong"])
    if label == "odd values":
        x = spoiled(random, x, VALUES)
    elif label == "unbounded":
        x = torch.cat([spoiled(random, x[:1], UNBOUNDED), x[1:]])
    elif label == "wrong":
        kind, x, state, reset = _broken(random, core, x, state, reset)
        label = f"wrong {kind}"
    return core, x, state, reset, label


def _options(random: Random, name: str) -> dict[str, Any]:
    if name in ("stpnf", "stpnr", "stpnl"):
        return {
            "norm": random.choice(["pre", "post", None]),
            "clamp": random.choice([None, 0.3]),
            "stp": random.choice(["synapse", "neuron", "uniform"]),
        }
    if name == "modplast":
        return {"modulated": random.random() < 0.5}
    return {}


def _broken(
    random: Random, core: nn.Module, x: Tensor, state: Any, reset: Tensor | None
) -> tuple[str, Any, Any, Any]:
    """One of x, the state, the resets and the parameters is wrong."""
    target = random.choice(["x", "state", "reset", "parameter", "parameter"])
    if target == "state" and state is not None:
        fields = list(state[0])
        k = random.randrange(len(fields))
        kind, fields[k] = _wrong(random, fields[k])
        return f"state ({kind})", x, (type(state[0])(*fields), *state[1:]), reset
    if target == "reset" and reset is not None:
        kind, reset = _wrong(random, reset)
        return f"reset ({kind})", x, state, reset
    if target == "parameter":
        name, parameter = random.choice(list(core.named_parameters()))
        kind, value = _wrong(random, parameter.detach())
        if value is None or not value.dtype.is_floating_point:
            core._parameters[name] = value  # type: ignore[assignment]
        else:
            core._parameters[name] = nn.Parameter(value)
        return f"parameter ({kind})", x, state, reset
    kind, value = _wrong(random, x)
    return f"x ({kind})", value, state, reset


def _wrong(random: Random, tensor: Tensor) -> tuple[str, Tensor | None]:
    # torch's own operations, in which the specification is written, crash on freed memory.
    return wrong(random, tensor, never=("freed",))


def _results(core: nn.Module, x: Any, state: Any, reset: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Of each sequence: y, the final state, the gradient of x. Of all: those of the parameters."""
    if isinstance(x, Tensor) and x.dtype.is_floating_point and x.untyped_storage().nbytes():
        x = x.detach().requires_grad_()
    y, final = core(x, state, reset)
    values = [y, *(value for one in final for value in one)]
    parameters = [p for p in core.parameters() if p.requires_grad]
    total = sum(value.sin().sum() for value in values)
    x_gradient, *gradients = torch.autograd.grad(total, [x, *parameters], materialize_grads=True)
    return [*values, x_gradient], gradients


def _verdict(
    native: Any,
    reference: Any,
    truth: Callable[[], Any],
    shaken: Callable[[int], Any],
    label: str,
) -> str:
    if isinstance(native, type):
        if native is AttributeError and reference is not AttributeError:
            raise Broken(f"{label}: AttributeError")
        if isinstance(reference, type) or label.startswith("wrong"):
            return f"{label.split(' (')[0]}: refused"
        raise Broken(f"{label}: {native.__name__}, but the specification computes it")
    if isinstance(reference, type):
        raise Broken(f"{label}: computed, but the specification raises {reference.__name__}")

    def compared(results: Any) -> list[Tensor]:
        values, gradients = results
        if label == "unbounded":  # in the first sequence: it has no part in the others
            return [value.detach()[1:].double() for value in values]
        return [value.detach().double() for value in values + gradients]

    dtype = native[0][0].dtype
    pairs = zip(compared(native), compared(reference), strict=True)
    differ = {k: pair for k, pair in enumerate(pairs) if not _near(*pair, TOLERANCE[dtype])}
    if differ and dtype == torch.float32 and not label.startswith("wrong"):
        # some draws multiply rounding errors: no further from the truth than it is itself, which
        # one draw of its own errors does not tell
        exact = compared(truth())
        own = [compared(reference), *(compared(shaken(seed)) for seed in range(4))]

        def far(one: Tensor, k: int) -> float:
            return (one - exact[k]).abs().max().item()

        if all(
            far(ours, k) <= 8 * max(far(o[k], k) for o in own) for k, (ours, _) in differ.items()
        ):
            return f"{label}, rounding errors multiplied: as near to the truth"
    for actual, expected in differ.values():
        worst = (actual - expected).abs().max().item()
        raise Broken(f"{label}: differs from the specification by {worst:.2g}")
    return f"{label}: the same"


def _near(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    if not expected.numel():
        return True
    if not expected.isfinite().all():
        return True  # beyond what the dtype can hold
    return bool((actual - expected).abs().max() <= tolerance * (1 + expected.abs().max()))
