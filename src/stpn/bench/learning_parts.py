"""Where the time of an agent's learning goes: its encoder, its core, the optimizer.

Forward passes are timed around their calls. A backward pass goes through the same parts from the
end to the beginning: it is in the core from when the gradient of the core's output is there until
that of its input is, and in the encoder from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

Seconds = dict[str, float]
PARTS = ("encoder", "core", "optimizer")


@contextmanager
def timed_learning(agent: Any, optimizer: torch.optim.Optimizer) -> Iterator[Seconds]:
    """Seconds spent in each of PARTS while learning, growing as long as the context is open."""
    spent = dict.fromkeys(PARTS, 0.0)
    reached: dict[str, float] = {}  # when the gradient of a part's output was there

    def forward_of(name: str, module: nn.Module) -> Callable[..., Any]:
        original = module.forward

        def forward(*arguments: Any, **options: Any) -> Any:
            if not torch.is_grad_enabled():  # acting
                return original(*arguments, **options)
            start = time.perf_counter()
            result = original(*arguments, **options)
            spent[name] += time.perf_counter() - start
            output = result[0] if isinstance(result, tuple) else result
            if output.requires_grad:
                output.register_hook(lambda _: reached.update({name: time.perf_counter()}))
            return result

        return forward

    backward, step = Tensor.backward, optimizer.step

    def timed_backward(*arguments: Any, **options: Any) -> None:
        reached.clear()
        backward(*arguments, **options)
        end = time.perf_counter()
        if "core" in reached:
            spent["core"] += reached.get("encoder", end) - reached["core"]
        if "encoder" in reached:
            spent["encoder"] += end - reached["encoder"]

    def timed_step(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = step(*arguments)
        spent["optimizer"] += time.perf_counter() - start
        return result

    with ExitStack() as stack:
        for name in ("encoder", "core"):
            module = getattr(agent, name)
            stack.enter_context(patch.object(module, "forward", forward_of(name, module)))
        stack.enter_context(patch.object(Tensor, "backward", timed_backward))
        stack.enter_context(patch.object(optimizer, "step", timed_step))
        yield spent
