"""What is asked of a run that does not train now: it is about to begin again, or waits for nodes.

In: requests in the run's folder. Out: whether the run is to end, and its plan with the nodes that have come meanwhile.
Other requests are left for the time when it trains.
"""

from collections.abc import Callable
from pathlib import Path

from cluster_planner import Plan
from ravnest.driver.node_requests import NodeRequest, take_requests
from ravnest.driver.observe.place_events import NodeJoinedEvent, joined
from ravnest.driver.signals import StopOnInterrupt
from ravnest.errors import Interrupted, InvalidInput
from ravnest.recovery import NodesLeft, with_nodes


def wants_end(interrupt: StopOnInterrupt, folder: Path, left: NodesLeft) -> bool:
    """Whether the user wants the run to end. Nodes that users let in again are back. Raises Interrupted."""
    for request in take_requests(folder, ("join",), nodes=left.names):
        if isinstance(request, NodeRequest):
            left.back(request.node)
    if take_requests(folder, ("stop", "stop_now")):
        raise Interrupted("ended before it began again, as it was asked to; --resume goes on from the last checkpoint")
    return interrupt.wanted


def with_who_came(
    folder: Path, plan: Plan, left: NodesLeft, tell: Callable[[NodeJoinedEvent], None], notice: Callable[[str], None]
) -> Plan:
    """The plan with the nodes that were let in and that it does not have, as spares.

    `tell` is told of each, and `notice`, in a sentence, of one that cannot join.
    """
    for request in take_requests(folder, ("join",)):
        if not isinstance(request, NodeRequest):
            continue
        if request.node in plan.fleet.names:
            left.back(request.node)
        elif request.fleet is None:
            notice(f"no node of the plan is named {request.node!r}: it cannot join")
        else:
            try:
                plan = with_nodes(plan, request.fleet, [request.node])
            except InvalidInput as error:
                notice(f"node {request.node!r} cannot join: {error}")
            else:
                tell(joined(plan.fleet.node(request.node), known=False))
    return plan
