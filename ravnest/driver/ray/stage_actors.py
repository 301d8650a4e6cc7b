"""The stages of a run, and Ray's actors that start and hear them.

In: the setup of each stage, and the node that it runs on. Out: running processes, their addresses, and how each ended.
session.py connects to Ray; stage_host.py is what runs in the actor.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from cluster_planner import Plan
from ravnest.driver.ray.code_shipping import JobCode
from ravnest.driver.ray.head_watch import HeadWatch
from ravnest.driver.ray.planned_nodes import nodes_of_plan, ray_node
from ravnest.driver.ray.processes_here import ProcessesHere
from ravnest.driver.ray.ready_processes import ReadyProcesses
from ravnest.driver.ray.session import LOOPBACK, RayNode, RaySession, one_line
from ravnest.driver.ray.stage_host import Reply, StageActor
from ravnest.errors import InvalidInput, NodeLost, RavnestError, RunFailed
from ravnest.job.config import data_of_node
from ravnest.pipeline import stage_place
from ravnest.stage.messages import ALIVE_EVERY_S, STOOD_STILL_S
from ravnest.stage.own_process import StageOrder, StageOutcome, heard, packed, told
from ravnest.stage.setup import StageAddress, StageSetup
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import PeerAddress

_END_S = 5.0
"""How long an actor may take to end its stage, before it is killed itself."""

SAYS_HOW_S = 2.0
"""How long an actor may take to say how its process has ended, where the driver sees on its own machine that it has."""


@dataclass(frozen=True)
class StageEnded:
    """The process of a stage has ended.

    `outcome` is what it has said of itself. It is None where the process died; then `reason` says how, in words.
    """

    stage: str
    outcome: StageOutcome | None
    reason: str = ""
    unheard: bool = False
    """Whether nothing is known of the process: Ray has lost the actor that watched it."""


class RayCluster:
    """The actors of one run, and the session of Ray that they run in.

    It is a context manager: leaving it kills all actors and closes the session.
    """

    def __init__(
        self,
        address: str | None,
        code: JobCode | None = None,
        log: Path | None = None,
        now: Callable[[], float] = time.monotonic,
        beside: Callable[[Plan], Collection[str]] = lambda plan: (),
    ) -> None:
        """Join the Ray cluster at `address`, whose nodes get the job's `code`; None starts Ray on this machine.

        What Ray says is appended to the file `log`; `now` is the clock, in seconds; `beside` names the stages beside
        which a ready process is kept. Raises RunFailed or InvalidInput.
        """
        self._now = now
        self._session = RaySession(address, code, log)
        self._ray = self._session.ray
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}
        self._preparing: dict[Any, str] = {}
        """By call that is to make a stage listen, of those that begin anew: the stage."""
        self._otherwise: dict[str, Callable[[], None]] = {}
        """By such a stage whose actor rested before: what starts it in another one, where that is dead."""
        self.adopted = ProcessesHere({})
        """The stages' processes that another driver has started."""
        self._here = ProcessesHere({})
        """Those that this driver has started."""
        self._head = None if address is None or self._session.is_local else HeadWatch(address)
        self._beside = beside
        self.ends_told = set[str]()
        """The stages whose processes have ended, as their machines tell, which answer so. Until `end`."""
        self._nodes: dict[str, str] = {}
        """By stage that has an actor: its node."""
        self._ready = ReadyProcesses(self._ray)
        self._ending: dict[Any, Any] = {}
        """By call that is to end a stage: its actor, which is not needed any more then."""

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.end([*self._actors, *self.adopted.stages])
            self._end_actors(self._ready.leave())
            if self._ending:
                with suppress(self._ray.exceptions.RayError):
                    self._ray.wait(list(self._ending), num_returns=len(self._ending), timeout=_END_S)
            for actor in self._ending.values():
                self._ray.kill(actor)
        finally:
            if self._head is not None:
                self._head.close()
            self._session.close()

    @property
    def host(self) -> str:
        """The address at which this process is reached by the stages."""
        return self._session.host

    def news(self) -> list[str]:
        """What the user is to know of Ray itself, in sentences, each once."""
        return [] if self._head is None else self._head.take()

    def cores(self) -> int:
        """How many CPU cores this process may use."""
        return len(os.sched_getaffinity(0))

    def threads(self, plan: Plan, only: Collection[str] | None = None) -> dict[str, int]:
        """Return the torch threads of a stage on each planned node, or on those in `only`. The stages on one machine
        share its cores. Raises InvalidInput for a node that Ray does not have.
        """
        stages = (stage for cluster in plan.clusters for stage in cluster.stages)
        nodes = [stage.node for stage in stages if only is None or stage.node in only]
        if self._session.is_local:
            return dict.fromkeys(nodes, max(1, self.cores() // len(nodes)))
        found = self._found(plan, nodes)
        shared = [node.node_id for node in found.values()]
        return {name: max(1, node.cores // shared.count(node.node_id)) for name, node in found.items()}

    def place(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None:
        """Ask Ray for an actor for each stage, on the node that `nodes` names by stage. They start at the same time."""
        self._place(plan, setups, nodes, self._found(plan, [nodes[stage] for stage in setups]))

    def _place(
        self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str], found: Mapping[str, RayNode]
    ) -> None:
        for stage, setup in setups.items():
            node = nodes[stage]
            self._actors[stage] = self._actor(stage, node, found, self._order(plan, setup, node, found))
            self._nodes[stage] = node
        self._ready.know(setups)
        self._ready.want(setups, self._beside(plan))

    def _actor(self, name: str, node: str, found: Mapping[str, RayNode], order: bytes) -> Any:
        """Ask Ray for an actor on a node of the plan; `found` has Ray's by their names."""
        # One call waits for the process, one for the ready process, and others may end one or both meanwhile.
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 4}
        there = {} if self._session.is_local else self._session.on_node(found[node])
        return self._ray.remote(StageActor).options(**options, **there).remote(name, order)

    def _order(self, plan: Plan, setup: StageSetup, node: str, found: Mapping[str, RayNode]) -> bytes:
        """What a process is to be on a node of the plan; `found` has Ray's by their names."""
        if self._session.is_local:
            return packed(StageOrder(setup, LOOPBACK))
        at_node = data_of_node(setup.job, plan.fleet.node(node).data)
        spare = setup.successor
        with_job = replace(setup, job=at_node, successor=None if spare is None else replace(spare, job=at_node))
        shipped = Path(plan.job_file).name if self._session.ships_code else None
        return packed(StageOrder(with_job, found[node].address, shipped))

    def adopt(self, stages: Mapping[str, StageAddress], setups: Mapping[str, StageSetup]) -> None:
        """These stages of the run are at work already: another driver has started them. `setups`: of any stages."""
        self.adopted = ProcessesHere(stages)
        self._ready.know(setups)

    def release(self) -> None:
        """Let all stages live on: they are another driver's now."""
        self._actors.clear()
        self.adopted = ProcessesHere({})

    def alive(self, plan: Plan) -> set[str]:
        """The nodes of the plan that can run stages now. Where Ray was started on this machine, all are it."""
        return nodes_of_plan(plan, None if self._session.is_local else self._session.nodes())

    def draining(self, plan: Plan) -> set[str]:
        """The nodes of the plan that Ray was told to drain: they are about to go."""
        return set() if self._session.is_local else nodes_of_plan(plan, self._session.draining())

    def on_node(self, node: str) -> list[str]:
        """The stages that this driver has started on a node."""
        return [stage for stage, where in self._nodes.items() if where == node and stage in self._actors]

    def send(self, stages: Iterable[str], what: Signals) -> None:
        """Send a signal to the processes of these stages, as far as they are on this machine."""
        self._here.send(stages, what)

    def machine_gone(self, node: str) -> None:
        """What waits on a node to become a stage is none any more: a rehearsal acts out that its machine is gone."""
        for stage in self.on_node(node):
            self._ready.forget(stage)
        self._end_actors(self._ready.leave([node]))

    def begin(self, plan: Plan, setups: Mapping[str, StageSetup]) -> None:
        """End what is left of these stages, and start a process for each, on the node that the plan says: where a ready
        one waits there, it is that.

        Raises InvalidInput for a node that Ray does not have.
        """
        self.begin_spares(plan, setups, {n: plan.cluster(s.cluster).stages[s.index].node for n, s in setups.items()})

    def begin_spares(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None:
        """The same for processes on the nodes that `nodes` names, whatever the plan says."""
        self.end(list(setups))
        found = self._found(plan, [nodes[name] for name in setups])
        there = {name: actor for name in setups if (actor := self._ready.take(nodes[name])) is not None}
        fresh = {name: each for name, each in setups.items() if name not in there}
        self._end_actors(self._ready.leave([nodes[name] for name in fresh]))  # the memory there is for the stage
        self._place(plan, fresh, nodes, found)  # asked again, Ray might lack a node now, and what was taken be lost
        self._preparing |= {self._actors[stage].prepare.remote(): stage for stage in fresh}
        self._ready.want(there, self._beside(plan))
        for name, actor in there.items():
            self._actors[name], self._nodes[name] = actor, nodes[name]
            self._preparing[actor.again.remote(name, self._order(plan, setups[name], nodes[name], found))] = name
            self._otherwise[name] = partial(self.begin_spares, plan, {name: setups[name]}, nodes)

    def renamed(self, before: str, after: str) -> None:
        """The process of the stage `before` is that of `after` from now on. What is left of that one ends."""
        self.end([after])
        self._actors[after], self._nodes[after] = self._actors.pop(before), self._nodes.pop(before)
        self._running = {call: after if stage == before else stage for call, stage in self._running.items()}

    def prepared(self, stages: list[str]) -> dict[str, StageAddress | str]:
        """Those of these stages that listen, with their addresses, or have failed, with the reason in one line."""
        calls = {call: stage for call, stage in self._preparing.items() if stage in stages}
        if not calls:
            return {}
        ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0.0)
        found: dict[str, StageAddress | str] = {}
        for call in ready:
            otherwise = self._otherwise.pop(stage := self._preparing.pop(call), None)
            try:
                said = _opened(self._ray.get(call))
            except self._ray.exceptions.RayError as error:
                said = one_line(getattr(error, "cause", None) or error)
                if otherwise is not None:
                    with suppress(RavnestError):  # where its node is gone, too, that its actor is dead says enough
                        otherwise()
                        continue
            found[stage] = said if isinstance(said, StageAddress | str) else one_line(said)
        self._here.add({stage: at for stage, at in found.items() if isinstance(at, StageAddress)})
        return found

    def enter(self, peers: Mapping[str, PeerAddress], stages: list[str]) -> None:
        """Let these stages enter their loops. `peers` are those that they know at first."""
        said = told(peers)
        self._running |= {self._actors[stage].run.remote(said): stage for stage in stages}
        for stage in stages:
            self._ready.entered(stage, self._actors[stage])

    @property
    def ready(self) -> set[str]:
        """The stages whose processes have ended, and on whose nodes a ready process waits to take their place."""
        return self._ready.waiting

    @property
    def ready_nodes(self) -> set[str]:
        """The nodes on which a ready process waits, which can be any stage."""
        return self._ready.nodes(self._nodes)

    def keep_ready(self, plan: Plan, free: Collection[str], gone: Collection[str]) -> None:
        """Make a process ready on each node of the plan where nothing runs, `free`, and beside adopted stages; and end
        those on nodes that are `gone`. Where no stage of the plan has one beside it, none is made."""
        self._end_actors(self._ready.leave(gone))
        setup, beside = self._ready.setup, self._beside(plan)
        if setup is None or not beside:
            return
        adopted = (stage_place(stage) for stage in self.adopted.everywhere.intersection(beside))
        free = {*free, *(plan.cluster(name).stages[index].node for name, index in adopted)}.difference(gone)
        there = self._ready.untried(free) - {self._nodes[stage] for stage in self._actors}
        found = self._found(plan, sorted(there)) if there else {}
        for node in sorted(there):
            actor = self._actor(f"ready on {node}", node, found, self._order(plan, setup, node, found))
            self._ready.coming(node, actor)

    def end(self, stages: list[str]) -> None:
        """End the processes of these stages, whatever they do. `ended` does not tell of them any more."""
        self.adopted.end(stages)
        self._here.forget(stages)
        self.ends_told.difference_update(stages)
        for stage in stages:
            actor, _ = self._actors.pop(stage, None), self._otherwise.pop(stage, None)
            if actor is not None and self._ready.rest(stage, self._nodes[stage], actor):
                actor.rest.remote()
            elif actor is not None:
                self._ending[actor.end.remote()] = actor
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
                said = _opened(self._ray.get(call))
            except self._ray.exceptions.OutOfMemoryError as error:
                raise NodeLost(f"{calls[call]} could not start: {_OUT_OF_MEMORY}", calls[call]) from error
            except self._ray.exceptions.RayError as error:
                raise NodeLost(f"{calls[call]} died while starting: {one_line(error)}", calls[call]) from error
            if isinstance(said, str):
                raise NodeLost(f"{calls[call]} died while starting: {said}", calls[call])
            if isinstance(said, InvalidInput):
                raise said
            if not isinstance(said, StageAddress):
                raise RunFailed(f"{calls[call]} could not start: {one_line(said)}")
            addresses[calls[call]] = said
        if late:
            names = ", ".join(sorted(calls[call] for call in late))
            raise NodeLost(f"not ready after {timeout_s:.0f} s: {names}", calls[late[0]] if len(late) == 1 else "")
        self._here.add(addresses)
        return addresses

    def start(self, peers: Mapping[str, PeerAddress]) -> None:
        """Let every stage enter its loop. `peers` are the addresses of all stages and of the driver."""
        self._running = {}
        self.enter(peers, list(self._actors))

    def ended(self, timeout_s: float = 0.0) -> list[StageEnded]:
        """The stages whose processes have ended since the last call, each once. Waits up to `timeout_s` for one.

        Their actors tell. Where one on this machine has ended and its actor does not say how, the operating system
        counts: Ray may be slow, or stand still.
        """
        self._let_go()
        self._end_actors(self._ready.look())
        ends = [StageEnded(stage, None, "its process has ended") for stage in self.adopted.take_ended()]
        running, no_memory = list(self._running), self._ray.exceptions.OutOfMemoryError
        done, _ = self._ray.wait(running, num_returns=len(running), timeout=timeout_s) if running else ([], [])
        for call in done:
            stage = self._running.pop(call)
            try:
                said = _opened(self._ray.get(call))
            except (no_memory, self._ray.exceptions.RayError) as error:
                self._ready.forget(stage)
                why = _OUT_OF_MEMORY if isinstance(error, no_memory) else one_line(error)
                ends.append(StageEnded(stage, None, why, unheard=True))
            else:
                died = isinstance(said, str)
                ends.append(StageEnded(stage, None, said) if died else StageEnded(stage, said))
                self._ready.ended(stage)
        ends += self._untold()
        self._here.forget([end.stage for end in ends])
        self.ends_told |= {end.stage for end in ends if not end.unheard}
        return ends

    def _untold(self) -> list[StageEnded]:
        """The ends that are seen here, and of which no actor has told for SAYS_HOW_S."""
        untold = self._here.gone_for(set(self._running.values()), SAYS_HOW_S, self._now())
        self._running = {call: stage for call, stage in self._running.items() if stage not in untold}
        return [StageEnded(stage, None, "its process has ended") for stage in untold]

    def _end_actors(self, actors: Iterable[Any]) -> None:
        self._ending |= {actor.end.remote(): actor for actor in actors}

    def _let_go(self) -> None:
        """Kill the actors whose stages have been ended."""
        if not self._ending:
            return
        done, _ = self._ray.wait(list(self._ending), num_returns=len(self._ending), timeout=0.0)
        for call in done:
            self._ray.kill(self._ending.pop(call))

    def _found(self, plan: Plan, names: Sequence[str]) -> dict[str, RayNode]:
        """Ray's nodes by their names in the plan; none where Ray was started on this machine, which is all of them."""
        if self._session.is_local:
            return {}
        alive = [node for node in self._session.nodes() if node.alive]
        return {name: ray_node(plan, name, alive) for name in names}


_OUT_OF_MEMORY = (
    "Ray has ended its actor to free memory: the machine has too little for what runs there; give the node a smaller"
    " `memory_gb` in nodes.yaml and plan again, or raise RAY_memory_usage_threshold where Ray is started"
)


def _opened(reply: Reply) -> Any:
    """What a stage's process has said, or in words how it ended."""
    return heard(reply[1]) if reply[0] == "said" else reply[1]
