"""Vector environments in one form, whatever the way they start their episodes.

Gymnasium knows two:

- SAME_STEP: the step that ends an episode returns the first observation of the next; the last one
  of the old is in `infos["final_obs"]`.
- NEXT_STEP: it returns the last observation of the old episode, and one more step, whose action is
  ignored, starts the next. That step is no experience.

`Environments` hides the difference behind two flags, `first` and `starting`, and turns whatever an
environment does wrong into one sentence.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stpn._extras import need
from stpn.errors import CheckpointError, ConfigError, StpnError
from stpn.training.policies import UnsupportedSpace

Flags = npt.NDArray[np.bool_]


class EnvironmentFailure(StpnError, RuntimeError):
    """An environment that raised or returned what is not a number."""


class Environments:
    """B environments and where they stand."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.count: int = env.num_envs
        self.same_step = _starts_in_same_step(env)
        space = env.single_observation_space
        self.observation_shape: tuple[int, ...] = space.shape
        self.observation_dtype = _tensor_dtype(space.dtype)
        self.observation = torch.zeros(self.count, *space.shape, dtype=self.observation_dtype)
        """(B, ...) what to act on; always the same tensor."""
        self._observation = self.observation.numpy()
        self.first: Flags = np.ones(self.count, dtype=bool)
        """(B,) the observation is an episode's first."""
        self.any_first = True
        self.starting: Flags = np.zeros(self.count, dtype=bool)
        """(B,) the coming step only starts an episode (NEXT_STEP)."""

    def start(self, seed: int) -> None:
        """Begin new episodes everywhere."""
        try:
            observation, _ = self.env.reset(seed=seed)
        except Exception as error:
            raise EnvironmentFailure(_raised(error, " at reset")) from error
        self._observation[...] = _checked(observation)
        self.first = np.ones(self.count, dtype=bool)
        self.any_first = True
        self.starting = np.zeros(self.count, dtype=bool)

    def step(
        self, action: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], Flags, Flags, dict[str, Any]]:
        """rewards, terminated, truncated, infos; the new observation is in `observation`."""
        try:
            observation, reward, terminated, truncated, infos = self.env.step(action)
        except Exception as error:
            raise EnvironmentFailure(_raised(error)) from error
        if not _finite(reward):
            raise EnvironmentFailure(f"the environment returned a reward of {_worst(reward)}")
        self._observation[...] = _checked(observation)
        ended = terminated | truncated
        if self.same_step:
            self.first = ended
        else:
            self.first, self.starting = self.starting, ended
        self.any_first = bool(self.first.any())
        return reward, terminated, truncated, infos

    def tensor(self, observation: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(observation)
        wanted = self.observation_dtype
        return tensor if tensor.dtype is wanted else tensor.to(wanted)

    def state_dict(self) -> dict[str, Any] | None:
        """Where they stand, or None if the environment cannot tell."""
        if not hasattr(self.env, "state_dict"):
            return None
        return {
            "env": self.env.state_dict(),
            "observation": self.observation,
            "first": self.first,
            "starting": self.starting,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        if len(saved["first"]) != self.count:
            raise CheckpointError(
                f"the checkpoint is of {len(saved['first'])} environments, not {self.count}"
            )
        self.env.load_state_dict(saved["env"])
        self.observation.copy_(saved["observation"])
        self.first, self.starting = saved["first"], saved["starting"]
        self.any_first = bool(self.first.any())

    def close(self) -> None:
        self.env.close()


def single(name: str, **options: Any) -> Any:
    """One registered Gymnasium environment whose observations an encoder takes.

    Those in parts (Tuple, Dict, MultiDiscrete, MultiBinary) become one vector, symbols one-hot.
    """
    gym = need("gymnasium", extra="rl")
    env = gym.make(_registered(name), disable_env_checker=True, **options)
    spaces = gym.spaces
    parts = (spaces.Tuple, spaces.Dict, spaces.MultiDiscrete, spaces.MultiBinary)
    if isinstance(env.observation_space, parts) and env.observation_space.is_np_flattenable:
        return gym.wrappers.FlattenObservation(env)
    return env


def make(name: str, count: int, **options: Any) -> Any:
    """`count` copies of a registered Gymnasium environment, one after another in this process.

    "module:Name" imports the module first, also one in the current directory: names that were read
    from a file must have passed `stpn.config.trusted`.
    """
    gym = need("gymnasium", extra="rl")
    name = _registered(name)
    try:
        if name in gym.registry and gym.registry[name].vector_entry_point is not None:
            return gym.make_vec(name, num_envs=count, **options)
        return gym.vector.SyncVectorEnv(
            [lambda: single(name, **options)] * count,
            copy=False,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
    except gym.error.DependencyNotInstalled as error:
        raise EnvironmentFailure(f"{name} needs a package that is missing: {error}") from error
    except gym.error.Error as error:  # unknown name, namespace or version; the message says which
        raise ConfigError(f"unknown environment {name!r}: {error}") from error
    except Exception as error:
        raise EnvironmentFailure(f"{name} cannot be made: {error!r}{_place(error)}") from error


def _registered(name: str) -> str:
    """The name without its module, which is imported, as is what registers a known namespace."""
    if name.startswith("stpn/"):
        need("stpn.tasks.maze", extra="rl")
    if name.startswith("ALE/"):
        need("ale_py", extra="rl")
    module, _, name = name.rpartition(":")
    if module:
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # at the end: it hides nothing that is installed
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"cannot import {module!r}, neither installed nor in this directory: {error}"
            ) from error
        except Exception as error:
            raise EnvironmentFailure(
                f"importing {module!r} raised {error!r}{_place(error)}"
            ) from error
    return name


def _raised(error: Exception, when: str = "") -> str:
    return f"the environment raised {error!r}{when}{_place(error)}"


def _place(error: BaseException) -> str:
    """File and line of an error: the innermost that belongs to no library here, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    found = own or frames
    return f" ({found[-1].filename}, line {found[-1].lineno})" if found else ""


def _is_library(file: str) -> bool:
    package = Path(__file__).parents[1]
    parts = Path(file).parts
    return package in Path(file).parents or "site-packages" in parts or file.startswith("<")


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


def _checked(observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if observation.dtype.kind == "f" and not _finite(observation):
        worst = _worst(observation)
        raise EnvironmentFailure(f"the environment returned an observation with {worst}")
    return observation


def _finite(array: npt.NDArray[Any]) -> bool:
    """A sum is the cheapest way to meet every number once."""
    return math.isfinite(np.add.reduce(array, axis=None))


def _worst(array: npt.NDArray[Any]) -> str:
    bad = array[~np.isfinite(array)]
    return f"{bad.flat[0]}" if len(bad) else "numbers too large to add up"
