"""The STPN recurrences on the GPU. Same signatures and same results as the specification.

x may be bfloat16; states, parameters and results are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stpn.ops.gpu import plan
from stpn.ops.gpu.graphs import Tensors, graphed
from stpn.ops.gpu.launch import (
    check,
    check_sequence,
    contiguous,
    in_rows,
    in_steps,
    inside,
    launch,
    mask,
    padded,
)
from stpn.ops.gpu.recurrence import Recurrence, Values
from stpn.ops.stpn import reference, triton_in_memory, triton_on_chip
from stpn.ops.stpn.reference import STPNOptions
from stpn.ops.tracing import traced

_NORMS = {None: 0, "pre": 1, "post": 2}
_ACTIVATIONS = {"tanh": 0, "sigmoid": 1, "relu": 2}
# Slots per row that a backward pass wants of each step (neurons.py), without and with power.
_SLOTS = {None: (0, 0), "pre": (2, 3), "post": (5, 7)}


class _Inputs(NamedTuple):
    x: Tensor  # (B, T, I)
    h0: Tensor  # (B, H)
    c0: Tensor | None  # (B, H): gated
    f0: Tensor  # (B, R, D)
    weight: Tensor  # (R, D)
    bias: Tensor | None  # (R,)
    lambda_: Tensor  # broadcastable to (R, D)
    gamma: Tensor
    reset: Tensor | None  # (B, T) bool
    lengths: Tensor | None  # (B,) int64
    power_weight: Tensor | None  # (D,)


class _Record(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    y: Tensor  # (B, T, H)
    f_T: Tensor  # (B, R, DP)
    saved: Tensor  # (B, S, K, R)
    cells: Tensor | None  # (B, S, H)
    checkpoints: Tensor  # (B, ceil(T / every), R, DP)


class _Call:
    """The arguments that kernels share, by name; each takes those that it has."""

    def __init__(self, inputs: _Inputs, options: STPNOptions) -> None:
        x, h0, c0, f0, weight = inputs[:5]
        check_sequence("x", x)
        self.batch, self.steps, self.inputs = x.shape
        self.hidden, self.gated = h0.shape[-1], c0 is not None
        self.rows = 4 * self.hidden if self.gated else self.hidden
        self.columns = self.inputs + self.hidden * (options.recurrent or self.gated)
        state, synapses = (self.batch, self.hidden), (self.rows, self.columns)
        check(
            x, h0=(h0, state), c0=(c0, state), f0=(f0, (self.batch, *synapses)),
            weight=(weight, synapses), bias=(inputs.bias, synapses[:1]),
            lambda_=(inputs.lambda_, tuple(inputs.lambda_.shape)),
            gamma=(inputs.gamma, tuple(inputs.gamma.shape)),
            reset=(inputs.reset, (self.batch, self.steps)), lengths=(inputs.lengths, state[:1]),
            power_weight=(inputs.power_weight, synapses[1:]),
        )  # fmt: skip
        self.padded = padded(self.columns)
        self.every = plan.segment_length(self.steps)
        self.segments = math.ceil(self.steps / self.every)
        x = in_steps(x)
        power = inputs.power_weight is not None
        self.arguments: dict[str, Any] = {
            "x": x, "x_sb": x.stride(0), "x_st": x.stride(1),
            "h0": h0, "h_sb": h0.stride(0), "h_sk": h0.stride(1),
            "c0": c0, "c_sb": c0.stride(0) if c0 is not None else 0,
            "c_sk": c0.stride(1) if c0 is not None else 0,
            "f0": f0, "f_sb": f0.stride(0), "f_sr": f0.stride(1), "f_sd": f0.stride(2),
            "weight": in_rows(weight), "bias": contiguous(inputs.bias),
            "lam": in_rows(inputs.lambda_.expand(weight.shape)),
            "gam": in_rows(inputs.gamma.expand(weight.shape)),
            "reset": mask(inputs.reset),
            "lengths": inside(inputs.lengths, self.steps),
            "power_weight": contiguous(inputs.power_weight),
            "B": self.batch, "T": self.steps, "every": self.every, "clamp": options.clamp or 0.0,
            "I": self.inputs, "H": self.hidden, "D": self.columns, "R": self.rows,
            "DP": self.padded, "K": _SLOTS[options.norm][power] + self.gated,
            "NORM": _NORMS[options.norm], "ACTIVATION": _ACTIVATIONS[options.nonlinearity],
            "CLAMPED": options.clamp is not None, "GATED": self.gated,
        }  # fmt: skip

    def new(self, *shape: int, zero: bool = False) -> Tensor:
        make = torch.zeros if zero else torch.empty
        return make(shape, dtype=torch.float32, device=self.arguments["x"].device)

    def launch(self, kernel: Any, grid: tuple[int, ...], tile: plan.Tile, **own: Any) -> None:
        launch(kernel, grid, tile, self.arguments, own, RB=tile.rows, DB=tile.columns)


def _tile(inputs: _Inputs, options: STPNOptions) -> plan.Tile | None:
    rows, columns = inputs.weight.shape
    return plan.on_chip(
        rows, columns, independent=not options.recurrent, gated=inputs.c0 is not None
    )


def _forward(
    options: STPNOptions, save: bool, *tensors: Any, f_T: Tensor | None = None
) -> tuple[Any, ...]:
    """From the tensors of `_Inputs`: y, c_T, f_T (B, R, DP), power, and of `_Record` the rest.

    `f_T` may be given, also as that of the inputs, if its rows have no padding.
    """
    inputs = _Inputs(*tensors)
    call, tile = _Call(inputs, options), _tile(inputs, options)
    ends = inputs.lengths is not None  # past them y and power are 0
    in_memory = plan.rows_in_memory(call.gated)
    blocks = (tile or plan.Tile(in_memory.rows, 0, math.ceil(call.rows / in_memory.rows), 0)).blocks
    steps = call.steps + (tile is None)  # in memory, the end of the last update is a step
    if not save and tile is None:
        steps = 2
    y = call.new(call.batch, call.steps, call.hidden, zero=ends)
    c_T = call.new(call.batch, call.hidden) if call.gated else None
    f_T = call.new(call.batch, call.rows, call.padded) if f_T is None else f_T
    metered = inputs.power_weight is not None
    powers = call.new(blocks, call.batch, call.steps, zero=ends) if metered else None
    saved = cells = checkpoints = None
    if save or tile is None:
        saved = call.new(call.batch, steps, max(call.arguments["K"], 1), call.rows)
        cells = call.new(call.batch, steps, call.hidden) if call.gated else None
    if save:
        checkpoints = call.new(call.batch, call.segments, call.rows, call.padded)
    results = {
        "y": y, "c_T": c_T, "f_T": f_T, "power": powers, "saved": saved, "cells": cells,
        "checkpoints": checkpoints,
    }  # fmt: skip
    if tile is not None:
        call.launch(triton_on_chip.forward, (call.batch, tile.blocks), tile, **results)
    else:
        for t in range(call.steps + 1):
            call.launch(
                triton_in_memory.step, (call.batch, blocks), in_memory, t=t, S=steps, **results
            )
    power = None if powers is None else powers.sum(0)
    return y, c_T, f_T, power, saved, cells, checkpoints


class _Wanted(NamedTuple):
    """Whose gradients are wanted."""

    x: bool
    h0: bool
    c0: bool
    f0: bool
    weight: bool
    bias: bool
    lambda_: bool
    gamma: bool


def _backward(options: STPNOptions, wanted: _Wanted, *tensors: Any) -> tuple[Tensor | None, ...]:
    """From the tensors of `_Inputs` and `_Record`, and the gradients of y, c_T, f_T and power: the
    gradients of the fields of `_Wanted`.
    """
    count = len(_Inputs._fields)
    inputs, record = _Inputs(*tensors[:count]), _Record(*tensors[count:-4])
    dy, dc_T, df_T, dpower = tensors[-4:]
    call, tile = _Call(inputs, options), _tile(inputs, options)
    in_memory = plan.tile_in_memory(call.gated)
    row_blocks = tile.blocks if tile else math.ceil(call.rows / in_memory.rows)
    column_blocks = math.ceil(call.columns / in_memory.columns)
    parts = min(call.batch, plan.MOST_PROGRAMS)
    if tile is None:
        parts = min(call.batch, math.ceil(plan.PROGRAMS_IN_MEMORY / (row_blocks * column_blocks)))
    synapses = parts, call.rows, call.padded
    add = tile is None  # to what the launches before have left
    ends = inputs.lengths is not None
    dx = call.new(row_blocks, *inputs.x.shape, zero=ends) if wanted.x else None
    dF = call.new(call.batch, call.rows, call.padded) if wanted.f0 or tile is None else None
    results = {
        "dx": dx,
        "dweight": call.new(*synapses, zero=add),
        "dbias": call.new(parts, call.rows, zero=add) if wanted.bias else None,
        "dlam": call.new(*synapses, zero=add) if wanted.lambda_ else None,
        "dgam": call.new(*synapses, zero=add) if wanted.gamma else None,
    }
    given = {
        "y": record.y, "saved": record.saved, "cells": record.cells,
        "checkpoints": record.checkpoints, "dy": contiguous(dy), "dc_T": contiguous(dc_T),
        "df_T": None if df_T is None else in_rows(df_T), "dpower": contiguous(dpower),
    }  # fmt: skip
    if tile is not None:
        dh0 = call.new(call.batch, call.hidden) if wanted.h0 else None
        dc0 = call.new(call.batch, call.hidden) if wanted.c0 else None
        segment = call.new(parts, call.every + 1, call.rows, call.padded)
        call.launch(
            triton_on_chip.backward, (parts, tile.blocks), tile,
            **given, **results, dh0=dh0, dc0=dc0, df0=dF, segment=segment,
        )  # fmt: skip
    else:
        segment = call.new(call.batch, call.every + 1, call.rows, call.padded)
        dh_sums = call.new(2, row_blocks, call.batch, call.hidden)
        dcs = call.new(2, call.batch, call.hidden) if call.gated else None
        steps = record.saved.shape[1]
        dot = None
        if df_T is not None and options.norm == "post":
            # f_T = eff F: the sweep wants the sum of df_T F, and eff lies where the sequence ended.
            at = torch.arange(call.batch, device=record.y.device)
            eff = record.saved[at, call.steps if inputs.lengths is None else inputs.lengths, 2]
            dot = (df_T * record.f_T[..., : call.columns]).sum(-1) / eff  # (B, R)
        work = {
            "segment": segment, "dh_sums": dh_sums, "dcs": dcs, "dot": dot, "dF": dF, "S": steps,
            "sums": call.new(2, 2, column_blocks, call.batch, call.rows),
            "ROWS": row_blocks, "RP": plan.power_of_two(row_blocks),
            "COLUMNS": column_blocks, "CP": plan.power_of_two(column_blocks),
        }  # fmt: skip
        for t0 in range((call.segments - 1) * call.every, -1, -call.every):
            grid = call.batch, row_blocks, column_blocks
            call.launch(triton_in_memory.replay, grid, in_memory, **given, **work, t0=t0)
            end = min(t0 + call.every, call.steps)
            # t = end only for sequences that end there.
            for t in range(end - (end < call.steps and inputs.lengths is None), t0 - 1, -1):
                call.launch(
                    triton_in_memory.sweep, (row_blocks, column_blocks, parts), in_memory,
                    **given, **results, **work, t=t, t0=t0,
                )  # fmt: skip
        dh0 = dh_sums[0].sum(0) if options.recurrent else torch.zeros_like(dh_sums[0, 0])
        dc0 = None if dcs is None else dcs[0]

    def summed(name: str, like: Tensor) -> Tensor | None:
        partial = results[name]
        if partial is None:
            return None
        return partial.sum(0)[:, : call.columns].sum_to_size(like.shape)

    dbias = results["dbias"]
    return (
        None if dx is None else dx.sum(0).to(inputs.x.dtype),
        dh0 if wanted.h0 else None,
        dc0 if wanted.c0 else None,
        dF[..., : call.columns] if wanted.f0 and dF is not None else None,
        summed("dweight", inputs.weight) if wanted.weight else None,
        None if dbias is None else dbias.sum(0),
        summed("dlam", inputs.lambda_),
        summed("dgam", inputs.gamma),
    )


def _launched(
    run: Callable[..., Tensors], options: STPNOptions, constant: Hashable, *tensors: Any
) -> Tensors:
    """`run`, by a CUDA graph where it has a launch per step."""
    inputs = _Inputs(*tensors[: len(_Inputs._fields)])
    if _tile(inputs, options) is not None:
        return run(options, constant, *tensors)
    return graphed(run, tensors, (options, constant), inputs.f0.numel())


# As the operator takes them: recurrent, norm, clamp (infinite: none), nonlinearity.
Constants = tuple[bool, str, float, str]


def _constants(options: STPNOptions) -> Constants:
    clamp = math.inf if options.clamp is None else float(options.clamp)
    return options.recurrent, options.norm or "", clamp, options.nonlinearity


@lru_cache
def _options(recurrent: bool, norm: str, clamp: float, nonlinearity: str) -> STPNOptions:
    return STPNOptions(
        recurrent=recurrent,
        norm=norm or None,  # type: ignore[arg-type]
        clamp=None if math.isinf(clamp) else clamp,
        nonlinearity=nonlinearity,  # type: ignore[arg-type]
    )


def _run_forward(constants: Constants, save: bool, *tensors: Any) -> Values:
    return _launched(_forward, _options(*constants), save, *tensors)


def _run_backward(
    constants: Constants, needs: Values, tensors: Values, outputs: Values, grads: Values
) -> Tensors:
    wanted = _Wanted(*needs[: len(_Wanted._fields)])
    y, _, f_T, _, saved, cells, checkpoints = outputs
    record = _Record(y, f_T, saved, cells, checkpoints)
    return _launched(_backward, _options(*constants), wanted, *tensors, *record, *grads)


def _specification(constants: Constants, *tensors: Any) -> Values:
    x, h0, c0, *others = tensors
    named = dict(zip(("reset", "lengths", "power_weight"), others[5:], strict=True))
    named["options"] = _options(*constants)
    if c0 is not None:
        return reference.stpn_lstm(x.float(), h0, c0, *others[:5], **named)
    y, f_T, power = reference.stpn(x.float(), h0, *others[:5], **named)
    return y, None, f_T, power


_run = Recurrence(
    "stpn_triton", " ".join(_Inputs._fields), differentiable=len(_Wanted._fields),
    constants="bool recurrent, str norm, float clamp, str nonlinearity", outputs=7, results=4,
    padded=(2, 3), forward=_run_forward, backward=_run_backward, specification=_specification,
)  # fmt: skip


def stpn(
    x: Tensor, h0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn`."""
    y, _, f_T, power = _run(
        _constants(options),
        x,
        h0,
        None,
        f0,
        weight,
        bias,
        lambda_,
        gamma,
        reset,
        lengths,
        power_weight,
    )
    return y, f_T, power


