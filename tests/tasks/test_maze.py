"""The maze against its rules, written out again cell by cell."""

from __future__ import annotations

import itertools
import time
import warnings

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

from stpn import experiments  # noqa: E402
from stpn.errors import ConfigError  # noqa: E402
from stpn.tasks import maze  # noqa: E402
from stpn.tasks.maze import MazeVectorEnv  # noqa: E402
from stpn.tasks.maze import belief as maze_belief  # noqa: E402
from stpn.tasks.maze import grid as maze_grid  # noqa: E402
from stpn.tasks.maze import reference as maze_reference  # noqa: E402
from stpn.tasks.maze import render as maze_render  # noqa: E402

UP, DOWN, LEFT, RIGHT = range(4)


def is_wall(row: int, column: int, size: int = 13) -> bool:
    """The rule of the task, without tables."""
    border = row in (0, size - 1) or column in (0, size - 1)
    pillar = row % 2 == 0 and column % 2 == 0 and (row, column) != (size // 2, size // 2)
    return border or pillar


def moved(cell: int, action: int) -> int:
    row, column = divmod(cell, 13)
    row += {UP: -1, DOWN: 1}.get(action, 0)
    column += {LEFT: -1, RIGHT: 1}.get(action, 0)
    return cell if is_wall(row, column) else row * 13 + column


def expected_observation(cell: int, step: int, reward: float, action: int) -> list[float]:
    row, column = divmod(cell, 13)
    walls = [
        float(is_wall(r, c))
        for r in (row - 1, row, row + 1)
        for c in (column - 1, column, column + 1)
    ]
    one_hot = [float(a == action) for a in range(4)]
    return [*walls, 0.0, 1.0, step / 200, reward, *one_hot]


def test_grid() -> None:
    assert len(maze_grid.OPEN) == 97
    for cell in range(169):
        assert maze_grid.WALLS.flat[cell] == is_wall(*divmod(cell, 13))


def test_check_env_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("stpn/Maze-v0").unwrapped)


def test_single_environment_follows_the_rules() -> None:
    env = gym.make("stpn/Maze-v0").unwrapped
    rng = np.random.default_rng(0)
    rewards = 0
    for episode in range(20):
        observation, info = env.reset(seed=episode)
        assert info["cell"] == (6, 6)
        np.testing.assert_allclose(observation, expected_observation(6 * 13 + 6, 0, 0.0, UP))
        cell = 6 * 13 + 6
        for step in range(1, 201):
            action = int(rng.integers(4))
            observation, reward, terminated, truncated, info = env.step(action)
            cell = moved(cell, action)
            goal = info["reward_cell"][0] * 13 + info["reward_cell"][1]
            assert reward == (10.0 if cell == goal else 0.0)
            if reward:
                rewards += 1
                cell = info["cell"][0] * 13 + info["cell"][1]
                assert cell != goal
                assert not is_wall(*info["cell"])
            assert info["cell"] == divmod(cell, 13)
            np.testing.assert_allclose(
                observation, expected_observation(cell, step, reward, action), rtol=1e-6
            )
            assert terminated == (step == 200)
            assert not truncated
    assert rewards > 0


def test_vector_environment_follows_the_rules() -> None:
    env = MazeVectorEnv(64)
    rng = np.random.default_rng(1)
    observation, _ = env.reset(seed=3)
    rewards = 0
    for step in range(1, 451):  # two episodes and a half
        clock = (step - 1) % 200 + 1
        cell, goal = env.cell.copy(), env.reward_cell.copy()
        actions = rng.integers(4, size=64)
        observation, reward, terminated, truncated, infos = env.step(actions)
        assert (terminated == (clock == 200)).all()
        assert not truncated.any()
        final = infos["final_obs"] if clock == 200 else observation
        for agent in range(64):
            landed = moved(int(cell[agent]), int(actions[agent]))
            hit = landed == goal[agent]
            assert reward[agent] == (10.0 if hit else 0.0)
            rewards += hit
            if clock == 200:
                first = expected_observation(6 * 13 + 6, 0, 0.0, UP)
                np.testing.assert_allclose(observation[agent], first)
                if hit:
                    continue  # where it was moved to is seen in the final observation only
            elif hit:
                landed = int(env.cell[agent])
                assert landed != goal[agent]
                assert not is_wall(*divmod(landed, 13))
            else:
                assert env.cell[agent] == landed
                assert env.reward_cell[agent] == goal[agent]
            np.testing.assert_allclose(
                final[agent],
                expected_observation(landed, clock, reward[agent], int(actions[agent])),
                rtol=1e-6,
            )
    assert rewards > 0


