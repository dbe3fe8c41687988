"""The agents on the page of the maze do what they do in PyTorch, and the page can be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stpn
from stpn.energy import EnergyMeter
from stpn.tasks import maze
from stpn.training.running import RunningStatistics

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("gymnasium")

import maze_data  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


@pytest.fixture
def open_page(open_address: Callable[..., Any], site: Path) -> Callable[..., Any]:
    def opener(name: str = "demos/maze.html", **settings: Any) -> Any:
        return open_address((site / name).as_uri(), **settings)

    return opener


def episode(agent: Any, seed: int) -> dict[str, Any]:
    """A whole episode in PyTorch, in double precision: what is seen, done, found and thought."""
    agent = agent.double()
    env = maze.MazeEnv(reward_input=agent.config.reward_input)
    observation, _ = env.reset(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    played: dict[str, Any] = {"reward_cell": env.reward_cell, "observations": [], "actions": []}
    played |= {"heads": [], "cells": [], "f": []}
    state, ended = None, False
    with torch.no_grad(), stpn.use_backend("reference"), EnergyMeter(agent.core) as meter:
        while not ended:
            seen = agent.encoder(torch.as_tensor(observation).unsqueeze(0)).double()
            y, state = agent.core.step(seen, state)
            heads = agent.heads(y)[0]
            action = int(heads[:-1].softmax(-1).multinomial(1, generator=generator))
            observation, _, ended, _, _ = env.step(action)
            played["observations"].append(seen[0].tolist())
            played["heads"].append(heads.tolist())
            played["actions"].append(action)
            played["cells"].append(env.cell)
    played["power"] = sum(meter.per_step.values()).tolist()
    played["f"] = state[0].f[0].flatten().tolist() if hasattr(state[0], "f") else None
    return played


REPLAY = """([agent, rewardCell, actions, cells]) => {
  const loaded = typeof agent === "number" ? Maze.agents[agent] : Network.load(agent);
  const episode = Maze.begin(loaded, rewardCell);
  const steps = actions.map((action, t) => {
    const seen = Maze.observe(episode);
    const { logits, value, power } = Maze.think(episode);
    Maze.move(episode, action, () => cells[t]);
    return { seen, heads: [...logits, value], power, cell: episode.cell };
  });
  return { steps, earned: episode.earned, f: Array.from(episode.states[0].f) };
}"""


def assert_same(page: Any, agent: int | dict[str, Any], played: dict[str, Any]) -> None:
    found = page.evaluate(
        REPLAY, [agent, played["reward_cell"], played["actions"], played["cells"]]
    )
    steps = found["steps"]
    assert [step["cell"] for step in steps] == played["cells"]
    for key, name in (("seen", "observations"), ("heads", "heads"), ("power", "power")):
        values = np.array([step[key] for step in steps])
        np.testing.assert_allclose(values, played[name], rtol=1e-5, atol=1e-5, err_msg=name)
    if played["f"] is not None:
        np.testing.assert_allclose(found["f"], played["f"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", range(len(maze_data.AGENTS)), ids=maze_data.AGENTS)
def test_the_page_computes_what_pytorch_computes(open_page: Any, k: int) -> None:
    """Observations, logits, value and power at each step of whole episodes, and F at the end."""
    page = open_page()
    for seed in range(3):
        played = episode(stpn.pretrained(maze_data.AGENTS[k]), seed)
        assert len(played["actions"]) == maze.EPISODE_STEPS
        assert_same(page, k, played)


def test_normalised_observations_and_other_rewards(open_page: Any) -> None:
    agent = stpn.pretrained("maze-stpnr")
    statistics = RunningStatistics((maze.OBSERVATION_SIZE,))
    statistics.update(torch.rand(50, maze.OBSERVATION_SIZE))
    agent.encoder.statistics = statistics
    object.__setattr__(agent.config, "reward_input", 3.0)
    assert_same(open_page(), maze_data.exported(agent), episode(agent, 1))


def test_buttons_and_keys(open_page: Any) -> None:
    page = open_page()
    clock = page.locator("[data-maze=clock]")
    assert clock.inner_text() == "step 0 of 200"
    page.get_by_role("button", name="Step").click()
    assert clock.inner_text() == "step 1 of 200"
    page.keyboard.press("s")
    assert clock.inner_text() == "step 2 of 200"
    page.keyboard.press("p")
    sync_api.expect(clock).to_have_text(re.compile(r"step ([5-9]|\d\d+) of 200"))
    assert page.locator("[data-maze=play]").inner_text() == "Pause"
    page.keyboard.press("p")
    before = page.evaluate("MazePage.state.episodes[0].rewardCell")
    page.get_by_role("button", name="New reward cell").click()
    assert clock.inner_text() == "step 0 of 200"
    assert page.evaluate("MazePage.state.episodes[0].rewardCell") != before
    page.locator(".maze-grid").first.click(position={"x": 45, "y": 45})  # the corner cell
    assert page.evaluate("MazePage.state.episodes.map((e) => e.rewardCell)") == [14, 14]


def test_an_episode_ends_and_is_told(open_page: Any) -> None:
    page = open_page()
    page.evaluate("() => { for (let t = 0; t < 300; t++) MazePage.step(); }")
    earned = page.evaluate("MazePage.state.episodes.map((e) => e.earned)")
    told = page.locator("[data-maze=message]").inner_text()
    assert f"STPNr earned {earned[0]} " in told
    assert f"LSTM earned {earned[1]} " in told
    assert earned[0] > 50  # by chance 5.5
    assert page.get_by_role("button", name="Step").is_disabled()
    assert page.evaluate("MazePage.state.episodes[0].powers.length") == maze.EPISODE_STEPS


def test_synapses_are_drawn_and_follow_the_choice(open_page: Any) -> None:
    page = open_page()
    sums = """() => [...document.querySelectorAll(".maze-map")].map((map) => {
      const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
      return data.filter((_, i) => i % 4 === 3 && data[i] > 40).length; })"""
    assert page.evaluate(sums) == [0, 0]  # F is zero at first
    page.evaluate("() => { for (let t = 0; t < 40; t++) MazePage.step(); }")
    stpn_synapses, lstm_synapses = page.evaluate(sums)
    assert stpn_synapses > 100
    assert lstm_synapses == 0
    page.get_by_label("G", exact=True).check()
    assert min(page.evaluate(sums)) > 500


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_hangs_over_the_edge(open_page: Any, width: int, scheme: str) -> None:
    settings = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    for name in ("demos/maze.html", "index.html", "tutorials/layer.html", "api/layers.html"):
        page = open_page(name, **settings)
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
