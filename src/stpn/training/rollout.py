"""Acting: an agent makes a rollout of T steps in B environments, ready to learn from."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stpn.nn.state import rebuilt
from stpn.training.agent import Agent, State, clone
from stpn.training.environments import EnvironmentFailure, Environments, Flags
from stpn.training.privileged import Privileged

Numbers = npt.NDArray[np.float32]


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
    bootstrap: Numbers
    """(B, T) value of the state after a step at which the rollout is cut but the episode has not
    terminated; 0 elsewhere."""
    chunk: int  # steps between two kept states
    states: list[State]  # of the core at steps 0, chunk, 2 * chunk, ..., before a reset there
    episode_rewards: list[float]  # sum of rewards of each episode that ended
    outputs: Tensor | None  # (B, T, H) of the core, where something reads them beside the heads
    known: Tensor | None  # (B, T, K) what the environment knew

    @property
    def ended(self) -> Flags:  # (B, T)
        return self.terminated | self.truncated

    @property
    def values(self) -> Numbers:  # (B, T)
        return self.heads[..., -1].cpu().numpy()

    @property
    def device(self) -> torch.device:
        """Where its tensors are; arrays are NumPy's, as acting made them."""
        return self.heads.device

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """An array where the tensors are."""
        return torch.from_numpy(array).to(self.device)

    def to(self, device: torch.device) -> Rollout:
        """The same with its tensors on `device`, to learn there; itself if they are."""
        if device == self.device:
            return self
        tensors: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        states = [
            tuple(rebuilt(layer, (value.to(device) for value in layer)) for layer in state)
            for state in self.states
        ]
        return dataclasses.replace(self, **tensors, states=states)


