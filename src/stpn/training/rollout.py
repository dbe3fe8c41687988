"""Acting: a vector environment and an agent make a rollout of T steps from B environments.

Gymnasium's two ways of starting the next episode are brought to one form:

- SAME_STEP: the step that ends an episode returns the first observation of the next; the last one
  of the old is in `infos["final_obs"]`.
- NEXT_STEP: it returns the last observation of the old episode, and one more step, whose action is
  ignored, starts the next. That step is no experience: `valid` is false there.

Either way `reset` marks the first step of an episode, and `bootstrap` holds the value of the state
after a step at which the rollout is cut but the episode has not terminated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stpn._extras import need
from stpn.errors import CheckpointError, StpnError
from stpn.nn.state import rebuilt
from stpn.training.agent import Agent, State, clone
from stpn.training.policies import UnsupportedSpace

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float32]


class EnvironmentFailure(StpnError, RuntimeError):
    """An environment that cannot be made, raised, or returned what is not a number."""


@dataclass
class Rollout:
    """What happened in T steps of B environments. The next rollout reuses these buffers."""

    observations: Tensor  # (B, T, ...)
    actions: Tensor  # (B, T, ...)
    heads: Tensor  # (B, T, P + 1) the agent's output while acting: policy parameters, value
    reset: Tensor  # (B, T) bool: first step of an episode
    rewards: Numbers  # (B, T)
    terminated: Flags  # (B, T) the episode ended with this step, for good
    truncated: Flags  # (B, T) it was broken off after this step
    valid: Flags  # (B, T) false for a step that only starts an episode
    bootstrap: Numbers  # (B, T) value after a cut; 0 elsewhere and at termination
    chunk: int  # steps between two kept states
    states: list[State]  # of the core at steps 0, chunk, 2 * chunk, ..., before a reset there
    episode_rewards: list[float]  # sum of rewards of each episode that ended

    @property
    def ended(self) -> Flags:  # (B, T)
        return self.terminated | self.truncated

    @property
    def values(self) -> Numbers:  # (B, T)
        return self.heads[..., -1].numpy()


class Actor:
    """Acts in a vector environment and remembers where it stands between rollouts.

    `chunk`: steps between two states that are kept, to learn from shorter sequences than a rollout.
    """

    def __init__(self, agent: Agent, env: Any, steps: int, chunk: int | None = None) -> None:
        self.agent = agent
        self.env = env
        self.steps = steps
        self._same_step = _starts_in_same_step(env)

        batch, policy, space = env.num_envs, agent.policy, env.single_observation_space
        self._rollout = Rollout(
            observations=torch.zeros(batch, steps, *space.shape, dtype=_tensor_dtype(space.dtype)),
            actions=torch.zeros(batch, steps, *policy.action_shape, dtype=policy.action_dtype),
            heads=torch.zeros(batch, steps, policy.num_parameters + 1),
            reset=torch.zeros(batch, steps, dtype=torch.bool),
            rewards=np.zeros((batch, steps), dtype=np.float32),
            terminated=np.zeros((batch, steps), dtype=bool),
            truncated=np.zeros((batch, steps), dtype=bool),
            valid=np.ones((batch, steps), dtype=bool),
            bootstrap=np.zeros((batch, steps), dtype=np.float32),
            chunk=chunk or steps,
            states=[],
            episode_rewards=[],
        )
        # Where it stands:
        self._state: State = agent.core.initial_state(batch)
        self._observation = self._rollout.observations[:, 0]  # (B, ...) to act on
        self._first = np.ones(batch, dtype=bool)  # the coming step is an episode's first
        self._starting = np.zeros(batch, dtype=bool)  # the coming step only starts an episode
        self._episode_reward = np.zeros(batch)

    def start(self, seed: int) -> None:
        """Begin new episodes in all environments."""
        try:
            observation, _ = self.env.reset(seed=seed)
        except Exception as error:
            raise EnvironmentFailure(f"the environment raised {error!r} at reset") from error
        self._observation = self._tensor(observation)
        self._first = np.ones_like(self._first)
        self._starting = np.zeros_like(self._starting)
        self._episode_reward[:] = 0.0

    @torch.no_grad()
    def collect(self, generator: torch.Generator) -> Rollout:
        """Act for `steps` steps; the actions' randomness comes from `generator`."""
        agent, policy, rollout = self.agent, self.agent.policy, self._rollout
        rollout.states, rollout.episode_rewards = [], []
        rollout.bootstrap[:] = 0.0
        reset_flags = rollout.reset.numpy()
        noise = policy.noise(self.env.num_envs, self.steps, generator=generator)
        for t in range(self.steps):
            if t % rollout.chunk == 0:
                rollout.states.append(clone(self._state))
            reset = torch.from_numpy(self._first) if self._first.any() else None
            heads, self._state = agent.step(self._observation, self._state, reset)
            action = policy.sample(heads[:, :-1], noise[:, t])
            rollout.observations[:, t] = self._observation
            rollout.heads[:, t] = heads
            rollout.actions[:, t] = action
            reset_flags[:, t] = self._first
            rollout.valid[:, t] = ~self._starting

            observation, reward, terminated, truncated, infos = self._step(policy.to_env(action))
            ended = terminated | truncated
            rollout.rewards[:, t] = reward
            rollout.terminated[:, t] = terminated
            rollout.truncated[:, t] = truncated
            self._episode_reward += reward
            self._observation = self._tensor(observation)
            if self._same_step:
                self._first = ended
                self._bootstrap_from(t, truncated, infos.get("final_obs"))
            else:
                self._first, self._starting = self._starting, ended
            if ended.any():
                rollout.episode_rewards += self._episode_reward[ended].tolist()
                self._episode_reward[ended] = 0.0

        if not self._same_step:
            # The step after a truncation acted on the episode's last observation and valued it.
            inside = rollout.truncated[:, :-1]
            np.copyto(rollout.bootstrap[:, :-1], rollout.values[:, 1:], where=inside)
            ended = terminated
        self._bootstrap_from(self.steps - 1, ~ended, self._observation)
        return rollout

    def _step(self, action: npt.NDArray[Any]) -> tuple[Any, Any, Flags, Flags, dict[str, Any]]:
        try:
            observation, reward, terminated, truncated, infos = self.env.step(action)
        except Exception as error:
            raise EnvironmentFailure(f"the environment raised {error!r}") from error
        # A sum is the cheapest way to meet every number once.
        if not math.isfinite(reward.sum()):
            raise EnvironmentFailure(f"the environment returned a reward of {_worst(reward)}")
        if observation.dtype.kind == "f" and not math.isfinite(observation.sum()):
            raise EnvironmentFailure(
                f"the environment returned an observation with {_worst(observation)}"
            )
        return observation, reward, terminated, truncated, infos

    def _bootstrap_from(self, t: int, where: Flags, observations: Any) -> None:
        """The value after step t of those environments, without a trace in the state."""
        if not where.any():
            return
        (chosen,) = where.nonzero()
        if isinstance(observations, np.ndarray):  # of objects, if Gymnasium collected them
            observations = self._tensor(np.stack([observations[i] for i in chosen]))
        else:
            observations = observations[chosen]
        index = torch.from_numpy(chosen)
        rollout_values = self.agent.peek(observations, self._state, index)
        self._rollout.bootstrap[chosen, t] = rollout_values.numpy()

    def _tensor(self, observation: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(observation).to(self._rollout.observations.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, if the environment can tell; else nothing: `start` begins anew."""
        if not hasattr(self.env, "state_dict"):
            return {}
        return {
            "env": self.env.state_dict(),
            "state": [tuple(layer) for layer in self._state],
            "observation": self._observation,
            "first": self._first,
            "starting": self._starting,
            "episode_reward": self._episode_reward,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if len(saved["first"]) != self.env.num_envs:
            raise CheckpointError(
                f"the checkpoint is of {len(saved['first'])} environments, not {self.env.num_envs}"
            )
        self.env.load_state_dict(saved["env"])
        self._state = tuple(
            rebuilt(layer, values)
            for layer, values in zip(self._state, saved["state"], strict=True)
        )
        self._observation = saved["observation"]
        self._first = saved["first"]
        self._starting = saved["starting"]
        self._episode_reward[:] = saved["episode_reward"]


def _starts_in_same_step(env: Any) -> bool:
    modes = need("gymnasium.vector", extra="rl").AutoresetMode
    mode = env.metadata.get("autoreset_mode")
    if mode not in (modes.SAME_STEP, modes.NEXT_STEP):
        raise UnsupportedSpace(
            "the vector environment must start new episodes by itself "
            f"(autoreset_mode SAME_STEP or NEXT_STEP), this one has {mode}"
        )
    return bool(mode is modes.SAME_STEP)


def _tensor_dtype(dtype: npt.DTypeLike) -> torch.dtype:
    found = torch.from_numpy(np.zeros(0, dtype=dtype)).dtype
    return torch.float32 if found.is_floating_point else found


def _worst(array: npt.NDArray[Any]) -> str:
    bad = array[~np.isfinite(array)]
    return f"{bad.flat[0]}" if len(bad) else "numbers too large to add up"
