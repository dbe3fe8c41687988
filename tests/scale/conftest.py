"""One Ray cluster for all tests of this directory; two nodes, both on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Ray's processes must not take the test's environment for a cluster of their own.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


HABITS = [
    # of Ray itself: deprecated calls among its parts, sockets and loops left to the end
    "ignore::DeprecationWarning:ray[.]",
    "ignore::ray.util.annotations.RayDeprecationWarning:ray[.]",
    "ignore::ResourceWarning",
    "ignore:.*Overriding environment rllib-single-agent-env-v0",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of xdist runs them all: a cluster costs half a minute and a gigabyte."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("ray"))
            for habit in HABITS if find_spec("ray") else ():  # they name a class of Ray's
                item.add_marker(pytest.mark.filterwarnings(habit))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` that this process is connected to."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def ray(cluster: Any) -> Any:
    import ray

    return ray
