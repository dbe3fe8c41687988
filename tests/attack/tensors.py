"""Tensors that are odd in memory or in value, and tensors that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

# The same values, lying differently in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "every other": lambda t: torch.stack([t, torch.full_like(t, 7.0)], -1)[..., 0],
    "with an offset": lambda t: torch.cat([t.new_full((3,), 7.0), t.flatten()])[3:].view(t.shape),
    "negative bit": lambda t: torch._neg_view(-t),
}

VALUES = (0.0, -0.0, 1.0, 1e-45, 1e-30, 100.0)
# Where a saturated neuron's rounding is multiplied by its input, and beyond.
UNBOUNDED = (1e10, 3e18, 1e25, 1e38, float("inf"), -float("inf"), float("nan"))


def draw(random: Random, *shape: int, dtype: torch.dtype, scale: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(random.getrandbits(60))
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def laid_out(random: Random, tensor: Tensor) -> Tensor:
    """The same values, perhaps in a strange place."""
    if not tensor.dtype.is_floating_point:
        return tensor
    if tensor.dim() == 0:
        return LAYOUTS[random.choice(["plain", "negative bit"])](tensor)
    return LAYOUTS[random.choice(list(LAYOUTS))](tensor)


def spoiled(random: Random, tensor: Tensor, values: tuple[float, ...]) -> Tensor:
    """Some entries have strange values."""
    tensor = tensor.clone(memory_format=torch.contiguous_format)
    flat = tensor.view(-1)
    for _ in range(random.choice([1, 1, 3])):
        if len(flat):
            flat[random.randrange(len(flat))] = random.choice(values)
    return tensor


def _resized(random: Random, tensor: Tensor) -> Tensor:
    if not tensor.dim():
        return tensor.new_zeros(2)
    shape = list(tensor.shape)
    k = random.randrange(len(shape))
    shape[k] = random.choice([n for n in (0, 1, shape[k] - 1, shape[k] + 1) if n != shape[k]])
    return tensor.new_zeros([max(n, 0) for n in shape])


def _freed(_: Random, tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def _other_dtype(random: Random, tensor: Tensor) -> Tensor:
    dtypes = [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8,
        torch.int32, torch.int64, torch.bool, torch.complex64,
    ]  # fmt: skip
    return tensor.to(random.choice([d for d in dtypes if d != tensor.dtype]))


# Never to be taken in the place of the tensor that they are made from.
WRONG: dict[str, Callable[[Random, Tensor], Tensor | None]] = {
    "dtype": _other_dtype,
    "size": _resized,
    "one dimension more": lambda _, t: t.unsqueeze(0),
    "one dimension less": lambda _, t: t.flatten() if t.dim() > 1 else t.sum(),
    "device": lambda _, t: t.to("meta"),
    "layout": lambda _, t: t.to_sparse(),
    "freed": _freed,
    "missing": lambda *_: None,
}


def wrong(random: Random, tensor: Tensor, never: tuple[str, ...] = ()) -> tuple[str, Tensor | None]:
    """What is wrong, and the tensor."""
    if not tensor.dim():
        never = (*never, "one dimension less", "layout")
    kind = random.choice([kind for kind in WRONG if kind not in never])
    return kind, WRONG[kind](random, tensor)
