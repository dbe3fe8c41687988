"""The meter on `nn.MultiheadAttention`: the four projections, by the definition of power."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from brute_force import cost
from torch import Tensor, nn

from stpn.energy import EnergyMeter

BATCH, QUERIES, KEYS, SIZE, HEADS = 2, 3, 4, 6, 2


def by_hand(
    layer: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None
) -> dict[str, np.ndarray]:
    """(T,) of one sample: q (Q, E), k and v (K, ...), `hidden` (Q, K) what is not attended to."""
    if layer.in_proj_weight is not None:
        weights = list(layer.in_proj_weight.detach().double().numpy().reshape(3, SIZE, SIZE))
    else:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        weights = [getattr(layer, name).detach().double().numpy() for name in names]
    bias = layer.in_proj_bias.detach().double().numpy().reshape(3, SIZE)
    seen = [value.double().numpy() for value in (q, k, v)]
    q_, k_, v_ = (u @ w.T + b for u, w, b in zip(seen, weights, bias, strict=True))
    width, heads = SIZE // HEADS, []
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        scores = q_[:, part] @ k_[:, part].T / np.sqrt(width)
        if hidden is not None:
            scores[hidden.numpy()] = -np.inf
        scores = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(scores / scores.sum(1, keepdims=True) @ v_[:, part])
    weights.append(layer.out_proj.weight.detach().double().numpy())
    seen.append(np.concatenate(heads, axis=1))
    return {
        part: np.array([cost(step, w) for step in u])
        for part, u, w in zip(("q", "k", "v", "out"), seen, weights, strict=True)
    }


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 5, "vdim": 7}], ids=["same", "separate"])
def test_projections(options: dict[str, Any], batch_first: bool, masked: bool) -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS, batch_first=batch_first, **options)
    with torch.no_grad():
        layer.in_proj_bias.normal_()
    q = torch.randn(BATCH, QUERIES, SIZE)
    k = torch.randn(BATCH, KEYS, layer.kdim)
    v = torch.randn(BATCH, KEYS, layer.vdim)
    mask = torch.triu(torch.ones(QUERIES, KEYS, dtype=torch.bool), 1) if masked else None
    given = (q, k, v) if batch_first else tuple(u.transpose(0, 1) for u in (q, k, v))
    with EnergyMeter(layer) as meter:
        layer(*given, attn_mask=mask)
    samples = [by_hand(layer, q[b], k[b], v[b], mask) for b in range(BATCH)]
    for part, power in meter.per_step.items():
        expected = np.mean([sample[part.split(".")[-1]] for sample in samples], axis=0)
        np.testing.assert_allclose(power.detach(), expected, rtol=1e-4)
    assert list(meter.per_step) == [f"MultiheadAttention.{part}" for part in samples[0]]
    assert "no synapses: query by key and weights by value in MultiheadAttention" in str(meter)


def test_unbatched() -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS)
    x = torch.randn(QUERIES, SIZE)
    with EnergyMeter(layer) as meter:
        layer(x, x, value=x, need_weights=False)
    for part, expected in by_hand(layer, x, x, x).items():
        np.testing.assert_allclose(
            meter.per_step[f"MultiheadAttention.{part}"], expected, rtol=1e-4
        )


@pytest.mark.parametrize("weights", [True, False])
def test_dropout_is_repeated(weights: bool) -> None:
    """The output projection is metered with the very values that it saw."""
    layer = nn.MultiheadAttention(SIZE, HEADS, dropout=0.5, bias=False, batch_first=True)
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(SIZE))  # shows what it sees
    x = torch.randn(BATCH, KEYS, SIZE)
    with EnergyMeter(layer) as meter:
        torch.manual_seed(1)
        y, _ = layer(x, x, x, need_weights=weights)
        after = torch.rand(1)
    expected = y.square().sum(-1).mean(0)
    torch.testing.assert_close(meter.per_step["MultiheadAttention.out"], expected.detach())
    torch.manual_seed(1)
    layer(x, x, x, need_weights=weights)
    assert torch.equal(torch.rand(1), after)  # the meter drew nothing of its own


def test_it_can_be_trained_on() -> None:
    layer = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
    x = torch.randn(BATCH, KEYS, SIZE)
    with EnergyMeter(layer, differentiable=True) as meter:
        layer(x, x, x)
    meter.power.backward()
    assert layer.out_proj.weight.grad.abs().min() > 0
    assert layer.in_proj_weight.grad.abs().min() > 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_reads_masked_sequences_as_long_as_they_are() -> None:
    """In evaluation PyTorch may pass them on as nested tensors."""
    block = nn.TransformerEncoderLayer(SIZE, HEADS, 8, batch_first=True)
    model = nn.TransformerEncoder(block, 2).eval()
    x, lengths = torch.randn(BATCH, KEYS, SIZE), [2, KEYS]
    over = torch.arange(KEYS) >= torch.tensor(lengths).unsqueeze(1)
    with torch.no_grad(), EnergyMeter(model, skip=nn.LayerNorm) as meter:
        expected_y = model(x, src_key_padding_mask=over)
        measured, power = meter.per_step, meter.power
        meter.reset()
        for b, n in enumerate(lengths):
            y = model(x[b : b + 1, :n])
            torch.testing.assert_close(expected_y[b : b + 1, :n], y, rtol=1e-4, atol=1e-5)
    assert power == pytest.approx(meter.power, rel=1e-4)
    for name, values in meter.per_step.items():
        torch.testing.assert_close(measured[name], values, rtol=1e-4, atol=1e-5)
    assert len(measured) == 12
    assert not meter.unmeasured
