"""The stages of a session, from their first process to the session's end: started anew, or taken over.

In: a run that is prepared, and Ray. Out: the setups of stages, where they listen, the driver's endpoint, and where the
session stands that another driver has begun. Whoever leaves a session by an error tells its stages to stop. Until a
driver has taken a run over, they are not its own: it lets them wait for the next, and leaves driver.json as it is.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from cluster_planner import Plan
from ravnest.driver.imitation import Imitation
from ravnest.driver.loop_parts import driver_endpoint
from ravnest.driver.observe import report
from ravnest.driver.preparation import Prepared, StageState, check_same_data, states_for
from ravnest.driver.ray.processes_here import ProcessesHere
from ravnest.driver.run_store import DriverState, RunStore, TakenOver, addresses_in, free_term
from ravnest.driver.stage_setups import stage_setups
from ravnest.driver.standing import Standing
from ravnest.driver.taking_over import NothingToTakeOver, ask
from ravnest.job.materials import search_dirs
from ravnest.recovery import planned_shares
from ravnest.stage import messages as m
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.setup import StageAddress, StageSetup
from ring_allreduce import TransportError
from ring_allreduce.transport import TOKEN_BYTES, Delivery, Endpoint, Keys, Lane, PeerAddress


class StageProcesses(Protocol):
    """Who starts and ends the processes of stages: Ray in a real run."""

    adopted: ProcessesHere

    @property
    def host(self) -> str: ...

    def threads(self, plan: Plan, only: Collection[str] | None = None) -> dict[str, int]: ...

    def place(self, plan: Plan, setups: Mapping[str, StageSetup], nodes: Mapping[str, str]) -> None: ...

    def prepare(self, timeout_s: float) -> dict[str, StageAddress]: ...

    def start(self, peers: Mapping[str, PeerAddress]) -> None: ...

    def adopt(self, stages: Mapping[str, StageAddress], setups: Mapping[str, StageSetup]) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True)
class SessionStages:
    """The stages of a session, and how the driver reaches them."""

    endpoint: Endpoint
    store: RunStore
    term: int
    places: dict[str, StageAddress]
    states: dict[str, StageState] = field(default_factory=dict)
    """What stages are to be handed that were started anew. Whoever hands it out lets go of it."""
    standing: Standing | None = None
    """Where the session stands that another driver has begun; None where this one begins it."""
    early: list[Delivery] = field(default_factory=list)
    """What stages have said already, beyond where they are."""
    born: Mapping[str, int] = field(default_factory=dict)
    """By stage, the epoch of membership in which its process began."""

    @property
    def peers(self) -> dict[str, PeerAddress]:
        """Where each stage listens."""
        return {stage: at.peer for stage, at in self.places.items()}


class SetupsByPlan:
    """Makes the setups of all stages of a session, by its plan or by one with other nodes for some of them."""

    def __init__(
        self,
        prepared: Prepared,
        processes: StageProcesses,
        keys: Mapping[str, Keys] | None,
        imitate: Imitation | None,
        timeline: bool,
    ) -> None:
        before = prepared.takes_over
        self._prepared = prepared
        self._processes = processes
        self.keys = keys
        self.imitate = imitate
        self.timeline = timeline
        self.threads = processes.threads(prepared.plan) if before is None else dict(before.threads)
        """By node, the threads of a stage there; those of nodes that come are added."""
        self.shares = {**planned_shares(prepared.plan), **(before.shares if before else {})}
        self.token = secrets.token_bytes(TOKEN_BYTES) if before is None else bytes.fromhex(before.token)

    def __call__(self, plan: Plan) -> dict[str, StageSetup]:
        """Raises NodeNotThere where Ray does not have a node of the plan."""
        came = {stage.node for cluster in plan.clusters for stage in cluster.stages} - self.threads.keys()
        self.threads.update(self._processes.threads(plan, came) if came else {})
        return stage_setups(
            plan,
            self._prepared.job,
            self._prepared.captured,
            search_dirs=search_dirs(self._prepared.plan.job_file),
            threads=self.threads,
            total_samples=self._prepared.total_samples,
            token=self.token,
            keys=self.keys,
            imitate=self.imitate,
            timeline=self.timeline,
            initial=self._prepared.initial,
            shares=self.shares,
        )


@contextmanager
def started(
    prepared: Prepared,
    processes: StageProcesses,
    setups: Mapping[str, StageSetup],
    nodes: Mapping[str, str],
    keys: Mapping[str, Keys] | None,
) -> Iterator[SessionStages]:
    """Start all stages of the plan, on these nodes. Raises what `RayCluster.prepare` raises."""
    processes.place(prepared.plan, setups, nodes)
    states = states_for(setups, prepared.plan, prepared.job, prepared.resumed, prepared.initial)  # as they import torch
    places = processes.prepare(START_DEADLINE_S)
    check_same_data(prepared, {stage: at.samples for stage, at in places.items()}, nodes)
    endpoint = driver_endpoint(next(iter(setups.values())), processes.host, keys)
    stages = SessionStages(endpoint, RunStore(prepared.folder.driver, 0), 0, places, states)
    with _to_the_end(stages, processes):
        endpoint.connect(stages.peers)
        processes.start({**stages.peers, m.DRIVER: endpoint.address})
        yield stages


@contextmanager
def taken_over(
    prepared: Prepared,
    state: DriverState,
    processes: StageProcesses,
    setups: Mapping[str, StageSetup],
    keys: Mapping[str, Keys] | None,
    observer: report.Observer,
) -> Iterator[SessionStages]:
    """Take over the stages that another driver has left, by what it has written down.

    Raises NothingToTakeOver where no cluster is whole, and InvalidInput where the run's folder cannot be written. What
    ends this before the stages have answered leaves them waiting.
    """
    places = addresses_in(state)
    processes.adopt(places, setups)
    try:
        endpoint = driver_endpoint(next(iter(setups.values())), processes.host, keys)
    except BaseException:
        processes.release()
        raise
    try:
        endpoint.connect({stage: at.peer for stage, at in places.items()})
        observer.on(report.PhaseEvent("taking over", f"{len(places)} processes"))
        term = free_term(prepared.folder.driver, state.term)
        store = RunStore(prepared.folder.driver, term)
        store.claim(state, prepared.plan)
        answers = ask(endpoint, list(places), term, processes.adopted.is_gone)
    except BaseException:
        processes.release()
        endpoint.close()
        raise
    counts = {each.name: len(each.stages) for each in prepared.plan.clusters}
    standing = Standing.of(state, answers.positions, counts)
    born = {stage: at.born for stage, at in state.stages.items()}
    stages = SessionStages(endpoint, store, term, places, {}, standing, answers.early, born)
    with _to_the_end(stages, processes):
        if not standing.whole:
            raise NothingToTakeOver("no cluster of the run is there with all of its stages")
        yield stages


@contextmanager
def _to_the_end(stages: SessionStages, processes: StageProcesses) -> Iterator[None]:
    """Inside, the stages are this driver's, as long as no other takes them over."""
    try:
        yield
    except BaseException:
        if stages.store.is_anothers:
            processes.release()
            raise TakenOver from None
        for stage in stages.places:  # also those that nobody else can reach
            with suppress(TransportError):
                stages.endpoint.send(stage, Lane.PIPELINE, m.Stop())
        raise
    finally:
        stages.endpoint.close()
        stages.store.remove()
