"""The stages of a run as Ray's actors.

In: the setup of each stage, and the node that it runs on. Out: running processes, their addresses, and how each ended.
session.py connects to Ray.
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster_planner import Plan
from ravnest.driver.ray.code_shipping import JobCode
from ravnest.driver.ray.session import LOOPBACK, RESOURCE_PREFIX, RayNode, RaySession, one_line
from ravnest.errors import InvalidInput, NodeLost, RunFailed
from ravnest.job.config import data_of_node
from ravnest.stage.messages import ALIVE_EVERY_S, START_DEADLINE_S, STOOD_STILL_S
from ravnest.stage.orphan import LEAVE_S, Leash
from ravnest.stage.setup import StageAddress, StageSetup, UserCode
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import PeerAddress


@dataclass(frozen=True)
class StageOutcome:
    """How a stage's process ended. `error` is one line and `details` the traceback; both are None without an error."""

    error: str | None = None
    details: str | None = None


class StageActor:
    """One stage of one cluster, in a process of its own."""

    def __init__(self, setup: StageSetup, host: str, shipped: str | None = None, *, leash: Leash | None = None) -> None:
        """
        Arguments:
            host: the address at which other stages reach this machine.
            shipped: where Ray has brought the job's code, the name of the job file in this process's working folder;
                None where the job lies at the same place as for the driver.
            leash: ends the process where the driver lets nothing be heard; None takes one that ends this process.
        """
        self._leash = Leash() if leash is None else leash
        self._leash.allow(START_DEADLINE_S)
        if shipped is not None:
            here = Path.cwd()
            setup = replace(setup, code=UserCode(str(here / shipped), (str(here),)))
        self._setup = setup
        self._host = host

    def prepare(self) -> StageAddress:
        """Import torch, load the data, and bind the endpoint. Returns its address and facts about the process."""
        sys.path[:0] = [path for path in self._setup.code.search_dirs if path not in sys.path]
        from ravnest.stage.process import (
            StageProcess,
        )  # imports torch: not before now, so that all actors import it at the same time

        self._process = StageProcess(self._setup, self._host)
        cores = len(os.sched_getaffinity(0))
        samples = self._process.samples
        self._leash.allow(START_DEADLINE_S)  # the others may take longer
        return StageAddress(self._process.address, socket.gethostname(), os.getpid(), cores, samples)

    def run(self, peers: Mapping[str, PeerAddress]) -> StageOutcome:
        """Train until the run is over. A failure is returned and not raised, so that the driver can name the stage in
        one line. The process ends by itself soon after."""
        self._leash.release()  # a stage that runs has deadlines of its own
        try:
            with notice_on_sigterm(self._process.give_notice):
                self._process.run(peers)
        except BaseException as error:  # noqa: BLE001 - every error is reported to the driver
            line = " ".join(str(error).split()) or type(error).__name__
            return StageOutcome(line, traceback.format_exc())
        finally:
            self._leash.allow(LEAVE_S)
        return StageOutcome()


