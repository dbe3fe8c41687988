"""An agent: encoder, recurrent core, linear heads for policy and value.

Two ways through the same weights: `step` acts, one time step;
`forward` learns, a whole rollout in one call of the core.

Notation: B environments, T steps, P parameters of the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

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


def _of_length(x: Tensor, length: float | None) -> Tensor:  # (N, I) -> the same
    """Vectors scaled to one Euclidean length, None: as they are; zeros stay zeros."""
    return x if length is None else x * (length * (x.square().sum(1, True) + 1e-8).rsqrt())


class Vector(nn.Module):
    """Numbers as they are, flattened; or, with `normalize`, less their running mean, in running
    deviations; or, with `length`, scaled to that Euclidean length."""

    def __init__(
        self, shape: tuple[int, ...], *, normalize: bool = False, length: float | None = None
    ) -> None:
        super().__init__()
        self.length = length
        self.shape = shape
        self.output_size = math.prod(shape)
        self.statistics = RunningStatistics((self.output_size,)) if normalize else None

    def _flat(self, observation: Tensor) -> Tensor:
        if observation.dim() != 2:
            observation = observation.reshape(observation.shape[0], -1)  # `len` fixes it in a graph
        return observation.float()

    def observe(self, observation: Tensor) -> None:
        """Take observations (N, *shape) into the statistics, if there are any."""
        if self.statistics is not None:
            self.statistics.update(self._flat(observation))

    def random(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Observations (N, *shape) of the right kind, to try a network with."""
        return torch.randn(batch, *self.shape, generator=generator)

    def forward(self, observation: Tensor) -> Tensor:  # (N, *shape) -> (N, output_size)
        numbers = self._flat(observation)
        if self.statistics is not None:
            numbers = self.statistics(numbers)
        return _of_length(numbers, self.length)


class Bytes(Vector):
    """Bytes between their bounds, flattened and scaled to [0, 1]."""

    low: Tensor  # (output_size,)
    width: Tensor  # (output_size,)

    def __init__(self, low: Any, high: Any, **options: Any) -> None:  # of `shape`
        super().__init__(low.shape, **options)
        low, high = (torch.as_tensor(bound.astype(np.float32)).flatten() for bound in (low, high))
        # buffers, to follow the module to another device; they say nothing that was learnt
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("width", (high - low).clamp_(min=1.0), persistent=False)

    def random(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        return _random_bytes(batch, *self.shape, generator=generator)

    def _flat(self, observation: Tensor) -> Tensor:
        return (super()._flat(observation) - self.low) / self.width


class OneHot(nn.Module):
    """One of n symbols."""

    def __init__(self, n: int, start: int = 0) -> None:
        super().__init__()
        self.output_size = n
        self._start = start

    def observe(self, observation: Tensor) -> None:
        """Symbols have no statistics."""

    def random(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Symbols (N,) to try a network with."""
        return torch.randint(self.output_size, (batch,), generator=generator) + self._start

    def forward(self, observation: Tensor) -> Tensor:  # (N,) -> (N, n)
        return functional.one_hot(observation - self._start, self.output_size).float()


class Frames(nn.Module):
    """The convolutions of Mnih et al. 2016: 16 of 8 x 8 / 4, then 32 of 4 x 4 / 2, with ReLU.

    `shape` is (C, H, W); `channels_last` says that images come as (H, W, C). With `normalize` they
    see what differs from the running mean of each pixel: what moves. `length`: the Euclidean length
    of what they give; without it nothing keeps features from growing until a core of normalised
    rows, which cannot scale them down, saturates.
    """

    SMALLEST = 36  # rows and columns of an image, for which one position is left

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        channels_last: bool = False,
        normalize: bool = False,
        length: float | None = None,
    ) -> None:
        super().__init__()
        self.length = length
        self._channels_last = channels_last
        self.shape = (*shape[1:], shape[0]) if channels_last else shape
        self.statistics = RunningStatistics(shape, one_scale=True) if normalize else None
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, 8, stride=4)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        rows, columns = (((size - 8) // 4 + 1 - 4) // 2 + 1 for size in (height, width))
        self.output_size = 32 * rows * columns  # 2592 for 84 x 84

    def _scaled(self, observation: Tensor) -> Tensor:  # -> (N, C, H, W) in [0, 1]
        if self._channels_last:
            observation = observation.permute(0, 3, 1, 2)
        return observation.float().div_(255.0)

    def observe(self, observation: Tensor) -> None:
        """Take frames (N, C, H, W) into the statistics, if there are any: neighbours in time are
        nearly the same, so one in eight is enough."""
        if self.statistics is not None:
            self.statistics.update(self._scaled(observation[::8]))

    def random(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Images (N, *shape) of noise, to try a network with."""
        return _random_bytes(batch, *self.shape, generator=generator)

    def forward(self, observation: Tensor) -> Tensor:  # (N, C, H, W) bytes -> (N, output_size)
        x = self._scaled(observation)
        if self.statistics is not None:
            self.statistics.standardize_(x)
        for layer in (self.conv1, self.conv2):
            if type(layer) is not nn.Conv2d:  # on devices: it has a rule of its own
                x = layer(x).relu()
                continue
            # With channels last the backward pass takes a quarter of the time. Only here, not in
            # the parameters: a checkpoint knows no layouts, and a fused optimizer trusts them. A
            # clone, because `contiguous` leaves a single channel as it is.
            weight = layer.weight.clone(memory_format=torch.channels_last)
            x = functional.conv2d(x, weight, layer.bias, stride=layer.stride).relu_()
        return _of_length(x.flatten(1), self.length)


def _random_bytes(*shape: int, generator: torch.Generator | None) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def encoder_for(
    space: Any, *, normalize: bool = False, length: float | None = None
) -> Vector | OneHot | Frames:
    """The encoder for one environment's observation space; `normalize`: with running statistics,
    except for symbols, which have none; `length`: with vectors of that Euclidean length, except for
    symbols, whose is 1.

    Bytes in three dimensions are an image, (C, H, W) or Gymnasium's (H, W, C), whichever leaves
    fewer channels; one that is too small for the convolutions is taken as numbers, as other bytes.
    """
    spaces = need("gymnasium.spaces", extra="rl")
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n), int(space.start))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        if space.dtype != np.uint8:
            return Vector(shape, normalize=normalize, length=length)
        if len(shape) == 3:
            channels_last = shape[2] < shape[0]
            channels, rows, columns = (shape[2], *shape[:2]) if channels_last else shape
            if min(rows, columns) >= Frames.SMALLEST:
                image = (channels, rows, columns)
                return Frames(
                    image, channels_last=channels_last, normalize=normalize, length=length
                )
        return Bytes(space.low, space.high, normalize=normalize, length=length)
    raise UnsupportedSpace(f"agents here see Box and Discrete observation spaces, not {space}")


