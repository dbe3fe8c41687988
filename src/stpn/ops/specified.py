"""Gradients through the specification, where a faster form has none that can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients(
    specification: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    wanted: Sequence[int],
    grads: Sequence[Any],
) -> dict[int, Tensor | None]:
    """Of the results of `specification(*values)`, whose own gradients are `grads`, None for none:
    the gradient of each value that is wanted, by its place. With gradients enabled these have
    derivatives too.
    """
    create_graph = torch.is_grad_enabled()
    given = list(values)
    with torch.enable_grad():
        for place in wanted:  # apart from the graph that one input may have made of another
            given[place] = given[place].view_as(given[place])
        both = zip(specification(*given), grads, strict=True)
        pairs = [(r, g) for r, g in both if g is not None and r is not None and r.requires_grad]
        found = torch.autograd.grad(
            [result for result, _ in pairs], [given[place] for place in wanted],
            [grad for _, grad in pairs], create_graph=create_graph, allow_unused=True,
        )  # fmt: skip
    return dict(zip(wanted, found, strict=True))


def refuse(ctx: Any, *grads: Any) -> Any:
    """A second derivative is an error, not a wrong number."""
    raise RuntimeError(
        "the backward pass of a kernel cannot be differentiated: compute what needs second "
        'derivatives inside `with stpn.use_backend("reference"):`'
    )
