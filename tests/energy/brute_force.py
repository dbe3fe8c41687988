"""Every model by its definition, with the power of each synapse added up by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stpn.energy import EnergyMeter

BATCH, STEPS, INPUTS, HIDDEN = 3, 5, 4, 3
Vector = np.ndarray
Matrix = np.ndarray


def cost(u: Vector, g: Matrix) -> float:
    """sum over synapses of u_j^2 |g_ij|."""
    return sum(u[j] ** 2 * abs(g[i, j]) for i, j in itertools.product(*(range(n) for n in g.shape)))


def sigmoid(a: Vector) -> Vector:
    return 1 / (1 + np.exp(-a))


# Each generator is one model by its definition: it is sent x_t, or None for a reset, and
# yields (h, power). `w` are the parameters by name.
Model = Iterator[Any]


def stpn_model(w: dict[str, Any], kind: str) -> Model:
    rows = w["weight"].shape[0]
    hidden = rows // 4 if kind == "l" else rows
    h, c, f = np.zeros(hidden), np.zeros(hidden), np.zeros_like(w["weight"])
    x = yield
    while True:
        if x is None:
            h, c, f = np.zeros_like(h), np.zeros_like(c), np.zeros_like(f)
            x = yield
        u = x if kind == "f" else np.concatenate([x, h])
        n = np.linalg.norm(w["weight"] + f, axis=1, keepdims=True)
        g = (w["weight"] + f) / n
        a = g @ u + w["bias"]
        if kind == "l":
            i, forget, o = (sigmoid(a[k * hidden : (k + 1) * hidden]) for k in (0, 1, 3))
            candidate = np.tanh(a[2 * hidden : 3 * hidden])
            c = forget * c + i * candidate
            h, post = o * np.tanh(c), np.concatenate([i, forget, candidate, o])
        else:
            h = post = np.tanh(a)
        f = w["gamma"] * np.outer(post, u) + w["lambda"] * f / n
        x = yield h, cost(u, g)


def hebbff_model(w: dict[str, Any]) -> Model:
    lambda_, eta = sigmoid(w["lambda"]), -np.exp(w["eta"])
    a = np.zeros_like(w["weight"])
    x = yield
    while True:
        if x is None:
            a = np.zeros_like(a)
            x = yield
        g = w["weight"] + a
        h = sigmoid(g @ x + w["bias"])
        a = lambda_ * a + eta * np.outer(h, x)
        x = yield h, cost(x, g)


def modplast_model(w: dict[str, Any]) -> Model:
    hidden = len(w["bias"])
    h, hebb = np.zeros(hidden), np.zeros((hidden, hidden))
    x = yield
    while True:
        if x is None:
            h, hebb = np.zeros_like(h), np.zeros_like(hebb)
            x = yield
        g = w["weight_hh"] + w["alpha"] * hebb
        power = cost(x, w["weight_ih"]) + cost(h, g)
        new = np.tanh(w["weight_ih"] @ x + w["bias"] + g @ h)
        m = w["eta"] if "eta" in w else np.tanh(w["modulator_weight"] @ new + w["modulator_bias"])
        h, hebb = new, np.clip(hebb + m * np.outer(new, h), -1, 1)
        x = yield h, power


def retroactive_model(w: dict[str, Any]) -> Model:
    hidden = len(w["bias"])
    h, hebb = np.zeros(hidden), np.zeros((hidden, hidden))
    trace = np.zeros_like(hebb)
    x = yield
    while True:
        if x is None:
            h, hebb, trace = np.zeros_like(h), np.zeros_like(hebb), np.zeros_like(trace)
            x = yield
        g = w["weight_hh"] + w["alpha"] * hebb
        power = cost(x, w["weight_ih"]) + cost(h, g)
        new = np.tanh(w["weight_ih"] @ x + w["bias"] + g @ h)
        m = np.tanh(w["modulator_weight"] @ new + w["modulator_bias"])
        hebb = np.clip(hebb + m * trace, -1, 1)
        h, trace = new, (1 - w["eta"]) * trace + w["eta"] * np.outer(new, h)
        x = yield h, power


def fast_weights_model(w: dict[str, Any]) -> Model:
    hidden = len(w["bias"])
    h, a = np.zeros(hidden), np.zeros((hidden, hidden))

    def activate(z: Vector) -> Vector:
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-5)
        return np.tanh(w["ln_weight"] * z + w["ln_bias"])

    x = yield
    while True:
        if x is None:
            h, a = np.zeros_like(h), np.zeros_like(a)
            x = yield
        u = np.concatenate([x, h])
        a = 0.9 * a + 0.5 * np.outer(h, h)
        p = w["weight"] @ u + w["bias"]
        inner = activate(p)
        power = cost(u, w["weight"]) + cost(inner, a)
        h = activate(p + a @ inner)
        x = yield h, power


def mlp_model(w: dict[str, Any]) -> Model:
    x = yield
    while True:
        if x is None:
            x = yield
        x = yield np.tanh(w["weight"] @ x + w["bias"]), cost(x, w["weight"])


def fixed_model(w: dict[str, Any], kind: str) -> Model:
    """RNN, LSTM, GRU, and the projected LSTM of PyTorch."""
    width = w["weight_hh"].shape[1]
    hidden = w["weight_hh"].shape[0] // {"lstm": 4, "gru": 3}.get(kind, 1)
    h, c = np.zeros(width), np.zeros(hidden)
    x = yield
    while True:
        if x is None:
            h, c = np.zeros_like(h), np.zeros_like(c)
            x = yield
        power = cost(x, w["weight_ih"]) + cost(h, w["weight_hh"])
        of_x, of_h = w["weight_ih"] @ x + w["bias_ih"], w["weight_hh"] @ h + w["bias_hh"]
        if kind == "lstm":
            i, forget, candidate, o = np.split(of_x + of_h, 4)
            c = sigmoid(forget) * c + sigmoid(i) * np.tanh(candidate)
            h = sigmoid(o) * np.tanh(c)
            if "weight_hr" in w:
                power += cost(h, w["weight_hr"])
                h = w["weight_hr"] @ h
        elif kind == "gru":
            (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(of_x, 3), np.split(of_h, 3)
            z = sigmoid(z_x + z_h)
            h = (1 - z) * np.tanh(n_x + sigmoid(r_x + r_h) * n_h) + z * h
        else:
            h = np.tanh(of_x + of_h)
        x = yield h, power


def memory_model(w: dict[str, Any], kind: str, heads: int = 2) -> Model:
    """DeltaNet, Gated DeltaNet, fast-weight programmer and gated linear attention."""
    values = w["weight_out"].shape[1]
    size = values // heads
    keys = 2 * size if kind == "fwp" else size
    s, past = np.zeros((heads, size, keys)), [np.zeros(3 * values)] * 3
    sizes = np.cumsum([3 * values, values if kind in ("gateddeltanet", "gla") else 0])

    def silu(a: Vector) -> Vector:
        return a * sigmoid(a)

    def features(a: Vector) -> Vector:
        if kind == "fwp":
            r = np.maximum(np.concatenate([a, -a]), 0)
            return r * np.roll(r, 1) / ((r * np.roll(r, 1)).sum() + 1e-6)
        return a / np.sqrt(a @ a + 1e-6) if "delta" in kind else a

    x = yield
    while True:
        if x is None:
            s, past = np.zeros_like(s), [np.zeros(3 * values)] * 3
            x = yield
        power = cost(x, w["weight"])
        qkv, gate, further = np.split(w["weight"] @ x, sizes)
        if "conv" in w:
            past = [*past, qkv]
            qkv = sum(w["conv"][:, tap] * past[tap] for tap in range(4))
            power += sum((past[tap] ** 2 * np.abs(w["conv"][:, tap])).sum() for tap in range(4))
            past = past[1:]
        qkv = silu(qkv) if "delta" in kind else qkv
        if kind == "gla":
            power += cost(further, w["weight_gate"])
            kept = sigmoid(w["weight_gate"] @ further + w["gate_bias"]) ** (1 / 16)
        read = []
        for n in range(heads):
            q, k, v = (part[n * size : (n + 1) * size] for part in np.split(qkv, 3))
            q, k = features(q), features(k)
            if kind == "gla":
                q = q / np.sqrt(size)
                s[n] = s[n] * kept[n * size : (n + 1) * size] + np.outer(v, k)
            else:
                if kind == "gateddeltanet":
                    grown = np.log1p(np.exp(further[heads + n] + w["a_bias"][n]))
                    s[n] = s[n] * np.exp(-np.exp(w["a_log"][n]) * grown)
                s[n] = s[n] + sigmoid(further[n]) * np.outer(v - s[n] @ k, k)
            power += cost(q, s[n])
            o = s[n] @ q
            if kind != "fwp":
                o = o / np.sqrt((o**2).mean() + 1e-6) * w["norm_weight"]
            read.append(o)
        o = np.concatenate(read) * (silu(gate) if len(gate) else 1)
        power += cost(o, w["weight_out"])
        x = yield w["weight_out"] @ o + w["bias"], power


def gradient_plasticity_model(w: dict[str, Any]) -> Model:
    hidden, outputs = len(w["weight"]), len(w["weight_out"])
    h, f, f_out = np.zeros(hidden), np.zeros_like(w["weight"]), np.zeros_like(w["weight_out"])
    x = yield
    while True:
        if x is None:
            h, f, f_out = np.zeros_like(h), np.zeros_like(f), np.zeros_like(f_out)
            x = yield
        u = np.concatenate([x, h, [1]])
        g, g_out = w["weight"] + f, w["weight_out"] + f_out
        h = np.maximum(g @ u, 0)
        seen = np.concatenate([h, [1]])
        o = g_out @ seen
        power = cost(u[:-1], g[:, :-1]) + cost(h, g_out[:, :-1])
        e = 2 / outputs * w["scale"] ** 2 * o
        delta = (g_out[:, :-1].T @ e) * (h > 0)
        gradients = np.outer(delta, u), np.outer(e, seen)
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        m = 2 * sigmoid(o[-1])
        step = 0.1 * m * min(1, 1 / norm)
        f = (1 - 0.1 * m) * f + step * w["alpha"] * gradients[0]
        f_out = (1 - 0.1 * m) * f_out + step * w["alpha_out"] * gradients[1]
        x = yield h, power


MODELS: dict[str, Callable[[dict[str, Any]], Model]] = {
    "stpnr": lambda w: stpn_model(w, "r"),
    "stpnf": lambda w: stpn_model(w, "f"),
    "stpnl": lambda w: stpn_model(w, "l"),
    "ustpnr": lambda w: stpn_model(w, "r"),
    "ustpnf": lambda w: stpn_model(w, "f"),
    "rnn": lambda w: fixed_model(w, "rnn"),
    "lstm": lambda w: fixed_model(w, "lstm"),
    "gru": lambda w: fixed_model(w, "gru"),
    "mlp": mlp_model,
    "fastweights": fast_weights_model,
    "modplast": modplast_model,
    "plastic": modplast_model,
    "modul": retroactive_model,
    "hebbff": hebbff_model,
    "gradplast": gradient_plasticity_model,
    "fwp": lambda w: memory_model(w, "fwp"),
    "gla": lambda w: memory_model(w, "gla"),
    "deltanet": lambda w: memory_model(w, "deltanet"),
    "gateddeltanet": lambda w: memory_model(w, "gateddeltanet"),
}


def parameters(module: nn.Module, suffix: str = "") -> dict[str, Any]:
    """Of one layer and direction, without the suffix."""
    return {
        name.removesuffix(suffix).removesuffix("_"): value.detach().double().numpy()
        for name, value in module.named_parameters()
        if name.endswith(suffix) and (suffix.endswith("_reverse") or "_reverse" not in name)
    }


def play(
    model: Callable[[dict[str, Any]], Model], w: dict[str, Any], x: Matrix, reset=None
) -> tuple[Matrix, Vector]:
    """x (T, I) through one layer: h (T, H), power (T,)."""
    run = model(w)
    next(run)
    steps = []
    for t, x_t in enumerate(x):
        if reset is not None and reset[t]:
            run.send(None)
        steps.append(run.send(x_t))
    return np.stack([h for h, _ in steps]), np.array([power for _, power in steps])


def expected_power(
    models: list[tuple[Callable, dict[str, Any]]], x: Matrix, directions: int = 1, reset=None
) -> Iterator[Vector]:
    """Power (T,) of each layer and direction of a stack."""
    pairs = [models[k : k + directions] for k in range(0, len(models), directions)]
    for pair in pairs:
        outputs = []
        for (model, w), order in zip(pair, (1, -1), strict=False):
            h, power = play(model, w, x[::order], reset)
            outputs.append(h[::order])
            yield power[::order]
        x = np.concatenate(outputs, axis=1)


def shaken(core: nn.Module) -> nn.Module:
    """Starts are made to do little: let everything matter."""
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def assert_meter(meter: EnergyMeter, names: list[str], powers: list[Vector]) -> None:
    """powers: (B, T) by name."""
    assert list(meter.per_step) == names
    for name, power in zip(names, powers, strict=True):
        np.testing.assert_allclose(meter.per_step[name].numpy(), power.mean(0), rtol=3e-5)
    total = sum(power.mean() for power in powers)
    assert meter.power == pytest.approx(total, rel=1e-5)
