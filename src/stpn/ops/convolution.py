"""A short causal convolution of each channel over time, with a state and with resets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def causal_convolution(
    x: Tensor,  # (B, T, C)
    window: Tensor,  # (B, L - 1, C) the inputs before, the latest last
    weight: Tensor,  # (C, L) columns: from the earliest to the present
    *,
    reset: Tensor | None = None,  # (B, T) bool: nothing before this step is seen
    lengths: Tensor | None = None,  # (B,) int64
) -> tuple[Tensor, Tensor]:
    """y (B, T, C) and the inputs that the next step would see (B, L - 1, C).

    What lies before a reset is 0 to all that come after it.
    """
    (_, steps, channels), taps = x.shape, window.shape[1] + 1
    if weight.shape != (channels, taps):
        raise ValueError(
            f"conv: expected shape {(channels, taps)} (channels, taps), got {tuple(weight.shape)}"
        )
    x = torch.cat([window, x], 1)  # (B, L - 1 + T, C)
    ended = None
    if lengths is not None:
        ended = torch.arange(steps, device=x.device) >= lengths.unsqueeze(1)  # (B, T)
    segment = None
    if reset is not None:
        reset = reset if ended is None else reset & ~ended
        segment = functional.pad(reset.cumsum(1), (taps - 1, 0))  # (B, L - 1 + T)
    if segment is None and steps > 1:
        y = functional.conv1d(x.mT, weight.unsqueeze(1), groups=channels).mT
    else:
        y = x.new_zeros(())
        for tap in range(taps):
            seen = x[:, tap : tap + steps]
            if segment is not None:
                same = segment[:, tap : tap + steps] == segment[:, taps - 1 :]
                seen = torch.where(same.unsqueeze(-1), seen, 0.0)
            y = y + seen * weight[:, tap]
    if lengths is None:
        window, its = x[:, steps:], None if segment is None else segment[:, steps:]
    else:
        rows = torch.arange(len(x), device=x.device).unsqueeze(1)  # (B, 1)
        columns = lengths.unsqueeze(1) + torch.arange(taps - 1, device=x.device)
        window, its = x[rows, columns], None if segment is None else segment[rows, columns]
    if segment is not None and its is not None:
        window = torch.where((its == segment[:, -1:]).unsqueeze(-1), window, 0.0)
    return y, window.clone()