def stpn_lstm(
    x: Tensor, h0: Tensor, c0: Tensor, f0: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, norm_scale: Tensor | None = None,
    reset: Tensor | None = None, lengths: Tensor | None = None,
    power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm`."""
    y, c_T, f_T, power = _run(
        _constants(options),
        x,
        h0,
        c0,
        f0,
        weight,
        bias,
        lambda_,
        gamma,
        reset,
        lengths,
        power_weight,
    )
    return y, c_T, f_T, power


def _step(
    x: Tensor, h: Tensor, c: Tensor | None, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, options: STPNOptions, power_weight: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The new h, c and power; f is updated in place."""
    if traced(x):
        y, c_T, f_T, power = _run(
            _constants(options), x.unsqueeze(1), h, c, f, weight, bias, lambda_, gamma, None, None,
            power_weight,
        )  # fmt: skip
        f.copy_(f_T)
        return y.squeeze(1), c_T, None if power is None else power.squeeze(1)
    direct = f.is_contiguous() and f.shape[2] % 4 == 0
    with torch.cuda.device_of(x):
        y, c_T, f_T, power, *_ = _forward(
            options, False, x.unsqueeze(1), h, c, f, weight, bias, lambda_, gamma, None, None,
            power_weight, f_T=f if direct else None,
        )  # fmt: skip
    if direct:  # autograd is to notice, as it does of torch's own operations in place
        torch.autograd.graph.increment_version(f)
    else:
        f.copy_(f_T[..., : f.shape[2]])
    return y.squeeze(1), c_T, None if power is None else power.squeeze(1)


@torch.no_grad()
def stpn_step_(
    x: Tensor, h: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None, lambda_: Tensor,
    gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_step_`."""
    y, _, power = _step(x, h, None, f, weight, bias, lambda_, gamma, options, power_weight)
    return y, power


@torch.no_grad()
def stpn_lstm_step_(
    x: Tensor, h: Tensor, c: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None,
    lambda_: Tensor, gamma: Tensor, *, options: STPNOptions, power_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`reference.stpn_lstm_step_`."""
    y, c_T, power = _step(x, h, c, f, weight, bias, lambda_, gamma, options, power_weight)
    assert c_T is not None
    c.copy_(c_T)
    return y, power
