"""The maze as Gymnasium environments: one agent, or many at once."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from stpn._extras import need
from stpn.tasks.maze import OBSERVATION_SIZE
from stpn.tasks.maze.grid import ACTIONS, CELLS, SIZE, Plan, plan

need("gymnasium", extra="rl")

import gymnasium as gym  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402
from gymnasium.vector.utils import batch_space  # noqa: E402

EPISODE_STEPS = 200
REWARD = 10.0

_BIAS, _CLOCK, _REWARD, _ACTION = 10, 11, 12, 13

Observation = npt.NDArray[np.float32]


@functools.cache
def _observations(size: int) -> Observation:
    """What is seen in each cell after each action, but for clock and reward: (cells * 4, 17)."""
    table = np.zeros((size * size, len(ACTIONS), OBSERVATION_SIZE), dtype=np.float32)
    table[..., :9] = plan(size).view[:, np.newaxis]
    table[..., _BIAS] = 1.0
    table[..., _ACTION:] = np.eye(len(ACTIONS), dtype=np.float32)
    return table.reshape(-1, OBSERVATION_SIZE)


def _observation_space(reward_input: float, wall_penalty: float) -> gym.Space[Observation]:
    high = np.ones(OBSERVATION_SIZE, dtype=np.float32)
    high[_REWARD] = reward_input
    low = np.zeros_like(high)
    low[_REWARD] -= wall_penalty / REWARD * reward_input
    return gym.spaces.Box(low, high)


class MazeEnv(gym.Env[Observation, np.int64]):
    """One agent in the maze. An episode *terminates* after 200 steps: the horizon is part of the
    task (the clock is seen), so there is nothing beyond it to estimate.

    `reset(options={"reward_cell": (row, column)})` chooses the reward cell. `reward_input` is what
    is seen of a reward; 10 is earned in any case. The paper's maze has 13 rows and columns
    (`size`), costs nothing to run into a wall of (`wall_penalty`, which is seen as a reward is),
    and starts at the centre (`random_start`: in any open cell other than the reward cell).
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        reward_input: float = REWARD,
        size: int = SIZE,
        wall_penalty: float = 0.0,
        random_start: bool = False,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.render_mode = render_mode
        self._reward_input = _not_negative("reward_input", reward_input)
        self._penalty = _not_negative("wall_penalty", wall_penalty)
        self._random_start = random_start
        self.plan = plan(size)
        self.observation_space = _observation_space(reward_input, wall_penalty)
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.cell = self.reward_cell = self.plan.centre
        self.path: list[int] = []  # cells since the start or the last reward
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.reward_cell = int(self.plan.random_open(self.np_random, 1)[0])
        if options and "reward_cell" in options:
            self.reward_cell = _open_cell(options["reward_cell"], self.plan)
        self.cell = self._elsewhere() if self._random_start else self.plan.centre
        self.path = [self.cell]
        self._step = 0
        return self._observe(0.0, 0), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if not self.path:
            raise RuntimeError("step() before reset()")
        if not 0 <= action < len(ACTIONS):
            raise ValueError(f"action must be 0, 1, 2 or 3 ({', '.join(ACTIONS)}), got {action}")
        self._step += 1
        there = int(self.plan.step[self.cell, action])
        reward = 0.0 - self._penalty * (there == self.cell)
        self.cell = there
        self.path.append(self.cell)
        if self.cell == self.reward_cell:
            reward += REWARD
            self.cell = self._elsewhere()
            self.path = [self.cell]
        terminated = self._step >= EPISODE_STEPS
        return self._observe(reward, int(action)), reward, terminated, False, self._info()

    def render(self) -> Any:
        from stpn.tasks.maze import render

        if self.render_mode == "ansi":
            return render.text(self.cell, self.reward_cell, self.plan)
        if self.render_mode == "rgb_array":
            return render.frame(self.cell, self.reward_cell, self.path, self.plan)
        return None

    def _elsewhere(self) -> int:
        """Any open cell but the reward cell."""
        return int(self.plan.random_open_except(self.np_random, np.array([self.reward_cell]))[0])

    def _observe(self, reward: float, action: int) -> Observation:
        observation = np.zeros(OBSERVATION_SIZE, dtype=np.float32)
        observation[:9] = self.plan.view[self.cell]
        observation[_BIAS] = 1.0
        observation[_CLOCK] = self._step / EPISODE_STEPS
        observation[_REWARD] = reward / REWARD * self._reward_input
        observation[_ACTION + action] = 1.0
        return observation

    def _info(self) -> dict[str, Any]:
        size = self.plan.size
        return {"cell": divmod(self.cell, size), "reward_cell": divmod(self.reward_cell, size)}


