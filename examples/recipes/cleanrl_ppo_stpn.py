"""PPO with an STPN in one file, in the manner of CleanRL.

    pip install '.[recipes]'
    python examples/recipes/cleanrl_ppo_stpn.py --total-timesteps 100000

Three places keep the state right: `core.step(..., reset=done)` while acting, the state at the start
of the rollout that is kept for learning, and `core(..., reset=dones)`, which replays the whole
rollout in one call. The environments start anew in the step that ends an episode
(`AutoresetMode.SAME_STEP`): so `done` comes with the first observation of the new episode. With
Gymnasium's default it would come with the last one of the old episode, which the new one would
then remember.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import recall  # noqa: F401  (registers Recall-v0)
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

import stpn


@dataclass
class Args:
    env_id: str = "Recall-v0"
    """with a flat observation and discrete actions"""
    model: str = "stpnr"
    """core: stpnr, stpnf, lstm, ..."""
    hidden_size: int = 32
    seed: int = 0
    total_timesteps: int = 100_000
    learning_rate: float = 2e-3
    num_envs: int = 8
    num_steps: int = 64
    """of each environment in a rollout"""
    num_minibatches: int = 2
    """of whole environments, so that sequences stay whole"""
    update_epochs: int = 4
    gamma: float = 0.5
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    def __init__(self, envs: gym.vector.VectorEnv, model: str, hidden_size: int) -> None:
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        self.core = stpn.build(model, size, hidden_size)  # time first: (T, B, I)
        self.actor = nn.Linear(hidden_size, envs.single_action_space.n)
        self.critic = nn.Linear(hidden_size, 1)

    def act(self, x: Tensor, state: Any, done: Tensor) -> tuple[Categorical, Tensor, Any]:
        """One step: x (B, I), done (B,) where an episode begins with this x."""
        y, state = self.core.step(x, state, reset=done)
        return Categorical(logits=self.actor(y)), self.critic(y).squeeze(-1), state

    def replay(self, x: Tensor, state: Any, dones: Tensor) -> tuple[Categorical, Tensor]:
        """A rollout: x (T, B, I), dones (T, B), from the state before its first step."""
        y, _ = self.core(x, state, reset=dones)
        return Categorical(logits=self.actor(y)), self.critic(y).squeeze(-1)


@dataclass
class Rollout:
    state: Any
    """Of the core, before the first step."""
    obs: Tensor  # (T, B, I)
    dones: Tensor  # (T, B), bool: obs is the first of an episode
    actions: Tensor  # (T, B)
    logprobs: Tensor  # (T, B)
    values: Tensor  # (T, B)
    rewards: Tensor  # (T, B)


class Player:
    """The environments, where they are, and what the agent remembers of them."""

    def __init__(self, envs: gym.vector.VectorEnv, agent: Agent, seed: int) -> None:
        self.envs, self.agent = envs, agent
        self.obs = torch.as_tensor(envs.reset(seed=seed)[0])
        self.done = torch.ones(envs.num_envs, dtype=torch.bool)
        self.state = agent.core.initial_state(envs.num_envs)

    @torch.no_grad()
    def rollout(self, steps: int) -> tuple[Rollout, Tensor]:
        """A rollout, and the value (B,) of where it ends."""
        start, rows = self.state, []
        for _ in range(steps):
            policy, value, self.state = self.agent.act(self.obs, self.state, self.done)
            action = policy.sample()
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            logprob, reward = policy.log_prob(action), torch.as_tensor(reward).float()
            rows.append((self.obs, self.done, action, logprob, value, reward))
            self.obs = torch.as_tensor(obs)
            self.done = torch.as_tensor(terminated | truncated)
        # a look ahead: the state stays where it is
        _, ahead, _ = self.agent.act(self.obs, self.state, self.done)
        return Rollout(start, *map(torch.stack, zip(*rows, strict=True))), ahead


def advantages(rollout: Rollout, ahead: Tensor, done: Tensor, args: Args) -> Tensor:
    """(T, B), generalised advantage estimation; an episode that is cut off counts as ended."""
    result, last = torch.zeros_like(rollout.rewards), torch.zeros_like(ahead)
    values, goes_on = (*rollout.values, ahead), (~torch.cat([rollout.dones, done[None]])).float()
    for t in reversed(range(len(result))):
        target = rollout.rewards[t] + args.gamma * values[t + 1] * goes_on[t + 1]
        last = target - values[t] + args.gamma * args.gae_lambda * goes_on[t + 1] * last
        result[t] = last
    return result


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, gains: Tensor, args: Args
) -> None:
    returns = gains + rollout.values
    for _ in range(args.update_epochs):
        for envs in torch.randperm(args.num_envs).chunk(args.num_minibatches):
            state = tuple(type(layer)(*(v[envs] for v in layer)) for layer in rollout.state)
            policy, values = agent.replay(rollout.obs[:, envs], state, rollout.dones[:, envs])
            ratio = (policy.log_prob(rollout.actions[:, envs]) - rollout.logprobs[:, envs]).exp()
            gain = gains[:, envs]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            loss = (
                -torch.min(gain * ratio, gain * clipped).mean()
                - args.ent_coef * policy.entropy().mean()
                + args.vf_coef * 0.5 * (values - returns[:, envs]).square().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def make(args: Args) -> tuple[Player, Agent]:
    torch.manual_seed(args.seed)
    envs = gym.make_vec(
        args.env_id,
        args.num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
    )
    agent = Agent(envs, args.model, args.hidden_size)
    return Player(envs, agent, args.seed), agent


def main(args: Args) -> float:
    """Train; the mean reward of a step in the last rollout."""
    player, agent = make(args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    iterations = max(1, args.total_timesteps // (args.num_envs * args.num_steps))
    for iteration in range(1, iterations + 1):
        rollout, ahead = player.rollout(args.num_steps)
        update(agent, optimizer, rollout, advantages(rollout, ahead, player.done, args), args)
        reward = rollout.rewards.mean().item()
        if iteration % max(1, iterations // 10) == 0:
            print(f"step {iteration * args.num_envs * args.num_steps}: reward {reward:.3f}")
    return reward


if __name__ == "__main__":
    main(tyro.cli(Args))
