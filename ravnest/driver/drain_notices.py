"""Nodes that are about to go, as Ray was told: the cloud takes a machine back, or somebody drains it.

Ray's autoscaler tells it of a preemption, and so does `ray drain-node`. In: which nodes of the plan Ray drains. Out:
for each of them, once, the request to leave with notice.
"""

from collections.abc import Callable

from cluster_planner import Plan
from ravnest.driver.node_requests import NodeRequest
from ravnest.errors import RavnestError

LOOK_EVERY_S = 1.0
"""How often Ray is asked. A notice gives half a minute."""

WHY = "Ray drains it"


class DrainNotices:
    """Looks which nodes are drained. It belongs to the driver's thread, and waits for nothing."""

    def __init__(self, drained: Callable[[Plan], set[str]]) -> None:
        """`drained`: the nodes of a plan that Ray drains, as it has said last. Raises RavnestError where it has said
        nothing since the last call (NodesThere)."""
        self._drained = drained
        self._told: set[str] = set()
        self._look_s = 0.0

    def turn(self, plan: Plan, now_s: float) -> list[NodeRequest]:
        """The requests of nodes that are drained now, and were not at the last look."""
        if now_s < self._look_s:
            return []
        try:
            drained = self._drained(plan)
        except RavnestError:
            return []  # it is asked again: without its head Ray does not answer
        self._look_s = now_s + LOOK_EVERY_S
        new, self._told = sorted(drained - self._told), drained
        return [NodeRequest("leave", node, WHY, noticed=True) for node in new]
