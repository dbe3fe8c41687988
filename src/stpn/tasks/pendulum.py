"""MuJoCo's Inverted Pendulum: push a cart so that the pole on it stays up, 1000 steps at most.

Everything is seen (position and angle, and how fast each changes), so no memory is needed: the task
tests whether short-term plasticity disturbs or helps where it has nothing to remember.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stpn._extras import need
from stpn.tasks.agents import AgentTask
from stpn.training.rl_config import AgentConfig

if TYPE_CHECKING:
    from stpn.scenes import Scene
    from stpn.training.agent import Encoder
    from stpn.training.policies import Policy

NAME = "InvertedPendulum-v5"
LONGEST_EPISODE = 1000
OBSERVATION_SIZE = 4
STRONGEST_PUSH = 3.0


def vector_env(num_envs: int = 1) -> Any:
    """A `gymnasium.vector.VectorEnv` of `num_envs` pendulums, one after another in this process.

    MuJoCo's state is not saved: a resumed run starts new episodes.
    """
    gym = need("gymnasium", extra="rl")
    need("mujoco", extra="rl")
    return gym.vector.SyncVectorEnv(
        [lambda: gym.make(NAME, disable_env_checker=True)] * num_envs,
        copy=False,
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )


@dataclass(frozen=True, kw_only=True)
class PendulumConfig(AgentConfig):
    """MuJoCo's Inverted Pendulum: balance for 1000 steps."""

    preset: Literal["tuned", "fast", "paper"] = "fast"
    """Whose defaults. paper: the paper's; fast: relative_value, without which the value's error,
    hundreds of times larger than the policy's loss, dominates the gradient of the shared layer;
    tuned: also a learning rate that falls to 0 at the end, without which agents that balance
    lapse."""
    steps: int = 1_000_000
    """Steps of the environment."""

    total_field: typing.ClassVar[str] = "steps"


class Pendulum(AgentTask):
    packages = ("gymnasium", "mujoco")

    def make_env(self, config: PendulumConfig, count: int) -> Any:
        return vector_env(count)

    def interface(self, config: PendulumConfig, env: Any = None) -> tuple[Encoder, Policy]:
        from stpn.training.agent import Vector
        from stpn.training.policies import Gaussian

        high = np.full(1, STRONGEST_PUSH, dtype=np.float32)
        encoder = Vector(
            (OBSERVATION_SIZE,),
            normalize=config.normalize_observations,
            length=config.feature_length,
        )
        return encoder, Gaussian(-high, high)

    def scene(self, config: PendulumConfig) -> Scene:
        from stpn.scenes import RenderedScene

        hint = (
            "; MuJoCo draws without a screen through EGL (apt-get install libegl1 "
            "libgl1-mesa-dri, MUJOCO_GL=egl) or OSMesa (libosmesa6, MUJOCO_GL=osmesa)"
        )
        return RenderedScene(NAME, hint=hint)

    def rllib_env(self, config: PendulumConfig) -> str:
        return NAME


TASKS = (
    Pendulum(
        name="pendulum",
        title="MuJoCo Inverted Pendulum",
        metric="reward",
        config=PendulumConfig,
        settings={
            "algo": "ppo",
            "num_envs": 1,
            "num_steps": 2048,
            "lr": 3e-4,
            "lr_decay": 4_000_000,
            "vf_coef": 1.0,
            "relative_value": True,
            "eval_every": 20_000,
        },
        model_settings={"stpnf": {"norm": "none", "clamp": 0.1}},
        presets={
            "paper": {"relative_value": False},
            "fast": {},
            "tuned": {"lr_decay": None, "lr_final": 0.0},
        },
        default_preset="tuned",
    ),
)
