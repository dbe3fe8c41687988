"""The same step of a stream again and again, on the same tensors.

A kernel takes addresses. In a stream they never change, so what each call of `stpn_step_` checks
and looks up is done once here, and a step is little more than the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stpn.ops import native
from stpn.ops.operands import run_forward
from stpn.ops.reference import STPNOptions


class BoundStep:
    """`stpn_step_` bound to its tensors, and the new h written back: `y = step()`.

    x (B, I), h (B, H) and f (B, H, D) are read anew by each call, and so are the parameters as long
    as they are changed in place. y (B, H) is one buffer that the next call overwrites.
    """

    def __init__(
        self, x: Tensor, h: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None,
        lambda_: Tensor, gamma: Tensor, *, options: STPNOptions,
    ) -> None:  # fmt: skip
        for name, tensor in (("x", x), ("h", h), ("f", f)):
            if not tensor.is_contiguous():  # a copy would be read in its place
                raise ValueError(f"{name}: expected a contiguous tensor to bind a step to")
        self._operands = native._stpn_operands(
            x.unsqueeze(1), h, None, f, weight, bias, native._rate(lambda_, weight),
            native._rate(gamma, weight), None, None, None, *native._stpn_options(options),
        )  # fmt: skip
        self._h, self._f = h, f
        self._y = h.new_empty(h.shape)
        self._operands.put_sequence("y", self._y.unsqueeze(1))
        self._operands.put(f_T=f)

    def __call__(self) -> Tensor:
        run_forward(self._operands)
        torch.autograd.graph.increment_version(self._f)
        self._h.copy_(self._y)
        return self._y
