"""How a run begins again whose last cluster is lost: from what, on which nodes, and after how long.

In: the run as it was prepared, and the reason. Out: the plan to go on with, after a wait in which the user may end the
run; or none, where it has been tried often enough. ravnest/recovery/restarting.py decides; this module asks Ray which
nodes are there, reads the folder, and tells the user.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.preparation import Prepared
from ravnest.driver.ray.planned_nodes import nodes_alive
from ravnest.driver.resuming import ResumedRun
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ravnest.recovery import NodesLeft, Restarts, look_for_nodes_s, plan_among
from ravnest.recovery.restarting import NODES_WAIT_S, nodes_of_stages

_LOOK_S = 0.25


class Watched(report.Observer, Protocol):
    """Who is told of all events, and knows for how long the run has trained."""

    @property
    def trained_s(self) -> float:
        """For how long the run has trained since it last began."""
        ...


@dataclass(frozen=True)
class Anew:
    """How a run begins again: by this plan, and from its last checkpoint or from nothing."""

    plan: Plan
    resumes: bool


def begun_again(
    restarts: Restarts,
    prepared: Prepared,
    plan: Plan,
    trained: Plan,
    left: NodesLeft,
    address: str | None,
    reason: str,
    watched: Watched,
    wanted: Callable[[], bool],
    on_purpose: bool = False,
) -> Anew | None:
    """How the run begins again that has lost its last cluster for this `reason`; None where it does not.

    Waits as long as it takes: after a loss, and for nodes where those that are there cannot train the model.

    Arguments:
        plan: the plan by which the run began the last time, or, `on_purpose`, another one for which it has ended its
            clusters.
        trained: the plan as it was when the last cluster was lost.
        left: the nodes that have left with notice. Those that have only given notice, and are alive, are used where
            the others cannot train the model.
        wanted: says whether the user wants the run to end, which ends the wait.
    """
    checkpoint = latest_checkpoint(prepared)
    there = _asked(prepared, plan, address)
    gone = isinstance(there, RavnestError) or not nodes_of_stages(trained) <= left.if_need_be(there)
    wait_s = restarts.after(checkpoint, gone=gone)
    if wait_s is None:
        return None
    found = _plan_again(prepared, plan, left, address, watched, wanted, there)
    if found is None:
        return None
    other = on_purpose or found is not plan
    _tell(prepared, watched, report.RestartedEvent(reason, checkpoint or "", wait_s, planned_anew=other))
    return Anew(found, checkpoint is not None) if _waited(wait_s, wanted) else None


def latest_checkpoint(prepared: Prepared) -> str | None:
    """The name of the checkpoint that a resume would go on from; None where there is none that fits."""
    if not prepared.folder.has_checkpoint:
        return None
    try:
        return ResumedRun.load(prepared.folder, prepared.plan, prepared.job).checkpoint.folder.name
    except InvalidInput:
        return None


def _asked(prepared: Prepared, plan: Plan, address: str | None) -> set[str] | RavnestError:
    """The nodes of the plan that are there, or why that is not known."""
    try:
        return nodes_alive(plan, address, prepared.folder.ray_log)
    except RavnestError as error:
        return error


def _plan_again(
    prepared: Prepared,
    plan: Plan,
    left: NodesLeft,
    address: str | None,
    watched: Watched,
    wanted: Callable[[], bool],
    there: set[str] | RavnestError,
) -> Plan | None:
    """The plan for the nodes that are there, once they can train the model; None where that takes too long. `there`:
    those that are at first."""
    waited_s, alive = 0.0, there
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
            watched.on(report.NoticeEvent(f"the run cannot begin again: {error}"))
            return None
        again_s = look_for_nodes_s(waited_s)
        if not waited_s:
            _tell(prepared, watched, report.WaitsForNodesEvent(why, NODES_WAIT_S))
        if again_s is None or not _waited(again_s, wanted):
            return None
        waited_s += again_s
        alive = _asked(prepared, plan, address)


def _tell(prepared: Prepared, watched: Watched, event: report.RestartedEvent | report.WaitsForNodesEvent) -> None:
    with suppress(InvalidInput), MetricsWriter(prepared.folder.metrics) as metrics:  # a full disk stops no run
        metrics.write(report.kind_of(event), watched.trained_s, **report.as_plain(event))
    watched.on(event)


def _waited(seconds: float, wanted: Callable[[], bool]) -> bool:
    """Wait; False as soon as the user wants the run to end."""
    while seconds > 0 and not wanted():
        time.sleep(min(_LOOK_S, seconds))
        seconds -= _LOOK_S
    return not wanted()
