"""Who looks at a call: plain eager execution, or something that records or transforms it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def traced(tensor: Tensor) -> bool:
    """Whether something other than plain eager execution looks at this call."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in (Tensor, torch.nn.Parameter)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
    )


def needs_plain_pytorch() -> str | None:
    """Why whoever looks at this call understands plain PyTorch alone, or None."""
    if torch.compiler.is_compiling():
        if torch.onnx.is_in_onnx_export():
            return "ONNX has no such operator"
    elif torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "torch.func and forward-mode derivatives have no kernel"
    elif torch._C._get_tracing_state() is not None:
        return "torch.jit.trace, and the ONNX export that uses it, record plain PyTorch alone"
    return None
