"""The Python door of ravnest to machines: profile measures them, doctor says what would make a run on them fail.

In: an address of Ray, or nothing for this machine alone, and files or the objects that they describe. Out: a `Profile`
and a `DoctorReport`. The door to a run on the machines is ravnest/api.py. A function imports what it needs when it is
called, so that a mistake in a file is reported before torch and Ray are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ravnest.errors import InvalidInput
from ravnest.files import StrPath, Tell, fleet_of, ignore, load_fleet, load_job, read_plan, told_to

if TYPE_CHECKING:
    from cluster_planner import Fleet, Plan
    from ravnest.job.config import Job
    from ravnest.profiling.doctor import DoctorReport
    from ravnest.profiling.profile import Profile


LEAST_PEERS = 2
SHORTEST_TRANSFER_S, LONGEST_TRANSFER_S = 0.5, 60.0


def profile(
    job: Job | StrPath | None = None,
    *,
    address: str | None = None,
    known: Fleet | None = None,
    peers: int = 6,
    seconds: float = 4.0,
    seed: int = 0,
    progress: Tell | None = None,
    part: Callable[[float], None] | None = None,
    warn: Tell | None = None,
) -> Profile:
    """Measures what machines can do and what joins them. The result's `fleet` is what nodes.yaml describes.

    Arguments:
        job: the job, or its job.yaml, with whose units speed is measured; without it, those of a small transformer.
        address: HOST:PORT of a running Ray cluster, all of whose nodes are measured; without it, this machine alone.
        known: a fleet whose nodes keep their names, by address. `Profile.merged_into` writes what was measured over it.
        peers: with how many others, 2 at the least, each node exchanges data, where there are more than 12 nodes.
        seconds: how long each transfer takes, from 0.5 to 60.
        seed: of the choice of peers.
        progress: is told of each slow step as it begins.
        part: is told how far that step is, from 0 to 1, where it is known.
        warn: is told which files of the job's folder are not sent to the nodes.

    Raises:
        InvalidInput: for impossible `peers` and `seconds`, where nothing listens at `address`, or the job cannot be
            captured. RunFailed where Ray cannot be joined, or no machine could be measured.
    """
    if peers < LEAST_PEERS:
        raise InvalidInput(f"must be {LEAST_PEERS} or more, not {peers}", key="peers")
    if not SHORTEST_TRANSFER_S <= seconds <= LONGEST_TRANSFER_S:
        extent = f"from {SHORTEST_TRANSFER_S:g} to {LONGEST_TRANSFER_S:g}"
        raise InvalidInput(f"must be {extent}, not {seconds:g}", key="seconds")
    wanted = load_job(job) if isinstance(job, str | os.PathLike) else job
    job_file = Path(job) if isinstance(job, str | os.PathLike) else None if job is None else job.file
    from ravnest.profiling.node_agents import agents_at
    from ravnest.profiling.profile import ProfileRequest, profile

    names = {} if known is None else {node.address: node.name for node in known.nodes if node.address}
    asked = ProfileRequest(wanted, job_file, peers, seconds, seed, known)
    with agents_at(address, wanted, job_file, names, told_to(warn)) as agents:
        return profile(agents, asked, progress or ignore, part or ignore)


def doctor(
    file: StrPath | None = None,
    *,
    address: str | None = None,
    progress: Tell | None = None,
    warn: Tell | None = None,
) -> DoctorReport:
    """Says what would make a run fail, or be slower or stranger than planned, before it does.

    Arguments:
        file: a plan.yaml or a nodes.yaml that the machines are to fit; without it, what Ray has, or this machine.
        address: HOST:PORT of a running Ray cluster; without it, this machine alone, which would run every stage.
        progress: is told of each slow step as it begins.
        warn: is told what is possible and hardly meant, and where an edited plan predicts what is no longer true of it.

    Raises:
        InvalidInput: for a file that is neither, and a plan that disagrees with its job.
    """
    from cluster_planner import holds_plan

    path = None if file is None else Path(file)
    plan = read_plan(path, warn)[1] if path is not None and holds_plan(path) else None
    fleet = load_fleet(path, warn=warn) if path is not None and plan is None else None
    from ravnest.profiling.doctor import examine

    return examine(plan, fleet, path, address, progress or ignore)


def leave_run(run: StrPath, node: str) -> None:
    """Asks a run that goes on to let a node go with nothing lost: its cluster hands on what it has made, and leaves.

    Arguments:
        run: the run's folder, or its name in runs/.
        node: its name in the run's plan.

    Raises:
        InvalidInput: no run goes on there, or its plan has no such node.
    """
    _request(Path(run), "leave", node)


def join_run(run: StrPath, node: str, nodes: Fleet | StrPath | None = None, *, warn: Tell | None = None) -> None:
    """Tells a run that goes on that a node may run stages: one that had left it, or one that its plan does not have.

    Arguments:
        run, node: as of `leave_run`.
        nodes: for a node that the plan does not have, a fleet with it, or its nodes.yaml. What that says of links
            between the node and those of the run counts, too.
        warn: is told, in a line each, what is possible but probably not meant.

    Raises:
        InvalidInput: as `leave_run`, or where `nodes` has no such node.
    """
    fleet = None if nodes is None else fleet_of(nodes, warn)[0]
    _request(Path(run), "join", node, fleet)


def join_appearing(run: StrPath, address: str, tell: Tell) -> None:
    """Lets machines join a run as they appear in its Ray cluster, until the run or the process that called this ends.

    Arguments:
        run: the run's folder on this machine, or its name in runs/.
        address: HOST:PORT of the Ray cluster.
        tell: is told of each machine.

    Raises:
        InvalidInput: no run goes on there, or nothing listens at `address`. RunFailed where Ray cannot be joined.
    """
    from ravnest.driver.ray.session import check_address
    from ravnest.profiling.appearing import watch
    from ravnest.results.steering import require_running

    check_address(address)
    parent = os.getppid()
    watch(require_running(Path(run)), address, tell, lambda: os.getppid() == parent)


def _request(run: Path, kind: Literal["leave", "join"], node: str, came: Fleet | None = None) -> None:
    from cluster_planner import load_plan
    from ravnest.checkpoints.run_folder import RunFolder
    from ravnest.driver.node_requests import NodeRequest, put_request
    from ravnest.driver.run_store import came_since
    from ravnest.results.steering import require_running

    run = require_running(run)
    if came is None:
        if node not in came_since(RunFolder(run).driver):
            load_plan(RunFolder(run).plan).fleet.node(node)  # which tells of a name that nobody has
    else:
        came.node(node)
        came = replace(came, constraints=type(came.constraints)())
    put_request(run, NodeRequest(kind, node, fleet=came))


def all_here(plan: Plan, own: Collection[str]) -> str | None:
    """Returns the sentence that a run without an address of Ray trains here what the plan gives to other machines.

    `own` has this machine's addresses. None where no stage's node has another one.
    """
    used = [stage.node for cluster in plan.clusters for stage in cluster.stages]
    named = {node.name: node.address for node in plan.fleet.nodes if node.name in used}
    elsewhere = [f"{name} {address}" for name, address in named.items() if address is not None and address not in own]
    if not elsewhere:
        return None
    more = f" and {len(elsewhere) - 3} more" if len(elsewhere) > 3 else ""
    return (
        f"all {len(used)} stages run on this machine, though nodes have addresses elsewhere"
        f" ({', '.join(elsewhere[:3])}{more}): --address HOST:PORT of their Ray trains on them"
    )
