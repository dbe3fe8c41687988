"""Power of `nn.MultiheadAttention`: the four projections, each a crossbar of synapses.

What attention does between them, queries times keys and weights times values, multiplies
activations by activations. No synapse takes part in it, so it has no power by this measure; in
joules they are digital products, counted with the output projection. The
projections of padded positions are computed by the layer, and count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn.energy.calls import Call, Reading, by_step, counted, padded, wide
from stpn.nn.operations import Operations
from stpn.ops.power import static_power


def weights(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """(E, inputs) of each projection."""
    if module.in_proj_weight is not None:
        q, k, v = module.in_proj_weight.chunk(3)
    else:
        q, k, v = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    return {"q": q, "k": k, "v": v, "out": module.out_proj.weight}


def read(module: nn.MultiheadAttention, call: Call, ignored: Sequence[int]) -> Iterator[Reading]:
    """The power of each projection; `ignored` are inputs of the embedding, in q, k and v."""
    seen, lengths = {}, None
    for place, (part, word) in enumerate(_WORDS.items()):
        seen[part], lengths = padded(call.argument(place, word))
    keys = seen["k"].shape[1 if module.batch_first and seen["k"].dim() == 3 else 0]
    seen["out"] = _before_output(module, call, seen["q"], seen["k"], seen["v"], lengths)
    for part, weight in weights(module).items():
        u = wide(seen[part])
        count = counted(u, u.shape[-1], () if part == "out" else ignored)
        power = static_power(u, wide(weight), count)  # (B, T), (T, B) or (T,)
        power = power.unsqueeze(0) if power.dim() == 1 else by_step(power, module.batch_first)
        outputs, inputs = weight.shape
        driven = inputs - (0 if part == "out" else len(ignored))
        operations = Operations(
            cells=weight.numel(),
            reads=weight.numel(),
            inputs=driven,
            outputs=outputs,
            fan_in=inputs,
            products=2 * keys * module.embed_dim if part == "out" else 0,
        )
        yield Reading(part, power, operations, lengths)


_WORDS = {"q": "query", "k": "key", "v": "value"}


def _before_output(
    module: nn.MultiheadAttention,
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor | None,  # (B,) of nested input, which has no masks
) -> Tensor:
    """What the output projection sees, which nothing shows: attention again, with an identity."""
    over = None  # (B, T)
    dtype = module.out_proj.weight.dtype
    padding = _mask(call.argument(3, "key_padding_mask"), dtype)
    if lengths is not None:
        padding = over = torch.arange(k.shape[1], device=k.device) >= lengths.unsqueeze(1)
    turned = module.batch_first and q.dim() == 3
    q, k, v = (u.to(dtype).transpose(0, 1) if turned else u.to(dtype) for u in (q, k, v))
    separate = module.in_proj_weight is None
    with torch.random.fork_rng(devices=[], enabled=call.rng is not None):
        if call.rng is not None:
            torch.set_rng_state(call.rng)
        u, _ = functional.multi_head_attention_forward(
            q, k, v, module.embed_dim, module.num_heads, module.in_proj_weight,
            module.in_proj_bias, module.bias_k, module.bias_v, module.add_zero_attn, module.dropout,
            torch.eye(module.embed_dim, dtype=dtype, device=q.device), None,
            training=module.training,
            key_padding_mask=padding,
            need_weights=call.argument(4, "need_weights", True),
            attn_mask=_mask(call.argument(5, "attn_mask"), dtype),
            use_separate_proj_weight=separate,
            q_proj_weight=module.q_proj_weight if separate else None,
            k_proj_weight=module.k_proj_weight if separate else None,
            v_proj_weight=module.v_proj_weight if separate else None,
            is_causal=call.argument(7, "is_causal", False),
        )  # fmt: skip
    u = u.transpose(0, 1) if turned else u
    return u if over is None else u.masked_fill(over.unsqueeze(-1), 0)


def _mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
