"""`RecurrentCell`: single steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stpn.nn import checks
from stpn.nn.base import Layer, Recurrence, expected_dtype


class RecurrentCell(Recurrence):
    """Base of all cells: `h, state = cell(x, state=None, reset=None, inplace=False)`.

    x (B, I) or (I,), reset bool (B,) or (); the state is a single named tuple, and left as it is.
    With `inplace=True`, for long streams under `torch.no_grad()`, its tensors are overwritten and
    returned.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """`options` are the core's own: keyword arguments of its `configure`."""
        super().__init__()
        self._set_up(input_size, hidden_size, bias, device, dtype, options)

    def _layout(self) -> Iterator[Layer]:
        yield Layer(self.input_size, "")

    def initial_state(
        self,
        batch_size: int | None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """Zeros for a batch (None: unbatched), by default on the device of the parameters."""
        batch = () if batch_size is None else (checks.positive_int("batch_size", batch_size),)
        checks.floating_dtype("dtype", dtype)
        like = self.like
        return self._zero_state(self.input_size, batch, device or like.device, dtype or like.dtype)

    def forward(
        self, x: Tensor, state: Any = None, reset: Tensor | None = None, *, inplace: bool = False
    ) -> tuple[Tensor, Any]:
        like = self.like
        x = checks.tensor("x", x, like.device, expected_dtype(like))
        if x.dim() not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(
                f"x: expected (B, I) or (I,) with I = {self.input_size}, got {tuple(x.shape)}"
            )
        batch = tuple(x.shape[:-1])
        if state is None:
            state = self._zero_state(self.input_size, batch, like.device, like.dtype)
        else:
            state = self._checked_state("state", state, self.input_size, batch, like)
        if reset is not None:
            reset = checks.mask("reset", reset, batch, "(x without features)", x.device)
        y, (state,) = self._stream(x, (state,), reset, inplace)
        return y, state

    def extra_repr(self) -> str:
        bias = [] if self.has_bias else ["bias=False"]
        sizes = f"{self.input_size}, {self.hidden_size}"
        return ", ".join([sizes, *bias, *self._changed_options()])
