"""Reaching a cluster, or saying quickly and clearly why not."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from stpn.cli import main
from stpn.errors import ConfigError
from stpn.scale import cluster as clusters
from stpn.scale.cluster import ClusterError, Resources, connected

pytest.importorskip("ray")

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # as if it were not installed
from stpn.cli import main
for arguments in {commands}:
    assert main(arguments) == 1
"""

WHAT_NEEDS_RAY = [
    ["sweep", "art", "--models", "stpnr", "--seeds", "1", "--ray"],
    ["tune", "art", "--search", "lr=0.001,0.01"],
    ["train", "pendulum", "--rllib"],
    ["train", "art", "--workers", "2"],
]


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A process in no cluster, on a machine without one."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def test_without_ray_the_extra_is_named(tmp_path):
    commands = [[*words, "--out", str(tmp_path / "runs")] for words in WHAT_NEEDS_RAY]
    code = WITHOUT_RAY.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install '.[ray]'") == len(commands)
    assert not (tmp_path / "runs").exists()


ONE_RUN = ["sweep", "art", "--models", "stpnr", "--seeds", "1"]


@pytest.mark.parametrize("listening", [False, True])
def test_an_address_that_nobody_answers_is_an_error_within_seconds(
    alone, monkeypatch, capsys, listening
):
    """Nobody is there, or someone who says nothing."""
    monkeypatch.setattr(clusters, "REACH_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        began = time.monotonic()
        with pytest.raises(ClusterError, match="no Ray cluster answers"), connected(address):
            pass
        assert time.monotonic() - began < 5
        out = str(alone / "runs")
        assert main([*ONE_RUN, "--ray", "--address", address, "--out", out]) == 1
    assert f"stpn sweep: no Ray cluster answers at {address}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "message"),
    [("auto", "no Ray cluster runs on this machine"), ("head", "auto, local or HOST:PORT")],
)
def test_other_addresses_that_lead_nowhere(alone, address, message):
    with pytest.raises((ClusterError, ConfigError), match=message), connected(address):
        pass


def test_the_address_a_crashed_cluster_left_behind_is_not_believed(alone):
    (alone / "ray").mkdir()
    (alone / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    assert clusters._reachable(None) == "local"
    with pytest.raises(ClusterError, match="no Ray cluster runs"):
        clusters._reachable("auto")


def test_a_named_cluster_must_answer_even_where_none_is_demanded(alone, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        clusters._reachable(None)


@pytest.mark.parametrize("resources", [Resources(cpus=0), Resources(cpus=-1), Resources(memory=0)])
def test_impossible_resources_are_refused(resources):
    with pytest.raises(ConfigError):
        resources.check()


@pytest.mark.parametrize("flag", ["--address", "--cpus", "--memory-gb"])
def test_flags_for_a_cluster_without_one(tmp_path, capsys, flag):
    assert main([*ONE_RUN, flag, "1", "--out", str(tmp_path)]) == 2
    assert f"{flag} is for a sweep on Ray: add --ray" in capsys.readouterr().err