def test_what_is_seen_of_a_reward_can_be_smaller() -> None:
    usual, smaller = MazeVectorEnv(50), MazeVectorEnv(50, reward_input=1.0)
    usual.reset(seed=0)
    smaller.reset(seed=0)
    rng, seen = np.random.default_rng(0), 0
    for _ in range(150):
        actions = rng.integers(4, size=50)
        expected, earned, *_ = usual.step(actions)
        observation, same_earned, *_ = smaller.step(actions)
        np.testing.assert_array_equal(same_earned, earned)
        np.testing.assert_allclose(observation[:, 12], expected[:, 12] / 10)
        np.testing.assert_array_equal(observation[:, :12], expected[:, :12])
        seen += int(observation[:, 12].sum())
    assert seen > 0
    one = maze.MazeEnv(reward_input=2.0)
    one.reset(seed=0, options={"reward_cell": (6, 7)})
    observation, reward, *_ = one.step(3)
    assert (observation[12], reward) == (2.0, 10.0)
    with pytest.raises(ValueError, match="reward_input must be"):
        MazeVectorEnv(1, reward_input=-1.0)


def test_reward_cells_and_relocations_are_uniform() -> None:
    rng = np.random.default_rng(0)
    draws = maze_grid.random_open(rng, 97_000)
    counts = np.bincount(draws, minlength=169)[maze_grid.OPEN]
    assert counts.sum() == 97_000
    assert abs(counts - 1000).max() < 160  # five standard deviations

    goal = maze_grid.OPEN[40]
    draws = maze_grid.random_open_except(rng, np.full(96_000, goal))
    counts = np.bincount(draws, minlength=169)
    assert counts[goal] == 0
    others = np.delete(maze_grid.OPEN, 40)
    assert counts[others].sum() == 96_000
    assert abs(counts[others] - 1000).max() < 160


def test_seed_decides_everything() -> None:
    def play(seed: int) -> list[np.ndarray]:
        env = MazeVectorEnv(8)
        env.reset(seed=seed)
        rng = np.random.default_rng(0)
        return [env.step(rng.integers(4, size=8))[0] for _ in range(300)]

    np.testing.assert_array_equal(play(5), play(5))
    assert not np.array_equal(play(5), play(6))


def test_saved_state_continues_identically() -> None:
    actions = np.random.default_rng(0).integers(4, size=(600, 16))
    env = MazeVectorEnv(16)
    env.reset(seed=9)
    for step in range(250):
        env.step(actions[step])
    other = MazeVectorEnv(16)
    other.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(env.observation, other.observation)
    for step in range(250, 600):
        for left, right in zip(env.step(actions[step]), other.step(actions[step]), strict=True):
            if isinstance(left, np.ndarray):
                np.testing.assert_array_equal(left, right)
    with pytest.raises(ValueError, match="16 agents"):
        MazeVectorEnv(4).load_state_dict(env.state_dict())


def test_vector_api() -> None:
    env = gym.make_vec("stpn/Maze-v0", num_envs=5)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    for _ in range(3):
        observation, *_ = env.step(env.action_space.sample())
        assert observation in env.observation_space
    before, steps = env.cell.copy(), env.observation[:, 11]
    mask = np.array([True, False, False, True, False])
    env.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(env.observation[:, 11], np.where(mask, 0, steps))
    np.testing.assert_array_equal(env.cell[~mask], before[~mask])


def test_copy_false_reuses_buffers() -> None:
    env = MazeVectorEnv(3, copy=False)
    first, _ = env.reset(seed=0)
    second, *_ = env.step(np.array([0, 1, 2]))
    assert first is second
    env = MazeVectorEnv(3)
    first, _ = env.reset(seed=0)
    assert first[0, 11] == 0
    env.step(np.array([0, 1, 2]))
    assert first[0, 11] == 0


@pytest.mark.parametrize("actions", [[0, 4], [0, -1], [0], [[0, 1]]])
def test_impossible_actions_are_refused(actions: list[int]) -> None:
    env = MazeVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions must"):
        env.step(np.array(actions))


def test_misuse_is_named() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        MazeVectorEnv(2).step(np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match="num_envs"):
        MazeVectorEnv(0)
    with pytest.raises(ValueError, match="render_mode"):
        maze.MazeEnv(render_mode="human")
    env = maze.MazeEnv()
    with pytest.raises(ValueError, match="open cell"):
        env.reset(options={"reward_cell": (2, 2)})
    env.reset(options={"reward_cell": (1, 1)})
    assert env.reward_cell == 14


def test_distances_against_one_search_per_pair() -> None:
    table = maze_grid.distances()
    for start in (14, 6 * 13 + 6, 11 * 13 + 11, 3 * 13 + 2):
        found = {start: 0}
        queue = [start]
        for cell in queue:
            for action in range(4):
                reached = moved(cell, action)
                if reached not in found:
                    found[reached] = found[cell] + 1
                    queue.append(reached)
        for cell in range(169):
            assert table[start, cell] == table[cell, start] == found.get(cell, -1)


