"""Acting on bound tensors is `step`, and `step` is the sequence, whatever the agent sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("gymnasium")

from gymnasium import spaces

from stpn.nn.registry import build
from stpn.training.agent import Agent, Frames, encoder_for
from stpn.training.policies import Categorical

BATCH, STEPS = 3, 4
SPACES = {
    "numbers": spaces.Box(-1, 1, (5,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 3), np.float32),
    "symbol": spaces.Discrete(4, start=2),
    "frames": spaces.Box(0, 255, (1, 36, 40), np.uint8),
    "images": spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "memory": spaces.Box(0, 255, (128,), np.uint8),
}


def agent_for(space: Any, model: str) -> Agent:
    encoder = encoder_for(space)
    return Agent(encoder, build(model, encoder.output_size, 6, batch_first=True), Categorical(3))


def observed(space: Any) -> torch.Tensor:  # (B, T, ...)
    space.seed(0)
    return torch.from_numpy(np.array([[space.sample() for _ in range(STEPS)]] * BATCH))


@pytest.mark.parametrize("model", ["stpnr", "stpnl", "lstm"])
@pytest.mark.parametrize("name", SPACES)
def test_acting_is_step_is_the_sequence(name: str, model: str) -> None:
    agent, observations = agent_for(SPACES[name], model), observed(SPACES[name])
    buffer = observations[:, 0].clone()
    state, bound_state = agent.core.initial_state(BATCH), agent.core.initial_state(BATCH)
    act = agent.acting(buffer, bound_state)
    reset = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    reset[1, 2] = True
    with torch.no_grad():
        parameters, values, _ = agent(observations, None, reset)
        for t in range(STEPS):
            buffer.copy_(observations[:, t])
            heads, state = agent.step(observations[:, t], state, reset[:, t])
            torch.testing.assert_close(act(reset[:, t]), heads)
            torch.testing.assert_close(heads[:, :-1], parameters[:, t])
            torch.testing.assert_close(heads[:, -1], values[:, t])


def test_acting_sees_what_was_learnt() -> None:
    agent = agent_for(SPACES["numbers"], "stpnr")
    observation = observed(SPACES["numbers"])[:, 0]
    act = agent.acting(observation, agent.core.initial_state(BATCH))
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.3)
        expected, _ = agent.step(observation)
    torch.testing.assert_close(act(None), expected)


def test_frames_are_the_plain_convolutions() -> None:
    frames = Frames((2, 40, 84))
    observation = torch.randint(256, (3, 2, 40, 84), dtype=torch.uint8)
    encoded = frames(observation)
    plain = functional.relu(frames.conv1(observation / 255))
    plain = functional.relu(frames.conv2(plain)).flatten(1)
    assert encoded.shape == (3, frames.output_size)
    torch.testing.assert_close(encoded, plain)
    for layer in (frames.conv1, frames.conv2):
        assert isinstance(layer, nn.Conv2d)
        parameters = tuple(layer.parameters())
        for got, expected in zip(
            torch.autograd.grad(encoded.square().sum(), parameters, retain_graph=True),
            torch.autograd.grad(plain.square().sum(), parameters, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def test_images_with_channels_last_are_convolved_like_those_with_channels_first() -> None:
    last = encoder_for(spaces.Box(0, 255, (64, 48, 3), np.uint8))
    first = encoder_for(spaces.Box(0, 255, (3, 64, 48), np.uint8))
    assert isinstance(last, Frames)
    last.load_state_dict(first.state_dict())
    image = torch.randint(256, (2, 3, 64, 48), dtype=torch.uint8)
    torch.testing.assert_close(last(image.permute(0, 2, 3, 1)), first(image))


@pytest.mark.parametrize("shape", [(128,), (10, 10, 3), (3, 20, 20), (50, 50)])
def test_other_bytes_are_scaled(shape: tuple[int, ...]) -> None:
    encoder = encoder_for(spaces.Box(0, 255, shape, np.uint8))
    seen = encoder(torch.full((2, *shape), 255, dtype=torch.uint8))
    assert seen.shape == (2, encoder.output_size)
    assert (seen == 1).all()
    few = encoder_for(spaces.Box(0, 3, shape, np.uint8))
    assert (few(torch.full((2, *shape), 3, dtype=torch.uint8)) == 1).all()
