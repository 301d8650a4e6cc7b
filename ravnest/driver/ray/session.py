"""A connection to Ray: it starts Ray here or joins a cluster, lists the nodes, and places actors on them.

Ray carries control alone: setups, outcomes, the job's code, and the news that a process has ended. Token
authentication is always on (design §9, §13). local_ray.py keeps a Ray that is started here to its user, and ray_log.py
takes what Ray says.
"""

import logging
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ravnest.driver.ray.code_shipping import JobCode
from ravnest.driver.ray.local_ray import RayFolder, keep_token, on_loopback
from ravnest.driver.ray.ray_log import RayLog
from ravnest.errors import InvalidInput, RunFailed

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

    def __init__(self, address: str | None, code: JobCode | None = None, log: Path | None = None) -> None:
        """Join the Ray cluster at `address`; None starts Ray on this machine.

        `code` becomes the working folder of every actor in a cluster; actors on this machine use the job's own folder.
        What Ray says is appended to the file `log`; None drops it. Raises RunFailed or InvalidInput.
        """
        if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
            raise InvalidInput("must be token: ravnest runs with Ray's authentication on", key="RAY_AUTH_MODE")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # what two stages print alike is in the log of each
        if address is None:  # only nodes that are started here read this environment
            os.environ.setdefault(NICENESS, "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self.ray: Any = ray
        self.is_local = address is None
        self.ships_code = code is not None and not self.is_local
        keep_token(Path.home(), os.environ, create=self.is_local)
        with ExitStack() as leaving:
            self.log = leaving.enter_context(RayLog(log))
            self.log.take_workers(ray._private.worker)
            if address is None:
                self._start(leaving)
            else:
                leaving.callback(ray.shutdown)
                self._join(address, code if self.ships_code else None)
            self._leaving = leaving.pop_all()

    def _start(self, leaving: ExitStack) -> None:
        folder = RayFolder()
        leaving.callback(self._end, folder)
        with on_loopback():
            self._init(
                "start Ray on this machine",
                address="local",
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(folder.for_ray),
            )
        folder.check()

    def _end(self, folder: RayFolder) -> None:
        folder.watch()  # once Ray's main process has ended, those that it started could not be found
        try:
            self.ray.shutdown()
        finally:
            folder.remove()

    def _join(self, address: str, code: JobCode | None) -> None:
        with nullcontext() if code is None else code.copied() as copy:
            runtime_env = None if copy is None else {"working_dir": str(copy)}
            self._init(f"join the Ray cluster at {address}", address=address, runtime_env=runtime_env)

    def _init(self, what: str, **options: Any) -> None:
        try:
            self.ray.init(**options, log_to_driver=True, logging_level=logging.WARNING)
        except Exception as error:  # Ray raises nothing narrower when it does not start in time
            raise RunFailed(f"could not {what}: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        """Leave the session. A Ray that was started here has ended then, and its folder is gone."""
        self._leaving.close()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the nodes."""
        return LOOPBACK if self.is_local else str(self.ray.util.get_node_ip_address())

    def nodes(self) -> list[RayNode]:
        """All nodes of the cluster, with those that are dead."""
        return [_node(each) for each in self.ray.nodes()]

    def draining(self) -> list[RayNode]:
        """Those of them that Ray was told to drain: they are about to go. Raises NotImplementedError where this version
        of Ray has not the call, which it does not document."""
        try:
            ask = self.ray._private.state.state.get_draining_nodes
        except AttributeError as error:
            raise NotImplementedError(f"version {self.ray.__version__} has no get_draining_nodes") from error
        drained = ask()
        return [node for node in self.nodes() if node.node_id in drained]

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
    """The first line of an error's text without its full stop, or its class where it has no text."""
    text = str(error).strip().splitlines()
    return text[0].rstrip(" .") if text else type(error).__name__