def test_oracle_takes_shortest_ways() -> None:
    table = maze_grid.distances()
    for goal in maze_grid.OPEN:
        for cell in maze_grid.OPEN:
            action = maze_reference.oracle_actions(np.array([cell]), np.array([goal]))[0]
            reached = moved(int(cell), int(action))
            expected = table[cell, goal] - 1 if cell != goal else 1
            assert table[reached, goal] == expected


def test_reference_points_agree_with_play() -> None:
    exact = maze_reference.reference_points()
    assert exact["random policy"] == pytest.approx(5.48, abs=0.01)
    assert exact["oracle that knows the reward cell"] == pytest.approx(270.4, abs=0.1)

    env = MazeVectorEnv(4000)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    played = np.zeros(4000)
    for _ in range(200):
        played += env.step(rng.integers(4, size=4000))[1]
    assert played.mean() == pytest.approx(exact["random policy"], abs=5 * played.std() / 4000**0.5)
    played[:] = 0
    for _ in range(200):
        played += env.step(maze_reference.oracle_actions(env.cell, env.reward_cell))[1]
    assert played.mean() == pytest.approx(
        exact["oracle that knows the reward cell"], abs=5 * played.std() / 4000**0.5
    )

    with pytest.raises(ValueError, match="policy must have shape"):
        maze_reference.expected_reward(np.ones((97, 4)))


def test_the_tour_leads_everywhere_step_by_step() -> None:
    tour = maze_belief.best_tour()
    assert set(tour) == set(range(97))
    cells = [maze_grid.CENTRE, *maze_grid.OPEN[tour]]
    for here, there in itertools.pairwise(cells):
        assert maze_grid.distances()[here, there] == 1
    assert len(tour) < 150  # 97 cells cannot be entered in fewer than 97 steps


def test_beliefs_hold_the_truth_and_lose_what_is_ruled_out() -> None:
    """Played beside the environment: the agent is where it thinks it may be, always, and finds the
    reward cell that it thinks it knows."""
    env = maze.MazeEnv()
    sizes = []
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        agent, rewarded, earned = maze_belief.BeliefAgent(), False, 0.0
        for _ in range(200):
            action = agent.act(tuple(observation[:9].tolist()), rewarded)
            assert maze_grid.RANK[env.cell] in agent.belief
            if earned:
                assert agent.goal == maze_grid.RANK[env.reward_cell]
                assert agent.goal not in agent.belief
                sizes.append(len(agent.belief))
            observation, reward, *_ = env.step(action)
            rewarded, earned = reward > 0, earned + reward
        assert earned >= 50
    assert max(sizes) > 5
    assert np.mean(np.array(sizes) == 1) > 0.4


def test_an_agent_that_knows_where_it_is_takes_the_shortest_way() -> None:
    for cell in (0, 20, 50, 96):
        for goal in (3, 48, 77):
            step = maze_belief.decide(goal, frozenset({cell}))
            there = maze_grid.STEP[maze_grid.OPEN[cell], step]
            before = maze_grid.distances()[maze_grid.OPEN[cell], maze_grid.OPEN[goal]]
            assert maze_grid.distances()[there, maze_grid.OPEN[goal]] == before - 1


def test_the_belief_agent_earns_more_than_the_paper_and_less_than_the_oracle() -> None:
    points = list(maze_reference.reference_points().values())
    assert points == sorted(points)
    assert points[1] == pytest.approx(173, abs=4)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 9, "wall_penalty": 0.5},
        {"size": 11, "random_start": True, "wall_penalty": 0.05, "reward_input": 1.0},
        {"size": 13, "random_start": True},
    ],
)
def test_settings_change_the_maze_of_one_agent_and_of_many_alike(settings) -> None:
    """Walls, penalty and start, held to rules that are written down here once more."""
    size, penalty = settings["size"], settings.get("wall_penalty", 0.0)
    many, one = MazeVectorEnv(40, **settings), maze.MazeEnv(**settings)
    many.reset(seed=3)
    one.reset(seed=3)
    starts = many.cell.copy()
    assert all(not is_wall(*divmod(int(cell), size), size) for cell in starts)
    assert (len(set(starts)) > 10) == (len(set(starts)) > 1) == ("random_start" in settings)
    assert (starts != many.reward_cell).all() or "random_start" not in settings
    rng = np.random.default_rng(0)
    bumps = hits = 0
    for step in range(200):
        actions = rng.integers(4, size=40)
        before = many.cell.copy()
        one.cell, one.reward_cell = int(before[0]), int(many.reward_cell[0])
        goals = many.reward_cell.copy()
        seen, reward, done, *_ = many.step(actions)
        own_seen, own_reward, own_done, *_ = one.step(actions[0])
        assert (reward[0], done[0]) == (own_reward, own_done)
        if own_reward <= 0 and not own_done:
            np.testing.assert_array_equal(seen[0], own_seen)
        for agent in range(40):
            row, column = divmod(int(before[agent]), size)
            down, right = [(-1, 0), (1, 0), (0, -1), (0, 1)][actions[agent]]
            bumped = is_wall(row + down, column + right, size)
            there = before[agent] if bumped else (row + down) * size + column + right
            hit = there == goals[agent]
            bumps, hits = bumps + bumped, hits + hit
            assert reward[agent] == pytest.approx(10 * hit - penalty * bumped)
            if step < 199:
                scaled = reward[agent] * settings.get("reward_input", 10.0) / 10
                assert seen[agent, 12] == pytest.approx(scaled)
                assert hit or many.cell[agent] == there
        assert many.observation_space.contains(seen)
    assert bumps > 100
    assert hits > 10


