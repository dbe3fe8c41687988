"""Linear layers and convolutions on devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stpn.analog import lines
from stpn.analog.cells import Cells, row_scale
from stpn.energy import DeviceProfile

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class AnalogLayer(nn.Module):
    """A layer with one `weight`; the bias is added by digital circuits and is exact."""

    profile: DeviceProfile
    cells: Cells
    weight: Tensor

    def conductances(self) -> Tensor:
        """The weights as the cells hold them, for the power meter too."""
        flat = self.cells(self.weight.flatten(1))
        return flat.view_as(self.weight)

    def scale(self) -> Tensor:
        return row_scale(self.weight.flatten(1)).squeeze(1)  # (outputs,)


class AnalogLinear(AnalogLayer, nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y = lines.read(self.conductances(), flat, self.scale(), self.profile)
        y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class _AnalogConvolution(AnalogLayer):
    """One vector for the converters is a whole sample: all its patches share a largest input."""

    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self
        p, space = self.profile, self.weight.dim() - 2
        batched = x.dim() == space + 2
        x = x if batched else x.unsqueeze(0)
        largest = x.detach().abs().flatten(1).amax(1).clamp_min(torch.finfo(x.dtype).tiny)
        largest = largest.view(-1, *(1,) * (space + 1))
        u = lines.converted(x, largest, p)
        y = layer._conv_forward(u, self.conductances(), None)  # (B, C, ...)
        if lines.reads(p):
            scale = self.scale().view(-1, *(1,) * space)
            ones = torch.ones_like(self.weight)
            y = lines.sums(
                y, scale, largest,
                lambda: layer._conv_forward(u.detach().square(), ones, None).sqrt(), p,
            )  # fmt: skip
        if self.bias is not None:
            y = y + self.bias.view(-1, *(1,) * space)
        return y if batched else y.squeeze(0)


class AnalogConv1d(_AnalogConvolution, nn.Conv1d):
    pass


class AnalogConv2d(_AnalogConvolution, nn.Conv2d):
    pass


class AnalogConv3d(_AnalogConvolution, nn.Conv3d):
    pass


ANALOG: dict[type[nn.Module], type[AnalogLayer]] = {
    nn.Linear: AnalogLinear,
    nn.Conv1d: AnalogConv1d,
    nn.Conv2d: AnalogConv2d,
    nn.Conv3d: AnalogConv3d,
}
