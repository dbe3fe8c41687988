"""Tasks by name: the package's, those of other packages, those of a module."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import stpn
from stpn import experiments, plugins
from stpn.config import from_dict
from stpn.errors import ConfigError
from stpn.tasks import registry
from stpn.tasks.art import Art, ArtConfig


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, registry.Task]:
    registry.names()
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    return registry._tasks


def own(name: str = "own", **settings: Any) -> Art:
    return Art(name=name, title="T", metric="accuracy", config=ArtConfig, settings=settings)


def test_a_registered_task_has_settings_of_its_own(tasks: dict[str, registry.Task]) -> None:
    task = stpn.register_task(own(epochs=3))
    config = experiments.default_config("own", "lstm")
    assert (config.total, config.unit, config.model) == (3, "epoch", "lstm")
    assert experiments.get("own").task is task
    assert experiments.get("own").models == ()
    assert "own" in experiments.TASKS
    with pytest.raises(ConfigError, match="a task named 'own' already"):
        stpn.register_task(own())
    with pytest.raises(ConfigError, match="letters, digits"):
        stpn.register_task(own("../own"))
    with pytest.raises(ConfigError, match=r"unknown task 'owm' \(did you mean 'own'\?\)"):
        registry.get("owm")


def test_a_package_makes_its_task_known_by_an_entry_point(
    tasks: dict[str, registry.Task], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    class Point:
        def __init__(self, name: str, task: Any) -> None:
            self.name, self.value, self.load = name, f"package:{name}", task

    def broken() -> registry.Task:
        raise RuntimeError("somebody else's fault")

    points = [Point("broken", broken), Point("plugged", lambda: own("plugged"))]
    found = {plugins.TASKS: points}
    monkeypatch.setattr(metadata, "entry_points", lambda group: found.get(group, []))
    tasks.clear()
    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(plugins, "_loaded", False)
    first, *_, last = registry.names()
    assert (first, last) == ("art", "plugged")
    assert "somebody else's fault" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [("raise ValueError('boo')", "ValueError('boo')"), ("def f(:", "SyntaxError")],
)
def test_a_module_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "my_broken_tasks.py").write_text(f"import stpn\n{text}\n")
    monkeypatch.setattr(plugins, "_loaded", False)
    monkeypatch.setenv(plugins.VARIABLE, "my_broken_tasks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match="STPN_PLUGINS names 'my_broken_tasks', which") as caught:
        plugins.load()
    assert said in str(caught.value)
    assert "line " in str(caught.value)


def test_a_network_needs_neither_environments_nor_their_packages() -> None:
    code = """
import sys
for blocked in ("gymnasium", "ale_py", "mujoco"):
    sys.modules[blocked] = None
import stpn
for task, model in (("maze", "stpnr"), ("pendulum", "lstm"), ("maze-ablation", "hebbff")):
    assert stpn.pretrained(f"{task}-{model}").config.task == task
assert "stpn.training.reinforcement" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("task", ["maze", "pong", "pendulum"])
def test_a_network_is_that_of_the_environment(task: str) -> None:
    pytest.importorskip({"pong": "ale_py", "pendulum": "mujoco"}.get(task, "gymnasium"))
    config: Any = experiments.default_config(task)
    found: Any = registry.get(task)
    env = found.make_env(config, 1)
    encoder, policy = super(type(found), found).interface(config, env)
    env.close()
    ours, our_policy = found.interface(config)
    assert repr(ours) == repr(encoder)
    assert ours.output_size == encoder.output_size
    assert type(our_policy) is type(policy)
    assert our_policy.num_parameters == policy.num_parameters
    for bound in ("_low", "_high", "_dtype"):
        assert getattr(our_policy, bound, None) == getattr(policy, bound, None)


def test_old_runs_have_what_they_had() -> None:
    """A setting that is younger than a run has its class's default there, not the task's."""
    path = Path(__file__).parents[2] / "results/pendulum/stpnf/seed0.json"
    saved = json.loads(path.read_bytes())["config"]
    config: Any = from_dict(saved)
    saved = type(config).migrated(saved)
    assert {name: config.to_dict()[name] for name in saved} == saved
    assert "lr_final" not in saved
    assert config.lr_final is None
    assert experiments.default_config("pendulum", "stpnf").lr_final == 0.0