def test_reference_points_follow_size_penalty_and_start() -> None:
    settings = {"size": 9, "wall_penalty": 0.5, "random_start": True}
    points = maze_reference.reference_points(**settings)
    assert list(points) == ["random policy", "oracle that knows the reward cell"]
    env = MazeVectorEnv(3000, **settings)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    chosen = {
        "random policy": lambda: rng.integers(4, size=3000),
        "oracle that knows the reward cell": lambda: maze_reference.oracle_actions(
            env.cell, env.reward_cell, env.plan
        ),
    }
    for name, actions in chosen.items():
        played = sum(env.step(actions())[1] for _ in range(200))
        assert played.mean() == pytest.approx(points[name], abs=5 * played.std() / 3000**0.5)


@pytest.mark.parametrize("size", [4, 12, 3, 53])
def test_a_maze_that_cannot_be_built_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="odd number from 5 to 51"):
        MazeVectorEnv(1, size=size)
    with pytest.raises(ConfigError, match="maze_size"):
        experiments.default_config("maze", "lstm", maze_size=size)


def test_a_state_of_a_larger_maze_is_refused() -> None:
    larger = MazeVectorEnv(8, size=21, random_start=True)
    larger.reset(seed=0)
    with pytest.raises(ValueError, match="larger maze"):
        MazeVectorEnv(8, size=5).load_state_dict(larger.state_dict())


def test_the_task_gives_its_settings_to_every_environment() -> None:
    config = experiments.default_config(
        "maze", "lstm", maze_size=9, wall_penalty=0.25, random_start=True, reward_input=1.0
    )
    task = experiments.get("maze").task
    env, single = task.make_env(config, 2), task.rllib_env(config)(None)
    for made in (env, single):
        assert made.plan.size == 9
        assert (made._penalty, made._random_start) == (0.25, True)
    assert task.scene(config).env.plan is env.plan
    assert env.privileged_space["cell"].n == 81
    env.reset(seed=0)
    assert maze_render.text(12, 14, env.plan).count("\n") == 8
    assert maze_render.frame(12, 14, [15], env.plan, scale=4).shape == (36, 36, 3)


def test_text() -> None:
    picture = maze_render.text(6 * 13 + 6, 14).splitlines()
    assert len(picture) == 13
    assert picture[0] == "#" * 13
    assert picture[1] == "#*..........#"
    assert picture[6] == "#.#.#.@.#.#.#"


def test_frame_shows_agent_reward_and_path() -> None:
    plain = maze_render.frame(6 * 13 + 6, 14, scale=10)
    assert plain.shape == (130, 130, 3)
    assert plain.dtype == np.uint8
    agent, reward, floor = plain[65, 65], plain[15, 15], plain[15, 35]
    assert len({tuple(agent), tuple(reward), tuple(floor)}) == 3
    with_path = maze_render.frame(6 * 13 + 6, 14, [16, 17], scale=10)
    assert tuple(with_path[15, 35]) != tuple(floor)
    assert with_path[15, 35].sum() > with_path[15, 45].sum()  # older cells are paler


def test_render_modes() -> None:
    env = gym.make("stpn/Maze-v0", render_mode="ansi")
    env.reset(seed=0)
    assert "@" in env.render()
    env = gym.make("stpn/Maze-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (312, 312, 3)
    envs = gym.make_vec("stpn/Maze-v0", num_envs=2, render_mode="rgb_array")
    envs.reset(seed=0)
    assert len(envs.render()) == 2


def test_a_million_agent_steps_per_second() -> None:
    env = MazeVectorEnv(512)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=(200, 512))
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        for step in actions:
            env.step(step)
        best = min(best, time.process_time() - start)
    assert 200 * 512 / best > 1_000_000
