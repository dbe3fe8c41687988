"""MuJoCo's Inverted Pendulum: push a cart so that the pole on it stays up, 1000 steps at most.

Everything is seen (position and angle, and how fast each changes), so no memory is needed: the task
tests whether short-term plasticity disturbs or helps where it has nothing to remember.
"""

from __future__ import annotations

from typing import Any

from stpn._extras import need

NAME = "InvertedPendulum-v5"
LONGEST_EPISODE = 1000


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