class Actor:
    """Acts in vector environments and remembers where it stands between rollouts.

    `chunk`: steps between two states that are kept, to learn from shorter sequences than a rollout.
    """

    def __init__(
        self,
        agent: Agent,
        env: Any,
        steps: int,
        chunk: int | None = None,
        privileged: Privileged | None = None,
    ) -> None:
        self.agent = agent
        self.privileged = privileged
        self.envs = Environments(env)
        self.steps = steps
        self.environment_seconds = 0.0
        batch, policy = self.envs.count, agent.policy
        shape, dtype = self.envs.observation_shape, self.envs.observation_dtype
        hidden = agent.core.hidden_size
        self._output = None if privileged is None else torch.zeros(batch, hidden)
        self._rollout = Rollout(
            observations=torch.zeros(batch, steps, *shape, dtype=dtype),
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
            outputs=None if privileged is None else torch.zeros(batch, steps, hidden),
            known=None if privileged is None else torch.zeros(batch, steps, privileged.columns),
        )
        self._state: State = agent.core.initial_state(batch)
        self._episode_reward = np.zeros(batch)

    def start(self, seed: int) -> None:
        """Begin new episodes in all environments."""
        self.envs.start(seed)
        self._episode_reward[:] = 0.0

    @torch.no_grad()
    def collect(self, generator: torch.Generator) -> Rollout:
        """Act for `steps` steps; the actions' randomness comes from `generator`."""
        policy, envs, rollout = self.agent.policy, self.envs, self._rollout
        rollout.states, rollout.episode_rewards = [], []
        rollout.bootstrap[:] = 0.0
        rollout.reset.zero_()
        rollout.valid[:] = True
        # Through NumPy, because an assignment to a piece of a tensor costs ten times as much.
        observations, actions = rollout.observations.numpy(), rollout.actions.numpy()
        outputs, resets = rollout.heads.numpy(), rollout.reset.numpy()
        observation = envs.observation.numpy()  # (B, ...) changes with each step
        noise = policy.noise(envs.count, self.steps, generator=generator)
        act = self.agent.acting(envs.observation, self._state, self._output)
        for t in range(self.steps):
            if t % rollout.chunk == 0:
                rollout.states.append(clone(self._state))
            reset = None
            if envs.any_first:
                resets[:, t] = envs.first
                reset = torch.from_numpy(envs.first)
            if not envs.same_step:
                rollout.valid[:, t] = ~envs.starting
            heads = act(reset).numpy()
            action = policy.sample(heads[:, :-1], noise[:, t])
            observations[:, t] = observation
            outputs[:, t] = heads
            actions[:, t] = action
            if self.privileged is not None:
                self._remember(t)

            before = time.perf_counter()
            reward, terminated, truncated, infos = envs.step(policy.to_env(action))
            self.environment_seconds += time.perf_counter() - before
            rollout.rewards[:, t] = reward
            rollout.terminated[:, t] = terminated
            rollout.truncated[:, t] = truncated
            self._episode_reward += reward
            ended = terminated | truncated
            if ended.any():
                rollout.episode_rewards += self._episode_reward[ended].tolist()
                self._episode_reward[ended] = 0.0
                if envs.same_step and truncated.any():
                    self._value_of_final(t, truncated, infos)

        if self.privileged is not None and self.privileged.critic is not None:
            assert rollout.outputs is not None
            assert rollout.known is not None
            rollout.heads[..., -1] = self.privileged.value(rollout.outputs, rollout.known)
        goes_on = ~ended
        if not envs.same_step:
            # The step after a truncation acted on the episode's last observation and valued it.
            inside = rollout.truncated[:, :-1]
            np.copyto(rollout.bootstrap[:, :-1], rollout.values[:, 1:], where=inside)
            goes_on |= truncated
        if goes_on.any():
            (chosen,) = goes_on.nonzero()
            self._value_after(self.steps - 1, chosen, envs.observation[chosen], self._known())
        return rollout

    def _remember(self, t: int) -> None:
        """Keep what the privileged critic reads."""
        outputs, known = self._rollout.outputs, self._rollout.known
        output, now = self._output, self._known()
        assert outputs is not None
        assert known is not None
        assert output is not None
        assert now is not None
        outputs.numpy()[:, t] = output.numpy()
        known.numpy()[:, t] = now.numpy()

    def _value_of_final(self, t: int, truncated: Flags, infos: dict[str, Any]) -> None:
        (chosen,) = truncated.nonzero()
        # One array per environment, or an array of objects: each environment's row serves both.
        observation = np.stack([infos["final_obs"][index] for index in chosen])
        self._value_after(t, chosen, self.envs.tensor(observation), self._known(infos))

    def _known(self, infos: dict[str, Any] | None = None) -> Tensor | None:
        """What the environments know (B, K): now, or of the step that `infos` came with, at the
        end of its episodes."""
        if self.privileged is None:
            return None
        if infos is None:
            knowledge = self.envs.env.privileged()
        elif "final_privileged" in infos:
            knowledge = infos["final_privileged"]
        else:
            raise EnvironmentFailure(
                "the environment broke an episode off without infos['final_privileged'], which a "
                "privileged critic needs"
            )
        return torch.from_numpy(self.privileged.table(knowledge))

    def _value_after(
        self, t: int, chosen: npt.NDArray[np.int64], observation: Tensor, known: Tensor | None
    ) -> None:
        index = torch.from_numpy(chosen)
        y = self.agent.peek(observation, self._state, index)
        if self.privileged is not None and self.privileged.critic is not None:
            assert known is not None
            value = self.privileged.value(y, known[index])
        else:
            _, value = self.agent.read(y)
        self._rollout.bootstrap[chosen, t] = value.numpy()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, if the environments can tell; else empty: `start` begins anew."""
        envs = self.envs.state_dict()
        if envs is None:
            return {}
        return {
            "worlds": envs,  # the name that older checkpoints have
            "state": [tuple(layer) for layer in self._state],
            "episode_reward": self._episode_reward,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.envs.load_state_dict(saved["worlds"])
        self._state = tuple(
            rebuilt(layer, values)
            for layer, values in zip(self._state, saved["state"], strict=True)
        )
        self._episode_reward[:] = saved["episode_reward"]
