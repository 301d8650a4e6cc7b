"""Machines that appear in a run's Ray cluster: each is measured, and asks to join the run.

In: the run's folder, and the address of its Ray. Out: requests in the folder, as `ravnest join --nodes` leaves them,
with figures that were measured: the speed on the job's own units, and the memory that is free. Uplinks and downlinks
are assumed where one machine comes alone, since to measure them would take them from those that train; machines that
come together are measured with each other. What was there when the watch began, and is not in the plan, is left alone:
it was there when somebody planned without it.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cluster_planner import Fleet, Plan, load_plan
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.run_lock import LOCK
from ravnest.driver.node_requests import NodeRequest, put_request
from ravnest.driver.ray.code_shipping import job_code
from ravnest.driver.ray.session import RayNode, RaySession
from ravnest.errors import InvalidInput, RavnestError
from ravnest.job.config import job_from_mapping
from ravnest.profiling.node_agents import RayAgents, named_nodes
from ravnest.profiling.profile import ProfileRequest, profile

LOOK_EVERY_S = 5.0
TRANSFER_S = 1.0
PEERS = 2


TRIES = 3
"""So often it is tried to let a node in: it may not be ready yet, or the disk may be full for a while."""


class Appearing:
    """Tells which nodes have come since the first look."""

    def __init__(self, fleet: Fleet) -> None:
        self._planned = {node.name: node.address for node in fleet.nodes}
        self._seen: set[str] | None = None
        """The ids of the nodes that were seen; None before the first look."""
        self._failed = Counter[str]()
        """By id of a node: how often it could not be let in."""

    def look(self, nodes: Sequence[RayNode]) -> dict[str, RayNode]:
        """Return by name the nodes that are new, alive, take work, and are not in the plan."""
        here = [node for node in nodes if node.alive and node.works]
        strange = [node for node in here if not any(node.is_of(*each) for each in self._planned.items())]
        before, self._seen = self._seen, {*(self._seen or ()), *(node.node_id for node in strange)}
        new = [] if before is None else [node for node in strange if node.node_id not in before]
        return {
            name if name not in self._planned else f"{name}-{node.node_id[:6]}": node
            for name, node in named_nodes(new, {}).items()
        }

    def failed(self, nodes: Collection[RayNode]) -> bool:
        """These could not be let in. Returns whether the next look finds any of them again."""
        self._failed.update(node.node_id for node in nodes)
        again = {node.node_id for node in nodes if self._failed[node.node_id] < TRIES}
        self._seen = (self._seen or set()) - again
        return bool(again)


def watch(run: Path, address: str, tell: Callable[[str], None], goes_on: Callable[[], bool]) -> None:
    """Let machines that appear in the Ray at `address` join the run, until it is over or `goes_on` says no.

    Raises InvalidInput where no run goes on in the folder, and RunFailed where Ray cannot be joined.
    """
    if not (run / LOCK).exists():
        raise InvalidInput("no run goes on here", path=str(run))
    plan = load_plan(RunFolder(run).plan)
    job = job_from_mapping(plan.job, path=str(RunFolder(run).plan), under="job.")
    session = RaySession(address, job_code(job, plan.job_file))
    try:
        appearing = Appearing(plan.fleet)
        while (run / LOCK).exists() and goes_on():
            found = appearing.look(session.nodes())
            if found:
                tell(f"measuring {', '.join(found)}")
                let_in(run, found, lambda nodes: _measured(session, plan, nodes), appearing, tell)
            time.sleep(LOOK_EVERY_S)
    finally:
        session.close()


def let_in(
    run: Path,
    found: Mapping[str, RayNode],
    measure: Callable[[Mapping[str, RayNode]], Fleet],
    appearing: Appearing,
    tell: Callable[[str], None],
) -> None:
    """Measure these nodes and leave a request for each. Where that fails, which is told, they are new once more at the
    next look, as long as it was not tried too often."""
    try:
        fleet = measure(found)
        for node in fleet.nodes:
            put_request(run, NodeRequest("join", node.name, fleet=fleet))
            tell(f"{node.name} asks to join")
    except RavnestError as error:
        then = "it is tried again" if appearing.failed(found.values()) else "that is not tried any more"
        tell(f"{', '.join(found)} cannot join: {error}; {then}")


def _measured(session: RaySession, plan: Plan, found: Mapping[str, RayNode]) -> Fleet:
    job = job_from_mapping(plan.job, under="job.")
    places = {name: None if node.name == name else node.address for name, node in found.items()}
    asked = ProfileRequest(job, Path(plan.job_file), PEERS, TRANSFER_S, plan.seed, plan.fleet)
    with RayAgents(session, {}, places) as agents:
        measured = profile(agents, asked, _unheard)
    return addressed(measured.fleet, {name for name, at in places.items() if at is None})


def addressed(fleet: Fleet, by_resource: Collection[str]) -> Fleet:
    """Return the fleet without the addresses of nodes that are found by their resource: several may share one."""
    nodes = tuple(replace(node, address=None) if node.name in by_resource else node for node in fleet.nodes)
    return replace(fleet, nodes=nodes)


def _unheard(step: str) -> None:
    """Nobody asked."""
