"""A Ray cluster: reach one or start one, and know at once whether it can do what is asked.

Ray waits: for an address that nobody answers, for processors that no node has. Here both are
errors within seconds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stpn._extras import need
from stpn.errors import ConfigError, StpnError

REACH_SECONDS = 5.0
"""How long an address may take to answer."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS = b"\x04"
"""Ray speaks gRPC, hence HTTP/2: a server returns a frame of this type for the greeting. Anything
else that listens there, Ray would wait for."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "GRPC_VERBOSITY": "NONE",  # what goes wrong is told in a sentence of our own
}


class ClusterError(StpnError):
    """A cluster that cannot be reached or cannot do what is asked of it."""


@dataclass(frozen=True)
class Resources:
    """What one run reserves on one node."""

    cpus: float = 1.0
    memory: int | None = None
    """Bytes. None: nothing is reserved."""

    def check(self) -> None:
        if not self.cpus > 0:
            raise ConfigError(f"a run needs cpus > 0, not {self.cpus}")
        if self.memory is not None and self.memory < 1:
            raise ConfigError(f"memory must be >= 1 byte, not {self.memory}")

    def options(self) -> dict[str, Any]:
        """As `ray.remote` takes them."""
        wanted: dict[str, Any] = {"num_cpus": self.cpus}
        if self.memory is not None:
            wanted["memory"] = self.memory
        return wanted

    def __str__(self) -> str:
        memory = "" if self.memory is None else f" and {self.memory / 2**30:.3g} GiB of memory"
        return f"{self.cpus:g} CPU{'' if self.cpus == 1 else 's'}{memory}"


@contextmanager
def connected(address: str | None = None, *, cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, joined to a cluster until the end of the block.

    - address: as `ray.init` takes it. None: the cluster that runs on this machine or that
      RAY_ADDRESS names, and if there is none, an instance of our own; "auto": the same, but it must
      exist; "local": always our own; else "host:port".
    - cpus: of an instance of our own. None: every core.

    A process that is in a cluster already stays in it.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = need("ray", extra="ray")
    if ray.is_initialized():
        yield ray
        return
    address = _reachable(address)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        settings |= {"include_dashboard": False, "num_cpus": cpus}
    try:
        ray.init(address, **settings)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterError(f"cannot join a Ray cluster at {address!r}: {error}") from error
    # Even so, Ray prints deaths of nodes on standard output, between the lines of --json. We report
    # them ourselves, as lost runs.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield ray
    finally:
        ray.shutdown()


def _reachable(address: str | None) -> str:
    """The address of a cluster that answers, or "local"."""
    named = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS")
    if named == "local":
        return named
    if named:
        if not _answers(named):
            raise ClusterError(
                f"no Ray cluster answers at {named} (tried for {REACH_SECONDS:g} seconds); "
                "`ray status` on its head node shows the address"
            )
        return named
    # `ray start` leaves the address of its cluster here, and a crash leaves it there for ever
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    found = note.read_text().strip() if note.is_file() else ""
    if found and _answers(found):
        return found
    if address is None:
        return "local"
    raise ClusterError(
        "no Ray cluster runs on this machine and RAY_ADDRESS is not set; `ray start --head` starts "
        "one, and without an address an instance is started for the command alone"
    )


def _answers(address: str) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"an address is auto, local or HOST:PORT, not {address!r}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return True  # whoever answers, answers in cipher
            connection.sendall(GREETING)
            return connection.recv(9)[3:4] == SETTINGS
    except (OSError, OverflowError):
        return False


def require_room(ray: Any, wanted: Resources, count: int = 1) -> None:
    """Raise ClusterError unless the cluster, were it idle, could take `count` runs at once."""
    wanted.check()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    places = sum(_places(node, wanted) for node in nodes)
    if places >= count:
        return
    cpus = sum(node.get("CPU", 0) for node in nodes)
    most = max((node.get("CPU", 0) for node in nodes), default=0)
    memory = max((node.get("memory", 0) for node in nodes), default=0) / 2**30
    what = "a run needs" if count == 1 else f"{count} workers at once need each"
    raise ClusterError(
        f"{what} {wanted}; the cluster has {cpus:g} CPUs on {len(nodes)} nodes, "
        f"none with more than {most:g} CPUs and {memory:.3g} GiB"
    )


def _places(node: dict[str, float], wanted: Resources) -> int:
    places = node.get("CPU", 0) // wanted.cpus
    if wanted.memory is not None:
        places = min(places, node.get("memory", 0) // wanted.memory)
    return int(places)
