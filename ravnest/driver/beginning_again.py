"""How a run begins again whose last cluster is lost: from what, on which nodes, and after how long.

In: the run as it was prepared, and the reason. Out: the plan to go on with, after a wait in which the user may end the
run; or none, where it has been tried often enough. ravnest/recovery/restarting.py decides; this module asks Ray which
nodes are there, reads the folder, and tells the user.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.checkpoints.checkpoint import go_back
from ravnest.driver.checkpoint_collector import parts_of_checkpoint
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.preparation import Prepared
from ravnest.driver.ray.planned_nodes import nodes_alive
from ravnest.driver.resuming import ResumedRun
from ravnest.driver.while_waiting import with_who_came
from ravnest.errors import InvalidInput, NotWritten, RavnestError, RunFailed
from ravnest.pipeline import stage_name
from ravnest.recovery import NodesLeft, Restarts, look_for_nodes_s, plan_among
from ravnest.recovery.restarting import AT_ONE_NODE, FIRST_WAIT_S, NODES_WAIT_S, nodes_of_stages

_LOOK_S = 0.25


class Watched(report.Observer, Protocol):
    """Who is told of all events, and knows for how long the run has trained, and on how many samples."""

    @property
    def trained_s(self) -> float:
        """For how long the run has trained since it last began."""
        ...

    @property
    def trained_samples(self) -> int:
        """The samples of the fleet by now; 0 where the run has not trained since it last began."""
        ...


@dataclass(frozen=True)
class AllSessions:
    """What all sessions of a run share."""

    address: str | None
    """Of its Ray cluster; None: Ray is started on this machine."""
    restarts: Restarts
    left: NodesLeft
    """The nodes that have left with notice. Those that have only given notice, and are alive, are used where the others
    cannot train the model."""
    watched: Watched
    wants_end: Callable[[], bool]
    """Says whether the user wants the run to end, which ends any wait."""


@dataclass(frozen=True)
class Anew:
    """How a run begins again: by this plan, and from its last checkpoint or from nothing."""

    plan: Plan
    resumes: bool


def begun_again(
    run: AllSessions,
    prepared: Prepared,
    plan: Plan,
    trained: Plan,
    reason: str,
    *,
    stage: str = "",
    on_purpose: bool = False,
) -> Anew | None:
    """How the run begins again that has lost its last cluster for this `reason`; None where it does not: it was tried
    often enough, its checkpoints cannot be used, or the user wants it to end.

    Waits as long as it takes: after a loss, and for nodes where those that are there cannot train the model.

    Arguments:
        plan: the plan by which the run began the last time, or, `on_purpose`, another one for which it has ended its
            clusters.
        trained: the plan as it was when the last cluster was lost.
        stage: the one by which it was, where that is known.
    """
    try:
        saved = last_saved(prepared, run.watched)
    except (InvalidInput, NotWritten):
        return None  # from the start all would be lost that a user may yet save
    there = _asked(prepared, plan, run.address)
    gone = isinstance(there, RavnestError) or not nodes_of_stages(trained) <= run.left.if_need_be(there)
    checkpoint = None if saved is None else saved.checkpoint.folder.name
    wait_s = run.restarts.after(checkpoint, gone=gone)
    node = None if gone or run.address is None else _node_of(stage, trained)  # without an address all are this machine
    if node is not None and node not in run.left.names and run.restarts.ended_at(node):
        wait_s = FIRST_WAIT_S
        run.left.leave(node, noticed=True)
        said = (
            f"a stage on {node!r} has ended the run {AT_ONE_NODE} times in a row: it does without that node if it can"
        )
        run.watched.on(report.NoticeEvent(said))
    if wait_s is None:
        return None
    found = _plan_again(run, prepared, plan, there)
    if found is None:
        return None
    lost = max(0, run.watched.trained_samples - (0 if saved is None else saved.samples))
    other = on_purpose or found is not plan
    _tell(
        prepared, run.watched, report.RestartedEvent(reason, checkpoint or "", wait_s, planned_anew=other, samples=lost)
    )
    return Anew(found, saved is not None) if _waited(wait_s, run.wants_end) else None


def _node_of(stage: str, plan: Plan) -> str | None:
    """The node of a stage by the plan; None where it has no such stage."""
    places = ((stage_name(each.name, i), one.node) for each in plan.clusters for i, one in enumerate(each.stages))
    return next((node for name, node in places if name == stage), None)


def last_saved(prepared: Prepared, watched: report.Observer) -> ResumedRun | None:
    """What a resume would go on from; None where there is no checkpoint yet. Of one that is damaged `watched` is told,
    and the one before it is taken, which is the latest from now on.

    Raises InvalidInput where none that is kept can be used, and NotWritten where the disk refuses to name another.
    """
    if not prepared.folder.has_checkpoint:
        return None
    try:
        return ResumedRun.load(prepared.folder, prepared.plan, prepared.job)
    except InvalidInput:
        before = go_back(prepared.folder.checkpoints, partial(parts_of_checkpoint, plan=prepared.plan))
        if before is None:
            raise
    name, wrong = before
    watched.on(report.NoticeEvent(f"the latest checkpoint is {wrong}: the run goes on from {name}, which is whole"))
    return ResumedRun.load(prepared.folder, prepared.plan, prepared.job)


def _asked(prepared: Prepared, plan: Plan, address: str | None) -> set[str] | RavnestError:
    """The nodes of the plan that are there, or why that is not known."""
    try:
        return nodes_alive(plan, address, prepared.folder.ray_log)
    except RavnestError as error:
        return error


def _plan_again(run: AllSessions, prepared: Prepared, plan: Plan, there: set[str] | RavnestError) -> Plan | None:
    """The plan for the nodes that are there, once they can train the model; None where that takes too long. `there`:
    those that are at first."""
    waited_s, alive, left = 0.0, there, run.left
    while True:
        try:
            if isinstance(alive, RavnestError):
                raise alive
            left.look(alive)
            with suppress(NoFeasiblePlan):
                return plan_among(plan, left.without(alive))
            return plan_among(plan, left.if_need_be(alive))
        except (NoFeasiblePlan, RunFailed) as error:  # RunFailed: Ray cannot be asked, as without its head
            gone = ", ".join(sorted(left.names))
            why = f"{error}; {gone} left, and `ravnest join` lets a node in again" if gone else str(error)
        except RavnestError as error:
            run.watched.on(report.NoticeEvent(f"the run cannot begin again: {error}"))
            return None
        again_s = look_for_nodes_s(waited_s)
        if not waited_s:
            _tell(prepared, run.watched, report.WaitsForNodesEvent(why, NODES_WAIT_S))
        if again_s is None or not _waited(again_s, run.wants_end):
            return None
        waited_s += again_s
        plan = with_who_came(
            prepared.folder.path,
            plan,
            left,
            lambda event: _tell(prepared, run.watched, event),
            lambda said: run.watched.on(report.NoticeEvent(said)),
        )
        alive = _asked(prepared, plan, run.address)


def _tell(prepared: Prepared, watched: Watched, event: report.RunEvent) -> None:
    with suppress(InvalidInput), MetricsWriter(prepared.folder.metrics) as metrics:  # a full disk stops no run
        metrics.write(report.kind_of(event), watched.trained_s, **report.as_plain(event))
    watched.on(event)


def _waited(seconds: float, wanted: Callable[[], bool]) -> bool:
    """Wait; False as soon as the user wants the run to end."""
    while seconds > 0 and not wanted():
        time.sleep(min(_LOOK_S, seconds))
        seconds -= _LOOK_S
    return not wanted()
