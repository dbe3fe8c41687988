"""The backend `chunked`: recurrences that are linear in their state, whole chunks at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from stpn.ops.delta_rule.chunked import delta_rule
from stpn.ops.delta_rule.reference import delta_rule as delta_rule_by_steps
from stpn.ops.gla.chunked import gated_linear_attention
from stpn.ops.gla.reference import gated_linear_attention as gated_linear_attention_by_steps
from stpn.ops.registry import Backend
from stpn.ops.tracing import traced

Rule: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor | None]]


def _recovering(chunked: Rule, by_steps: Rule) -> Rule:
    """In a matrix product 0 times NaN is NaN: what is spoilt at one step would reach the steps of
    its chunk before it, and beyond a reset. Step by step it does not. Where something other than
    eager execution looks, values are unknown.
    """

    @functools.wraps(chunked)
    def run(
        *tensors: Tensor | None,
        reset: Tensor | None = None,
        lengths: Tensor | None = None,
        power: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        masks = {"reset": reset, "lengths": lengths}
        o, s, spent = chunked(*tensors, **masks, power=power)
        if o.is_meta or traced(o) or (o.is_cuda and torch.cuda.is_current_stream_capturing()):
            return o, s, spent
        if o.isfinite().all() and s.isfinite().all():
            return o, s, spent
        return by_steps(*tensors, **masks, power=power)

    return run


class Chunked(Backend):
    name = "chunked"
    detail = "plain PyTorch, matrix products over chunks of a sequence"
    recurrences = {  # noqa: RUF012  (never changed)
        "delta_rule": _recovering(delta_rule, delta_rule_by_steps),
        "gated_linear_attention": _recovering(
            gated_linear_attention, gated_linear_attention_by_steps
        ),
    }