@contextmanager
def notice_on_sigterm(notice: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGTERM gives notice and ends nothing. Only a main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class StageEnded:
    """The process of a stage has ended.

    `outcome` is what its `run` has returned. It is None where the process died; then `reason` says how, in words.
    """

    stage: str
    outcome: StageOutcome | None
    reason: str = ""


class RayCluster:
    """The actors of one run, and the session of Ray that they run in.

    It is a context manager: leaving it kills all actors and closes the session.
    """

    def __init__(self, address: str | None, code: JobCode | None = None, log: Path | None = None) -> None:
        """Join the Ray cluster at `address`, whose nodes get the job's `code`; None starts Ray on this machine.

        What Ray says is appended to the file `log`. Raises RunFailed or InvalidInput.
        """
        self._session = RaySession(address, code, log)
        self._ray = self._session.ray
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}
        self._preparing: dict[Any, str] = {}
        """By call that is to make a stage listen, of those that begin anew: the stage."""

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *exc: object) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._session.close()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the stages."""
        return self._session.host

    def cores(self) -> int:
        """How many CPU cores this process may use."""
        return len(os.sched_getaffinity(0))

    def threads(self, plan: Plan, only: Collection[str] | None = None) -> dict[str, int]:
        """Return the torch threads of a stage on each planned node, or on those in `only`. The stages on one machine
        share its cores. Raises InvalidInput for a node that Ray does not have.
        """
        nodes = [stage.node for cluster in plan.clusters for stage in cluster.stages]
        nodes = nodes if only is None else [node for node in nodes if node in only]
        if self._session.is_local:
            return dict.fromkeys(nodes, max(1, self.cores() // len(nodes)))
        found = self._ray_nodes(plan, nodes)
        shared = [node.node_id for node in found.values()]
        return {name: max(1, node.cores // shared.count(node.node_id)) for name, node in found.items()}

    def place(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None:
        """Ask Ray for an actor for each stage, on the node that `nodes` names by stage. They start at the same time."""
        remote = self._ray.remote(StageActor)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        if self._session.is_local:
            for stage, setup in setups.items():
                self._actors[stage] = remote.options(**options).remote(setup, LOOPBACK)
            return
        found = self._ray_nodes(plan, list(nodes.values()))
        shipped = Path(plan.job_file).name if self._session.ships_code else None
        for stage, setup in setups.items():
            node = found[nodes[stage]]
            at_node = data_of_node(setup.job, plan.fleet.node(nodes[stage]).data)
            there = remote.options(**options, **self._session.on_node(node))
            self._actors[stage] = there.remote(replace(setup, job=at_node), node.address, shipped)

    def alive(self, plan: Plan) -> set[str]:
        """The nodes of the plan that can run stages now. Where Ray was started on this machine, all are it."""
        return _alive(plan, None if self._session.is_local else self._session.nodes())

    def begin(self, plan: Plan, setups: Mapping[str, StageSetup]) -> None:
        """End what is left of these stages, and start an actor for each, on the node that the plan says.

        Raises InvalidInput for a node that Ray does not have.
        """
        self.end(list(setups))
        self.place(plan, setups, {name: plan.cluster(s.cluster).stages[s.index].node for name, s in setups.items()})
        self._preparing |= {self._actors[stage].prepare.remote(): stage for stage in setups}

    def prepared(self, stages: list[str]) -> dict[str, StageAddress | str]:
        """Those of these stages that listen, with their addresses, or have failed, with the reason in one line."""
        calls = {call: stage for call, stage in self._preparing.items() if stage in stages}
        if not calls:
            return {}
        ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0.0)
        found: dict[str, StageAddress | str] = {}
        for call in ready:
            stage = self._preparing.pop(call)
            try:
                found[stage] = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                found[stage] = one_line(getattr(error, "cause", None) or error)
        return found

    def enter(self, peers: Mapping[str, PeerAddress], stages: list[str]) -> None:
        """Let these stages enter their loops. `peers` are those that they know at first."""
        self._running |= {self._actors[stage].run.remote(peers): stage for stage in stages}

    def end(self, stages: list[str]) -> None:
        """End the processes of these stages, whatever they do. `ended` does not tell of them any more."""
        for stage in stages:
            actor = self._actors.pop(stage, None)
            if actor is not None:
                self._ray.kill(actor)
        self._running = {call: stage for call, stage in self._running.items() if stage not in stages}
        self._preparing = {call: stage for call, stage in self._preparing.items() if stage not in stages}

    def prepare(self, timeout_s: float, now: Callable[[], float] = time.monotonic) -> dict[str, StageAddress]:
        """Wait until every stage listens, and return their addresses. `timeout_s` does not count time in which this
        process stood still by the clock `now`.

        Raises:
            NodeLost: a process died, or stages were not ready in time; the message names them.
            InvalidInput: what the user's code or data did on a node.
            RunFailed: a stage could not start for another reason.
        """
        calls = {actor.prepare.remote(): stage for stage, actor in self._actors.items()}
        awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
        until_s = awake.at(now()) + timeout_s
        ready, late = self._ray.wait(list(calls), num_returns=len(calls), timeout=ALIVE_EVERY_S)
        while late and awake.at(now()) < until_s:
            ready, late = self._ray.wait(list(calls), num_returns=len(calls), timeout=ALIVE_EVERY_S)
        addresses = {}
        for call in ready:
            try:
                addresses[calls[call]] = self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause if error.cause is not None else error
                if isinstance(cause, InvalidInput):
                    raise cause from None
                raise RunFailed(f"{calls[call]} could not start: {one_line(cause)}") from error
            except self._ray.exceptions.RayActorError as error:
                raise NodeLost(f"{calls[call]} died while starting: {one_line(error)}") from error
        if late:
            names = ", ".join(sorted(calls[call] for call in late))
            raise NodeLost(f"not ready after {timeout_s:.0f} s: {names}")
        return addresses

    def start(self, peers: Mapping[str, PeerAddress]) -> None:
        """Let every stage enter its loop. `peers` are the addresses of all stages and of the driver."""
        self._running = {actor.run.remote(peers): stage for stage, actor in self._actors.items()}

    def ended(self, timeout_s: float = 0.0) -> list[StageEnded]:
        """The stages whose processes have ended since the last call, each once. Waits up to `timeout_s` for one."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=timeout_s)
        ends = []
        for call in done:
            stage = self._running.pop(call)
            try:
                ends.append(StageEnded(stage, self._ray.get(call)))
            except self._ray.exceptions.RayError as error:
                ends.append(StageEnded(stage, None, one_line(error)))
        return ends

    def _ray_nodes(self, plan: Plan, names: Sequence[str]) -> dict[str, RayNode]:
        alive = [node for node in self._session.nodes() if node.alive]
        return {name: _ray_node(plan, name, alive) for name in names}


def nodes_alive(plan: Plan, address: str | None, log: Path) -> set[str]:
    """The nodes of the plan that can run stages, while no run is in the Ray cluster at `address`.

    With None stages run on this machine, and all are it. Raises RunFailed or InvalidInput where Ray cannot be asked.
    """
    if address is None:
        return _alive(plan, None)
    session = RaySession(address, None, log)
    try:
        return _alive(plan, session.nodes())
    finally:
        session.close()


def _alive(plan: Plan, listed: Sequence[RayNode] | None) -> set[str]:
    """The nodes of the plan that are among the `listed` and alive; None: Ray was started on this machine."""
    here = None if listed is None else [node for node in listed if node.alive]
    return {
        node.name
        for node in plan.fleet.nodes
        if here is None or any(each.is_of(node.name, node.address) for each in here)
    }


def _ray_node(plan: Plan, name: str, alive: Sequence[RayNode]) -> RayNode:
    """The live Ray node of a planned node: by its address, or else by the custom resource `ravnest-NAME`."""
    wanted = plan.fleet.node(name).address
    found = next((node for node in alive if node.is_of(name, wanted)), None)
    if found is None:
        here = ", ".join(sorted(node.address for node in alive))
        raise InvalidInput(
            f"no live Ray node is {name!r} (address {wanted or 'not given'}); Ray has {here}. Start it there with"
            f" `ray start --address … --resources '{{\"{RESOURCE_PREFIX}{name}\": 1}}'`",
            key=f"nodes.{name}.address",
        )
    return found
