"""An agent: encoder, recurrent core, linear heads for policy and value.

Two ways through the same weights: `step` acts, one time step;
`forward` learns, a whole rollout in one call of the core.

Notation: B environments, T steps, P parameters of the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stpn._extras import need
from stpn.nn.core import RecurrentCore
from stpn.nn.state import rebuilt
from stpn.training.policies import Policy, UnsupportedSpace
from stpn.training.running import RunningStatistics

State = tuple[Any, ...]  # one named tuple of tensors per layer


class Vector(nn.Module):
    """Numbers as they are, flattened; or, with `normalize`, less their running mean, in running
    deviations."""

    def __init__(self, shape: tuple[int, ...], *, normalize: bool = False) -> None:
        super().__init__()
        self.output_size = math.prod(shape)
        self.statistics = RunningStatistics((self.output_size,)) if normalize else None

    def _flat(self, observation: Tensor) -> Tensor:
        if observation.dim() != 2:
            observation = observation.reshape(len(observation), -1)
        return observation.float()

    def observe(self, observation: Tensor) -> None:
        """Take observations (N, *shape) into the statistics, if there are any."""
        if self.statistics is not None:
            self.statistics.update(self._flat(observation))

    def forward(self, observation: Tensor) -> Tensor:  # (N, *shape) -> (N, output_size)
        numbers = self._flat(observation)
        return numbers if self.statistics is None else self.statistics(numbers)


class OneHot(nn.Module):
    """One of n symbols."""

    def __init__(self, n: int, start: int = 0) -> None:
        super().__init__()
        self.output_size = n
        self._start = start

    def observe(self, observation: Tensor) -> None:
        """Symbols have no statistics."""

    def forward(self, observation: Tensor) -> Tensor:  # (N,) -> (N, n)
        return functional.one_hot(observation - self._start, self.output_size).float()


class Frames(nn.Module):
    """The convolutions of Mnih et al. 2016: 16 of 8 x 8 / 4, then 32 of 4 x 4 / 2, with ReLU.

    With `normalize` they see what differs from the running mean of each pixel: what moves.
    """

    def __init__(self, shape: tuple[int, int, int], *, normalize: bool = False) -> None:
        super().__init__()
        self.statistics = RunningStatistics(shape, one_scale=True) if normalize else None
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, 8, stride=4)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        rows, columns = (((size - 8) // 4 + 1 - 4) // 2 + 1 for size in (height, width))
        self.output_size = 32 * rows * columns  # 2592 for 84 x 84

    def observe(self, observation: Tensor) -> None:
        """Take frames (N, C, H, W) into the statistics, if there are any: neighbours in time are
        nearly the same, so one in eight is enough."""
        if self.statistics is not None:
            self.statistics.update(observation[:: min(8, len(observation))].float().div_(255.0))

    def forward(self, observation: Tensor) -> Tensor:  # (N, C, H, W) bytes -> (N, output_size)
        x = observation.float().div_(255.0)
        if self.statistics is not None:
            x = self.statistics(x)
        for layer in (self.conv1, self.conv2):
            # With channels last the backward pass takes a quarter of the time. Only here, not in
            # the parameters: a checkpoint knows no layouts, and a fused optimizer trusts them. A
            # clone, because `contiguous` leaves a single channel as it is.
            weight = layer.weight.clone(memory_format=torch.channels_last)
            x = functional.conv2d(x, weight, layer.bias, stride=layer.stride).relu_()
        return x.flatten(1)


def encoder_for(space: Any, *, normalize: bool = False) -> Vector | OneHot | Frames:
    """The encoder for one environment's observation space; `normalize`: with running statistics,
    except for symbols, which have none."""
    spaces = need("gymnasium.spaces", extra="rl")
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n), int(space.start))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        if space.dtype == np.uint8 and len(shape) == 3 and min(shape[1:]) >= 36:
            return Frames((shape[0], shape[1], shape[2]), normalize=normalize)
        return Vector(shape, normalize=normalize)
    raise UnsupportedSpace(f"agents here see Box and Discrete observation spaces, not {space}")


class Agent(nn.Module):
    """`encoder`, then any core of the registry (batch first), then one linear layer for both heads:
    the policy's P parameters and, in the last column, the value.
    """

    def __init__(self, encoder: nn.Module, core: RecurrentCore, policy: Policy) -> None:
        super().__init__()
        if not core.batch_first:
            raise ValueError("an agent's core must be batch first")
        self.encoder = encoder
        self.core = core
        self.heads = nn.Linear(core.hidden_size, policy.num_parameters + 1)
        self.policy = policy

    def step(
        self,
        observation: Tensor,
        state: State | None = None,
        reset: Tensor | None = None,
        *,
        inplace: bool = False,
    ) -> tuple[Tensor, State]:
        """One time step: (B, ...) -> heads (B, P + 1). `inplace` overwrites `state`."""
        y, state = self.core.step(self.encoder(observation), state, reset, inplace=inplace)
        return self.heads(y), state

    @torch.no_grad()
    def acting(self, observation: Tensor, state: State) -> Callable[[Tensor | None], Tensor]:
        """`step` on the same tensors again and again, for as long as no parameter is replaced.

        Each call of the result takes a reset mask or None, reads `observation` (B, ...), which the
        caller fills, and updates `state`. The heads (B, P + 1) are overwritten by the next call.
        """
        encoded = self.encoder(observation)
        as_it_is = encoded.data_ptr() == observation.data_ptr()
        x = encoded.contiguous()  # (B, I)
        core = self.core.bound_step(x, state)
        weight, bias = self.heads.weight.t(), self.heads.bias
        heads = x.new_empty(len(x), len(bias))

        @torch.no_grad()
        def act(reset: Tensor | None = None) -> Tensor:
            if not as_it_is:
                x.copy_(self.encoder(observation))
            return torch.addmm(bias, core(reset), weight, out=heads)

        return act

    def forward(
        self, observation: Tensor, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """A rollout: (B, T, ...) -> parameters (B, T, P), values (B, T), final state."""
        batch, steps = observation.shape[:2]
        encoded = self.encoder(observation.flatten(0, 1))  # (B * T, I)
        y, state = self.core(encoded.view(batch, steps, -1), state, reset)
        heads = self.heads(y)
        return heads[..., :-1], heads[..., -1], state

    @torch.no_grad()
    def peek(self, observation: Tensor, state: State, index: Tensor) -> Tensor:
        """Values (N,) of what environments `index` would see next, with `state` left as it is.

        observation (N, ...) is of those environments only, state of all.
        """
        heads, _ = self.step(observation, select(state, index), inplace=True)  # of the copy
        return heads[:, -1]


def select(state: State, index: Tensor) -> State:
    """A copy of the state of some sequences of the batch."""
    return tuple(rebuilt(layer, (value[index] for value in layer)) for layer in state)


def clone(state: State) -> State:
    return tuple(layer.clone() for layer in state)


def concatenate(states: list[State]) -> State:
    """The states of several batches as one batch."""
    return tuple(
        rebuilt(layers[0], (torch.cat(values) for values in zip(*layers, strict=True)))
        for layers in zip(*states, strict=True)
    )
