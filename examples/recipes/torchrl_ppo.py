"""An STPN in TorchRL: a module that follows its conventions `is_init` and recurrent mode.

    pip install '.[recipes]'
    python examples/recipes/torchrl_ppo.py --steps 100000

`STPNModule` is to a core what TorchRL's `LSTMModule` is to an LSTM. While acting it reads the state
from the tensordict and writes the next one; in recurrent mode it reads whole sequences from the
state of their first step. Where `is_init` is true the state is zero.

The values of the next observations come from single steps out of the stored states. TorchRL's `GAE`
would read ("next", "observation") as one sequence: there the first observation of each new episode
is missing, and no `is_init` marks its place.
"""

from __future__ import annotations

import argparse

import recall  # noqa: F401  (registers Recall-v0)
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import Unbounded
from torchrl.envs import (
    EnvBase,
    GymEnv,
    InitTracker,
    RewardSum,
    SerialEnv,
    TensorDictPrimer,
    TransformedEnv,
)
from torchrl.modules import (
    ActorValueOperator,
    ProbabilisticActor,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

import stpn


class STPNModule(TensorDictModuleBase):
    """A core, batch first, from `in_key` to `out_key`; its state in `NAME_h_l0`, `NAME_f_l0`, ...

    An environment with this module needs the transforms `InitTracker()` and, for the state,
    `make_tensordict_primer()`.
    """

    def __init__(
        self,
        core: stpn.nn.RecurrentCore,
        in_key: str = "observation",
        out_key: str = "embed",
        name: str = "stpn",
    ) -> None:
        super().__init__()
        self.core = core
        fields = core.state_type._fields
        self.state_keys = [
            f"{name}_{field}{layer.suffix}" for layer in core.layers for field in fields
        ]
        self.in_keys = [in_key, *self.state_keys, "is_init"]
        self.out_keys = [out_key, *(("next", key) for key in self.state_keys)]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        values = (value for layer in self.core.initial_state(1) for value in layer)
        shapes = (value.shape[1:] for value in values)
        specs = {key: Unbounded(shape) for key, shape in zip(self.state_keys, shapes, strict=True)}
        return TensorDictPrimer(specs, expand_specs=True)

    def forward(self, data: TensorDictBase) -> TensorDictBase:
        x, reset = data[self.in_keys[0]], data["is_init"].squeeze(-1)  # (..., T, I), (..., T)
        if not recurrent_mode():
            y, state = self._single_steps(data, x, reset)
            for key, value in zip(self.state_keys, state, strict=True):
                data["next", key] = value
            data[self.out_keys[0]] = y
            return data
        # The next states stay those that were stored while acting.
        first = data[..., 0]
        rows = x.flatten(0, -3) if x.dim() > 2 else x.unsqueeze(0)  # (B, T, I)
        state = self._state(first, len(rows))
        y, _ = self.core(rows, state, reset.reshape(rows.shape[:2]))
        data[self.out_keys[0]] = y.reshape(*x.shape[:-1], -1)
        return data

    def _single_steps(
        self, data: TensorDictBase, x: torch.Tensor, reset: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Each entry of the tensordict by itself, whatever its batch is."""
        batch = x.shape[:-1]
        rows = x.reshape(-1, x.shape[-1])
        y, state = self.core.step(rows, self._state(data, len(rows)), reset.reshape(-1))
        flat = [value.reshape(*batch, *value.shape[1:]) for layer in state for value in layer]
        return y.reshape(*batch, -1), flat

    def _state(self, data: TensorDictBase, rows: int) -> tuple[stpn.STPNState, ...]:
        values = iter(data[key] for key in self.state_keys)
        return tuple(
            type(layer)(*(next(values).reshape(rows, *zero.shape[1:]) for zero in layer))
            for layer in self.core.initial_state(1)
        )


def make_env(env: str, module: STPNModule, count: int) -> EnvBase:
    made = SerialEnv(count, lambda: GymEnv(env, categorical_action_encoding=True))
    made = TransformedEnv(made, InitTracker())
    made.append_transform(module.make_tensordict_primer())
    return made.append_transform(RewardSum())


def make_actor_critic(
    env: str, model: str, hidden_size: int
) -> tuple[ActorValueOperator, STPNModule]:
    spaces = GymEnv(env, categorical_action_encoding=True)
    core = stpn.build(
        model, spaces.observation_spec["observation"].shape[-1], hidden_size, batch_first=True
    )
    module = STPNModule(core)
    head = TensorDictModule(
        nn.Linear(hidden_size, spaces.action_spec.n), in_keys=["embed"], out_keys=["logits"]
    )
    actor = ProbabilisticActor(
        head, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    )
    critic = ValueOperator(nn.Linear(hidden_size, 1), in_keys=["embed"])
    return ActorValueOperator(module, actor, critic), module


@torch.no_grad()
def add_advantages(
    data: TensorDict, critic: TensorDictModuleBase, gamma: float, lmbda: float
) -> None:
    """From the values of the observations, and of the next ones: (B, T, 1) each."""
    with set_recurrent_mode(True):
        critic(data)
    following = data["next"].select(*critic.in_keys)
    with set_recurrent_mode(False):  # states are those of each entry, not of the first alone
        following = critic(following)["state_value"]
    after = data["next"]
    data["advantage"], data["value_target"] = generalized_advantage_estimate(
        gamma,
        lmbda,
        data["state_value"],
        following,
        after["reward"],
        after["done"],
        after["terminated"],
    )


def train(
    env: str = "Recall-v0",
    model: str = "stpnr",
    steps: int = 100_000,
    *,
    hidden_size: int = 32,
    envs: int = 8,
    length: int = 64,
    seed: int = 0,
) -> float:
    """Train; the mean reward of a step in the last batch."""
    torch.manual_seed(seed)
    both, module = make_actor_critic(env, model, hidden_size)
    actor, critic = both.get_policy_operator(), both.get_value_operator()
    loss = ClipPPOLoss(
        actor, critic, entropy_coeff=0.01, critic_coeff=0.5, normalize_advantage=True
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=2e-3)
    batch = envs * length
    total = max(steps // batch, 1) * batch
    played = Collector(
        make_env(env, module, envs), actor, frames_per_batch=batch, total_frames=total
    )
    done = 0
    for data in played:  # (B, T)
        add_advantages(data, critic, gamma=0.5, lmbda=0.95)
        for _ in range(4):
            for rows in torch.randperm(envs).chunk(2):  # whole sequences
                with set_recurrent_mode(True):
                    terms = loss(data[rows])
                total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        done += data.numel()
        reward = data["next", "reward"].mean().item()
        if (done // batch) % 20 == 0:
            print(f"step {done}: reward {reward:.3f}")
    played.shutdown()
    return reward


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="Recall-v0")
    parser.add_argument("--model", default="stpnr", help="a core with a state: stpnr, lstm, ...")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    print(f"reward {train(options.env, options.model, options.steps):.3f}")
