"""A connection to Ray: it starts Ray here or joins a cluster, lists the nodes, and places actors on them.

This is the only module that imports ray. Ray carries control alone: setups, outcomes, the job's code, and the news that
a process has ended. Token authentication is always on (design §9, §13).
"""

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ravnest.driver.ray.code_shipping import JobCode
from ravnest.errors import InvalidInput, RavnestError, RunFailed

LOOPBACK = "127.0.0.1"
RESOURCE_PREFIX = "ravnest-"
NICENESS = "RAY_worker_niceness"
"""The environment variable that says by how much the workers of a Ray node are nicer than the node. Ray's default, 15,
starves stages on a busy machine."""
_OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's minimum is about 75 MiB; no tensor ever goes there
_PROBE_S = 10.0
_KEY = "--address (or RAY_ADDRESS)"


@dataclass(frozen=True)
class RayNode:
    """A machine as Ray knows it. `name` is that of its resource `ravnest-NAME`, where it was started with one."""

    node_id: str
    address: str
    name: str | None
    cores: int
    hostname: str
    alive: bool
    works: bool
    """Whether stages may run there. A node that was started with `--num-cpus 0`, such as a pure head, does not work."""

    def is_of(self, name: str, address: str | None) -> bool:
        """Whether it is the node that nodes.yaml calls `name`, by its address or by its resource."""
        return self.address == address or self.name == name


def check_address(address: str) -> None:
    """Raises InvalidInput unless something listens at `address`. Ray itself takes a minute or more to say so."""
    silence = silence_at(address)
    if silence is not None:
        raise InvalidInput(f"no Ray cluster answers at {address} ({silence})", key=_KEY)


def silence_at(address: str) -> str | None:
    """The reason why nothing listens at `address`, in words; None where something does.

    "auto" gives None too, because Ray itself finds the cluster of this machine. Raises InvalidInput for what is not an
    address.
    """
    if address == "auto":
        return None
    host, _, port = address.rpartition(":")
    valid = host and "/" not in host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not valid:
        raise InvalidInput(f"{address!r} is no HOST:PORT of a Ray cluster's head, such as 192.0.2.1:6379", key=_KEY)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


class RaySession:
    """A session of Ray that has been joined. `close` leaves it, and ends a Ray that was started here."""

    def __init__(self, address: str | None, code: JobCode | None = None) -> None:
        """Join the Ray cluster at `address`; None starts Ray on this machine.

        `code` becomes the working folder of every actor in a cluster; actors on this machine use the job's own folder.
        Raises RunFailed or InvalidInput.
        """
        if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
            raise InvalidInput("must be token: ravnest runs with Ray's authentication on", key="RAY_AUTH_MODE")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:  # only nodes that are started here read this environment
            os.environ.setdefault(NICENESS, "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self.ray: Any = ray
        self.is_local = address is None
        self.ships_code = code is not None and not self.is_local
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.is_local:
            options |= {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        else:
            options |= {"address": address}
        try:
            with code.copied() if code is not None and self.ships_code else nullcontext() as folder:
                ray.init(**options, runtime_env=None if folder is None else {"working_dir": str(folder)})
        except RavnestError:
            raise
        except Exception as error:  # Ray raises nothing narrower when it does not start in time
            where = "start Ray on this machine" if self.is_local else f"join the Ray cluster at {address}"
            raise RunFailed(f"could not {where}: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        """Leave the session."""
        self.ray.shutdown()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the nodes."""
        return LOOPBACK if self.is_local else str(self.ray.util.get_node_ip_address())

    def nodes(self) -> list[RayNode]:
        """All nodes of the cluster, with those that are dead."""
        return [_node(each) for each in self.ray.nodes()]

    def on_node(self, node: RayNode) -> Mapping[str, Any]:
        """Options for Ray that place an actor on this node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)}


def _node(entry: Mapping[str, Any]) -> RayNode:
    resources: Iterable[str] = entry["Resources"]
    names = sorted(one.removeprefix(RESOURCE_PREFIX) for one in resources if one.startswith(RESOURCE_PREFIX))
    return RayNode(
        node_id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        name=names[0] if names else None,
        cores=max(1, int(entry["Resources"].get("CPU", 1))),
        hostname=entry.get("NodeManagerHostname", entry["NodeManagerAddress"]),
        alive=bool(entry["Alive"]),
        works=bool(names) or entry["Resources"].get("CPU", 0) > 0,
    )


def one_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it has none."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
