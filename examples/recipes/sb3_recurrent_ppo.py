"""An STPN in RecurrentPPO of Stable-Baselines3-contrib.

    pip install '.[recipes]'
    python examples/recipes/sb3_recurrent_ppo.py --steps 50000

RecurrentPPO keeps the two tensors of an LSTM's state at every step. `AsLSTM` gives it two of the
size that it asks for: the whole state of the core, laid end to end and cut in the middle. It resets
where RecurrentPPO says that an episode starts, within a sequence too.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import gymnasium as gym
import recall  # noqa: F401  (registers Recall-v0)
import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn
from torch.nn import functional

import stpn


class AsLSTM(nn.Module):
    """A core with the attributes of `nn.LSTM` that RecurrentPPO reads."""

    num_layers = 1

    def __init__(self, core: stpn.nn.RecurrentCore) -> None:
        super().__init__()
        self.core = core
        self.input_size = core.input_size
        self.shapes = [[v.shape[1:] for v in layer] for layer in core.initial_state(1)]
        self.sizes = [math.prod(shape) for layer in self.shapes for shape in layer]
        self.hidden_size = (sum(self.sizes) + 1) // 2  # of each of the two tensors

    def packed(self, state: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """The core's state as two tensors (1, B, N)."""
        flat = torch.cat([value.flatten(1) for layer in state for value in layer], dim=1)
        flat = functional.pad(flat, (0, 2 * self.hidden_size - flat.shape[1]))
        return flat.unsqueeze(0).chunk(2, dim=2)

    def unpacked(self, states: tuple[Tensor, ...]) -> tuple[Any, ...]:
        flat = torch.cat(states, dim=2).squeeze(0)[:, : sum(self.sizes)]
        parts = iter(flat.split(self.sizes, dim=1))
        return tuple(
            self.core.state_type(*(next(parts).reshape(-1, *shape) for shape in layer))
            for layer in self.shapes
        )


class STPNPolicy(RecurrentActorCriticPolicy):
    """`RecurrentPPO(STPNPolicy, env, policy_kwargs={"model": "stpnr", "lstm_hidden_size": 32})`.

    `model` is any core with a state, `core` its options. The actor and the critic have a core each,
    as theirs have; with `shared_lstm=True, enable_critic_lstm=False` they share one.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        lr_schedule: Any,
        *args: Any,
        model: str = "stpnr",
        core: dict[str, Any] | None = None,
        lstm_hidden_size: int = 32,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            *args,
            lstm_hidden_size=lstm_hidden_size,
            **kwargs,
        )

        def new() -> AsLSTM:
            return AsLSTM(
                stpn.build(
                    model, self.features_dim, lstm_hidden_size, batch_first=True, **core or {}
                )
            )

        self.lstm_actor = new()
        if self.lstm_critic is not None:
            self.lstm_critic = new()
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        # the base class made its optimizer for the LSTMs that are gone
        self.optimizer = self.optimizer_class(
            self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )

    @staticmethod
    def _process_sequence(
        features: Tensor,  # (B * T, I), T = 1 while acting
        lstm_states: tuple[Tensor, ...],
        episode_starts: Tensor,  # (B * T,)
        lstm: AsLSTM,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        batch = lstm_states[0].shape[1]
        x = features.reshape(batch, -1, lstm.input_size)
        reset = episode_starts.reshape(batch, -1) > 0.5
        y, state = lstm.core(x, lstm.unpacked(lstm_states), reset)
        return y.flatten(0, 1), lstm.packed(state)


def train(
    env: str = "Recall-v0", model: str = "stpnr", steps: int = 50_000, seed: int = 0
) -> RecurrentPPO:
    envs = DummyVecEnv([lambda: Monitor(gym.make(env)) for _ in range(8)])
    algorithm = RecurrentPPO(
        STPNPolicy,
        envs,
        policy_kwargs={"model": model, "lstm_hidden_size": 32},
        n_steps=64,
        batch_size=256,
        learning_rate=2e-3,
        gamma=0.5,
        seed=seed,
        device="cpu",
    )
    return algorithm.learn(steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="Recall-v0")
    parser.add_argument("--model", default="stpnr", help="a core with a state: stpnr, lstm, ...")
    parser.add_argument("--steps", type=int, default=50_000)
    options = parser.parse_args()
    trained = train(options.env, options.model, options.steps)
    mean, deviation = evaluate_policy(trained, trained.get_env(), n_eval_episodes=100)
    print(f"reward of an episode {mean:.2f} ± {deviation:.2f}")
