"""Placing actors with Ray: starting it here or joining it, and the node that each stage's actor must run on.

The only module that imports ray. Ray carries control: setups, outcomes and the news of a death. Token authentication
is always on (design §9, §13).
"""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster_planner import Plan
from ravnest.errors import InvalidInput, NodeLost, RunFailed
from ravnest.launch.actor import StageActor, StageOutcome
from ravnest.runtime.setup import StageAddress, StageSetup
from ring_allreduce.transport import PeerAddress

LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's minimum is about 75 MiB; no tensor ever goes there
_PROBE_S = 10.0
_KEY = "--address (or RAY_ADDRESS)"
_RESOURCE_PREFIX = "ravnest-"


@dataclass(frozen=True)
class Ended:
    """A stage's `run` call has returned, or its process is gone (`outcome` None, `reason` says how)."""

    stage: str
    outcome: StageOutcome | None
    reason: str = ""


def check_address(address: str) -> None:
    """Raises InvalidInput unless something listens at `address`. Ray itself takes a minute and more to say so.

    "auto", which Ray understands as the cluster of this machine, is left to it.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    valid = host and "/" not in host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not valid:
        raise InvalidInput(f"{address!r} is no HOST:PORT of a Ray cluster's head, such as 192.0.2.1:6379", key=_KEY)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"no Ray cluster answers at {address} ({reason})", key=_KEY) from None


class RayCluster:
    """A connection to Ray, and the actors placed on it. Use as a context manager: leaving kills them all."""

    def __init__(self, address: str | None) -> None:
        """Join the Ray cluster at `address`, or start one on this machine. Raises RunFailed or InvalidInput."""
        if os.environ.setdefault("RAY_AUTH_MODE", "token") != "token":
            raise InvalidInput("must be token: ravnest runs with Ray's authentication on", key="RAY_AUTH_MODE")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray: Any = ray
        self._local = address is None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._local:
            options |= {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        else:
            options |= {"address": address}
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "start Ray on this machine" if self._local else f"join the Ray cluster at {address}"
            raise RunFailed(f"could not {where}: {' '.join(str(error).split())}") from error
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *exc: object) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._ray.shutdown()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the stages."""
        return LOOPBACK if self._local else str(self._ray.util.get_node_ip_address())

    def cores(self) -> int:
        """CPU cores of this machine."""
        return len(os.sched_getaffinity(0))

    def threads(self, plan: Plan) -> dict[str, int]:
        """Torch threads for each planned node: its machine's cores shared among the stages that run there."""
        nodes = [stage.node for cluster in plan.clusters for stage in cluster.stages]
        if self._local:
            return dict.fromkeys(nodes, max(1, self.cores() // len(nodes)))
        ray_nodes = {name: self._ray_node(plan, name) for name in nodes}
        shared = [node["NodeID"] for node in ray_nodes.values()]
        return {
            name: max(1, int(node["Resources"].get("CPU", 1)) // shared.count(node["NodeID"]))
            for name, node in ray_nodes.items()
        }

    def place(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None:
        """Ask for one actor per stage on the node that `nodes` names (by stage); they start together."""
        remote = self._ray.remote(StageActor)
        for stage, setup in setups.items():
            options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
            host = LOOPBACK
            if not self._local:
                node = self._ray_node(plan, nodes[stage])
                host = node["NodeManagerAddress"]
                options["scheduling_strategy"] = self._on_node(node["NodeID"])
            self._actors[stage] = remote.options(**options).remote(setup, host)

    def prepare(self, timeout_s: float) -> dict[str, StageAddress]:
        """Wait until every stage listens. Raises NodeLost naming the stages that did not come up in time."""
        calls = {actor.prepare.remote(): stage for stage, actor in self._actors.items()}
        ready, late = self._ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s)
        addresses = {}
        for call in ready:
            try:
                addresses[calls[call]] = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause if error.cause is not None else error
                if isinstance(cause, InvalidInput):
                    raise cause from None
                raise RunFailed(f"{calls[call]} could not start: {_one_line(cause)}") from error
            except self._ray.exceptions.RayActorError as error:
                raise NodeLost(f"{calls[call]} died while starting: {_one_line(error)}") from error
        if late:
            names = ", ".join(sorted(calls[call] for call in late))
            raise NodeLost(f"not ready after {timeout_s:.0f} s: {names}")
        return addresses

    def start(self, peers: Mapping[str, PeerAddress]) -> None:
        """Let every stage enter its loop."""
        self._running = {actor.run.remote(peers): stage for stage, actor in self._actors.items()}

    def ended(self, timeout_s: float = 0.0) -> list[Ended]:
        """The stages whose processes have ended since the last call, each reported once."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=timeout_s)
        ends = []
        for call in done:
            stage = self._running.pop(call)
            try:
                ends.append(Ended(stage, self._ray.get(call)))
            except self._ray.exceptions.RayError as error:
                ends.append(Ended(stage, None, _one_line(error)))
        return ends

    def _ray_node(self, plan: Plan, name: str) -> dict[str, Any]:
        """The live Ray node for a planned node: by its address, else by the custom resource `ravnest-NAME`."""
        wanted = plan.fleet.node(name).address
        alive: Sequence[dict[str, Any]] = [node for node in self._ray.nodes() if node["Alive"]]
        for node in alive:
            if node["NodeManagerAddress"] == wanted or f"{_RESOURCE_PREFIX}{name}" in node["Resources"]:
                return node
        here = ", ".join(sorted(node["NodeManagerAddress"] for node in alive))
        raise InvalidInput(
            f"no live Ray node is {name!r} (address {wanted or 'not given'}); Ray has {here}. Start it there with"
            f" `ray start --address … --resources '{{\"{_RESOURCE_PREFIX}{name}\": 1}}'`",
            key=f"nodes.{name}.address",
        )

    def _on_node(self, node_id: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
