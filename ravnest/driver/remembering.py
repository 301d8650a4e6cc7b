"""What a driver writes down of its session as it is now, so that another driver can take the run over. Pure.

In: the control of the run, its plan and the addresses of its stages. Out: a `DriverState` (run_store.py).
"""

from collections.abc import Mapping
from typing import Protocol

from ravnest.driver.control import RunControl
from ravnest.driver.preparation import Prepared
from ravnest.driver.run_rings import RunRings
from ravnest.driver.run_store import DriverState, SessionStart, StagePlace, plan_sum
from ravnest.pipeline import stage_place
from ravnest.recovery import NodesLeft
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import Keys


class Clock(Protocol):
    """Who knows for how long the session has trained."""

    training_s: float


def changing(
    control: RunControl,
    rings: RunRings,
    places: Mapping[str, StageAddress],
    born: Mapping[str, int],
    record: Clock,
    left: NodesLeft,
) -> dict[str, object]:
    """The fields of a state that change: who trains and where, and how far rounds and clusters have come.

    `born` has the epochs in which stages' processes began, where another driver has begun them; `left` the nodes that
    have left with notice.
    """
    stages, plan = {}, rings.plan
    for cluster in control.clusters.training:
        for stage in control.clusters.stages_of(cluster):
            at = places[stage]
            stages[stage] = StagePlace(
                node=plan.cluster(cluster).stages[stage_place(stage)[1]].node,
                host=at.peer.host,
                pipeline_port=at.peer.pipeline_port,
                bulk_port=at.peer.bulk_port,
                machine=at.machine,
                pid=at.pid,
                began_s=at.began_s,
                born=rings.setups[stage].transport.epoch or born.get(stage, 0),
            )
    return {
        "stages": stages,
        "epoch": control.rounds.epoch,
        "committed": control.rounds.committed,
        "opened": control.rounds.opened,
        "updates": dict(control.updates),
        "averaged": control.accounts.averaged,
        "begun": control.accounts.begun,
        "unmade": control.accounts.unmade,
        "stopping": control.stopping,
        "left": sorted(left.names),
        "noticed": sorted(left.noticed),
        "snapshots": control.accounts.snapshots,
        "elapsed_s": record.training_s,
    }


def beginning(
    prepared: Prepared,
    term: int,
    address: str | None,
    token: bytes,
    keys: Mapping[str, Keys] | None,
    timeline: bool,
    shares: Mapping[str, tuple[float, float]],
) -> dict[str, object]:
    """The fields of a state that stay as they are for a session, but for the threads of nodes that come."""
    start = prepared.start
    began = SessionStart()
    if start is not None:
        began = SessionStart(start.samples, dict(start.updates), start.rounds, dict(start.unmade))
    return {
        "term": term,
        "plan": plan_sum(prepared.folder.plan),
        "data": prepared.fingerprint,
        "address": address,
        "token": token.hex(),
        "keys": None if keys is None else {name: (each.own.public, each.own.secret) for name, each in keys.items()},
        "timeline": timeline,
        "start": began,
        "shares": dict(shares),
    }


def state_of(fixed: Mapping[str, object], changed: Mapping[str, object], threads: Mapping[str, int]) -> DriverState:
    """The state that these fields make."""
    return DriverState(**fixed, **changed, threads=dict(threads))  # type: ignore[arg-type]