Encoder: TypeAlias = Vector | OneHot | Frames


class Agent(nn.Module):
    """`encoder`, then any core of the registry (batch first), then one linear layer for both heads:
    the policy's P parameters and, in the last column, the value.
    """

    encoder: Encoder

    def __init__(self, encoder: Encoder, core: RecurrentCore, policy: Policy) -> None:
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
    def acting(
        self, observation: Tensor, state: State, output: Tensor | None = None
    ) -> Callable[[Tensor | None], Tensor]:
        """`step` on the same tensors again and again, for as long as no parameter is replaced.

        Each call of the result takes a reset mask or None, reads `observation` (B, ...), which the
        caller fills, and updates `state`. The heads (B, P + 1) are overwritten by the next call,
        and so is `output` (B, H), if given: what the core gave.
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
            y = core(reset)
            if output is not None:
                output.copy_(y)
            if type(self.heads) is not nn.Linear:  # on devices: they have a rule of their own
                return self.heads(y)
            return torch.addmm(bias, y, weight, out=heads)

        return act

    def forward(
        self, observation: Tensor, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """A rollout: (B, T, ...) -> parameters (B, T, P), values (B, T), final state."""
        y, state = self.outputs(observation, state, reset)
        return *self.read(y), state

    def outputs(
        self, observation: Tensor, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """A rollout: (B, T, ...) -> what the core gives (B, T, H), final state."""
        batch, steps = observation.shape[:2]
        encoded = self.encoder(observation.flatten(0, 1))  # (B * T, I)
        return self.core(encoded.view(batch, steps, -1), state, reset)

    def read(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """What the core gave (..., H) -> parameters (..., P), values (...)."""
        heads = self.heads(y)
        return heads[..., :-1], heads[..., -1]

    @torch.no_grad()
    def peek(self, observation: Tensor, state: State, index: Tensor) -> Tensor:
        """What the core would give (N, H) for what environments `index` would see next, with
        `state` left as it is.

        observation (N, ...) is of those environments only, state of all.
        """
        copy = select(state, index)
        y, _ = self.core.step(self.encoder(observation), copy, inplace=True)
        return y


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
