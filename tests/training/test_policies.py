"""Distributions over actions against torch.distributions, and samples against the distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import distributions
from torch.nn import functional

pytest.importorskip("gymnasium")

from gymnasium import spaces

from stpn.training.agent import Frames, OneHot, Vector, encoder_for
from stpn.training.policies import UnsupportedSpace, policy_for


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_categorical_likelihoods() -> None:
    policy = policy_for(spaces.Discrete(5))
    parameters = torch.randn(3, 4, 5) * 3
    action = torch.randint(5, (3, 4))
    ours = policy.distribution(parameters)
    theirs = distributions.Categorical(logits=parameters)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.concentration(), theirs.probs.square().sum(-1))


def test_gaussian_likelihoods() -> None:
    policy = policy_for(spaces.Box(-1, 1, (2,)))
    parameters = torch.randn(3, 4, 4)
    action = torch.randn(3, 4, 2)
    ours = policy.distribution(parameters)
    normal = distributions.Normal(parameters[..., :2], functional.softplus(parameters[..., 2:]))
    theirs = distributions.Independent(normal, 1)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedSpace):
        ours.concentration()


def test_a_collapsed_scale_stays_finite() -> None:
    policy = policy_for(spaces.Box(-1, 1, (1,)))
    parameters = torch.tensor([[0.0, -200.0]], requires_grad=True)
    likelihood = policy.distribution(parameters)
    total = likelihood.log_prob(torch.zeros(1, 1)) + likelihood.entropy()
    total.sum().backward()
    assert total.isfinite().all()
    assert parameters.grad is not None
    assert parameters.grad.isfinite().all()


def test_categorical_samples() -> None:
    policy = policy_for(spaces.Discrete(4))
    logits = np.array([[0.3, -1.0, 2.0, 0.0]], dtype=np.float32)
    noise = policy.noise(100_000, generator=generator())
    shares = np.bincount(policy.sample(logits, noise), minlength=4) / 100_000
    np.testing.assert_allclose(shares, torch.tensor(logits[0]).softmax(0), atol=0.01)
    assert policy.mode(logits) == [2]


def test_gaussian_samples() -> None:
    policy = policy_for(spaces.Box(-1, 1, (2,)))
    parameters = np.array([[1.0, -2.0, 0.5, -1.0]], dtype=np.float32).repeat(100_000, axis=0)
    drawn = policy.sample(parameters, policy.noise(100_000, generator=generator()))
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(drawn.mean(0), [1.0, -2.0], atol=0.02)
    scale = functional.softplus(torch.tensor([0.5, -1.0]))
    np.testing.assert_allclose(drawn.std(0), scale, rtol=0.02)
    np.testing.assert_array_equal(policy.mode(parameters)[0], [1.0, -2.0])


def test_actions_as_the_environment_takes_them() -> None:
    shifted = spaces.Discrete(3, start=-1)
    action = policy_for(shifted).to_env(np.array([0, 2]))
    assert [shifted.contains(one) for one in action] == [True, True]
    box = spaces.Box(np.array([[-1.0], [0.0]]), np.array([[1.0], [2.0]]), dtype=np.float64)
    action = policy_for(box).to_env(np.array([[-5.0, 1.5], [0.5, 7.0]], dtype=np.float32))
    np.testing.assert_array_equal(action, [[[-1.0], [1.5]], [[0.5], [2.0]]])
    assert all(box.contains(one) for one in action)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(0, 9, (2,), dtype=np.int64),
        spaces.Tuple([spaces.Discrete(2)]),
    ],
)
def test_unsupported_actions(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match="Discrete and Box"):
        policy_for(space)


def test_encoders() -> None:
    assert isinstance(encoder_for(spaces.Box(0, 255, (1, 84, 84), dtype=np.uint8)), Frames)
    small = encoder_for(spaces.Box(0, 255, (1, 8, 8), dtype=np.uint8))
    assert isinstance(small, Vector)
    assert small(torch.ones(5, 1, 8, 8, dtype=torch.uint8)).shape == (5, 64)
    symbols = encoder_for(spaces.Discrete(3, start=2))
    assert isinstance(symbols, OneHot)
    assert symbols(torch.tensor([2, 4])).tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(UnsupportedSpace, match="Box and Discrete"):
        encoder_for(spaces.Dict({"a": spaces.Discrete(2)}))