class MazeVectorEnv(VectorEnv[Observation, npt.NDArray[np.int64], npt.NDArray[Any]]):
    """Many agents, each in its own maze, moved by a few table look-ups per step.

    An episode that ends is followed by the first observation of the next in the same step
    (`AutoresetMode.SAME_STEP`), so a rollout of 200 steps holds exactly one episode per agent.
    One random stream serves all agents. With `copy=False` the returned arrays are buffers
    that the next call overwrites. The other settings are those of `MazeEnv`.
    """

    metadata = {  # noqa: RUF012
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        copy: bool = True,
        render_mode: str | None = None,
        reward_input: float = REWARD,
        size: int = SIZE,
        wall_penalty: float = 0.0,
        random_start: bool = False,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.num_envs = num_envs
        self.render_mode = render_mode
        self._seen_of_reward = _not_negative("reward_input", reward_input) / REWARD
        self._penalty = _not_negative("wall_penalty", wall_penalty)
        self._random_start = random_start
        self.plan = plan(size)
        self._next = self.plan.step.ravel()  # (cells * 4,)
        self._seen = _observations(size)
        self.single_observation_space = _observation_space(reward_input, wall_penalty)
        self.single_action_space = gym.spaces.Discrete(len(ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        # What agents do not see, for a critic (stpn.training.privileged).
        self.privileged_space = gym.spaces.Dict(
            cell=gym.spaces.Discrete(self.plan.cells),
            reward_cell=gym.spaces.Discrete(self.plan.cells),
            clock=gym.spaces.Box(0.0, 1.0, (1,)),
        )

        self.cell = np.full(num_envs, self.plan.centre)  # (N,)
        self.reward_cell = np.full(num_envs, self.plan.centre)  # (N,)
        self._copy = copy
        self._step = np.zeros(num_envs, dtype=np.int64)
        self._index = np.empty(num_envs, dtype=np.int64)
        self._hit = np.empty(num_envs, dtype=bool)
        self._done = np.empty(num_envs, dtype=bool)
        self._never_truncated = np.zeros(num_envs, dtype=bool)
        self._reward = np.zeros(num_envs)
        self._observation = np.zeros((num_envs, OBSERVATION_SIZE), dtype=np.float32)
        self._observation[:, _BIAS] = 1.0
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        if mask is None:
            mask = np.ones(self.num_envs, dtype=bool)
        elif mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise ValueError(
                f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        self._start_episodes(mask)
        self._started = True
        return self._return(self._observation), {}

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[
        Observation,
        npt.NDArray[np.float64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.bool_],
        dict[str, Any],
    ]:
        if not self._started:
            raise RuntimeError("step() before reset()")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions must have shape ({self.num_envs},), got {actions.shape}")
        if np.bitwise_or.reduce(actions) & ~3:  # some bit beyond those of 0 to 3, or a sign
            raise ValueError(f"actions must be 0, 1, 2 or 3 ({', '.join(ACTIONS)}), got {actions}")

        # All indices are in range; with mode="clip" NumPy writes to `out` without a detour.
        index, observation = self._index, self._observation
        np.multiply(self.cell, len(ACTIONS), out=index)
        index += actions
        before = self.cell.copy() if self._penalty else None
        self._next.take(index, out=self.cell, mode="clip")
        np.equal(self.cell, self.reward_cell, out=self._hit)
        np.multiply(self._hit, REWARD, out=self._reward)
        if before is not None:  # who stays has run into a wall
            self._reward -= self._penalty * (self.cell == before)
        (hit,) = self._hit.nonzero()
        if len(hit):
            self.cell[hit] = self.plan.random_open_except(self.np_random, self.reward_cell[hit])

        self._step += 1
        np.multiply(self.cell, len(ACTIONS), out=index)
        index += actions
        self._seen.take(index, axis=0, out=observation, mode="clip")
        np.multiply(self._step, 1 / EPISODE_STEPS, out=observation[:, _CLOCK], casting="same_kind")
        np.multiply(
            self._reward, self._seen_of_reward, out=observation[:, _REWARD], casting="same_kind"
        )

        np.greater_equal(self._step, EPISODE_STEPS, out=self._done)
        done = self._done
        infos: dict[str, Any] = {}
        if done.any():
            infos = {"final_obs": observation.copy(), "_final_obs": done.copy()}
            self._start_episodes(done)
        return (
            self._return(observation),
            self._return(self._reward),
            self._return(done),
            self._return(self._never_truncated),
            infos,
        )

    def render(self) -> tuple[Any, ...] | None:
        from stpn.tasks.maze import render

        if self.render_mode is None:
            return None
        draw = render.text if self.render_mode == "ansi" else render.frame
        return tuple(
            draw(int(cell), int(goal), plan=self.plan)
            for cell, goal in zip(self.cell, self.reward_cell, strict=True)
        )

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that the future of the environment depends on, random stream included."""
        return {
            "cell": self.cell.copy(),
            "reward_cell": self.reward_cell.copy(),
            "step": self._step.copy(),
            "observation": self._observation.copy(),
            "rng": _pack_rng(self.np_random),
        }

    def load_state_dict(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Go on exactly where `state_dict()` was taken."""
        if state["cell"].shape != (self.num_envs,):
            raise ValueError(
                f"the saved state is of {len(state['cell'])} agents, this environment has "
                f"{self.num_envs}"
            )
        if max(state["cell"].max(), state["reward_cell"].max()) >= self.plan.cells:
            raise ValueError(
                f"the saved state is of a larger maze, this one has {self.plan.cells} cells"
            )
        self.cell[:] = state["cell"]
        self.reward_cell[:] = state["reward_cell"]
        self._step[:] = state["step"]
        self._observation[:] = state["observation"]
        self.np_random = _unpack_rng(state["rng"])
        self._started = True

    def privileged(self) -> dict[str, npt.NDArray[Any]]:
        """Where the agents are, what they look for, and the clock, which they do see but a critic
        would have to read from their memory."""
        return {
            "cell": self.cell,
            "reward_cell": self.reward_cell,
            "clock": self._step / EPISODE_STEPS,
        }

    @property
    def observation(self) -> Observation:
        """What the agents see now, (N, 17)."""
        return self._observation.copy()

    def _start_episodes(self, mask: npt.NDArray[np.bool_]) -> None:
        goals = self.plan.random_open(self.np_random, int(mask.sum()))
        self.reward_cell[mask] = goals
        self.cell[mask] = (
            self.plan.random_open_except(self.np_random, goals)
            if self._random_start
            else self.plan.centre
        )
        self._step[mask] = 0
        # As after action 0, but for clock and reward, which are 0.
        self._observation[mask] = self._seen[self.cell[mask] * len(ACTIONS)]

    def _return(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.copy() if self._copy else array


def _not_negative(name: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number >= 0, got {value}")
    return value


def _open_cell(position: tuple[int, int], maze: Plan) -> int:
    row, column = position
    cell = row * maze.size + column
    if not (0 <= row < maze.size and 0 <= column < maze.size) or cell not in maze.open:
        raise ValueError(f"reward_cell must be an open cell (row, column), got {position}")
    return cell


def _pack_rng(rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """The state of a PCG64 stream as an array: two 128-bit numbers, then a half-used draw."""
    state: Any = rng.bit_generator.state
    words = [
        state["state"][name] >> shift & (2**64 - 1)
        for name in ("state", "inc")
        for shift in (64, 0)
    ]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def _unpack_rng(packed: npt.NDArray[np.uint64]) -> np.random.Generator:
    state_high, state_low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in packed)
    generator = np.random.PCG64()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(generator)


gym.register(
    id="stpn/Maze-v0",
    entry_point="stpn.tasks.maze.environment:MazeEnv",
    vector_entry_point="stpn.tasks.maze.environment:MazeVectorEnv",
)

__all__ = ["ACTIONS", "CELLS", "EPISODE_STEPS", "OBSERVATION_SIZE", "MazeEnv", "MazeVectorEnv"]
