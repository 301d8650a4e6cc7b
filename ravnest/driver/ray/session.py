"""A connection to Ray: starting it here or joining it, the nodes that it has, and how an actor is put on one of them.

The only module that imports ray. Ray carries control: setups, outcomes, the job's code and the news of a death. Token
authentication is always on (design §9, §13).
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
"""By how much a Ray node's workers are nicer than it; Ray's own value, 15, starves stages on a machine that is busy."""
_OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's minimum is about 75 MiB; no tensor ever goes there
_PROBE_S = 10.0
_KEY = "--address (or RAY_ADDRESS)"


@dataclass(frozen=True)
class RayNode:
    """A machine as Ray knows it. `name`: of its resource `ravnest-NAME`, where it was started with one."""

    node_id: str
    address: str
    name: str | None
    cores: int
    hostname: str
    alive: bool
    works: bool
    """False for one that was started with `--num-cpus 0`, such as a head that only keeps the books."""

    def is_of(self, name: str, address: str | None) -> bool:
        """Whether it is the node that nodes.yaml calls `name`: by its address, else by its resource."""
        return self.address == address or self.name == name


def check_address(address: str) -> None:
    """Raises InvalidInput unless something listens at `address`. Ray itself takes a minute and more to say so."""
    silence = silence_at(address)
    if silence is not None:
        raise InvalidInput(f"no Ray cluster answers at {address} ({silence})", key=_KEY)


def silence_at(address: str) -> str | None:
    """Why nothing listens at `address`; None where something does. Raises InvalidInput for what is no address.

    "auto", which Ray understands as the cluster of this machine, is left to it.
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
    """Joined; `close` leaves, and ends a Ray that was started here."""

    def __init__(self, address: str | None, code: JobCode | None = None) -> None:
        """Join the Ray cluster at `address`, or start one on this machine.

        `code`: to be the working folder of every actor in a cluster; a Ray started here has the job's own folder.
        Raises RunFailed or InvalidInput.
        """
        if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
            raise InvalidInput("must be token: ravnest runs with Ray's authentication on", key="RAY_AUTH_MODE")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:  # of Ray's nodes, only those started here read this process's environment
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
        except Exception as error:  # Ray raises no narrower one where it does not come up in time
            where = "start Ray on this machine" if self.is_local else f"join the Ray cluster at {address}"
            raise RunFailed(f"could not {where}: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        self.ray.shutdown()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the nodes."""
        return LOOPBACK if self.is_local else str(self.ray.util.get_node_ip_address())

    def nodes(self) -> list[RayNode]:
        """Of the cluster, the dead among them."""
        return [_node(each) for each in self.ray.nodes()]

    def on_node(self, node: RayNode) -> Mapping[str, Any]:
        """Options of an actor that must run there."""
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
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
