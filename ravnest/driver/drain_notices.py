"""Nodes that are about to go, as Ray was told: the cloud takes a machine back, or somebody drains it.

Ray's autoscaler tells it of a preemption, and so does `ray drain-node`. In: which nodes of the plan Ray drains. Out:
for each of them the request to leave with notice, once, and again where somebody lets it in meanwhile.
"""

import math
from collections.abc import Callable, Collection

from cluster_planner import Plan
from ravnest.driver.node_requests import NodeRequest
from ravnest.driver.ray.session import one_line
from ravnest.errors import RavnestError

LOOK_EVERY_S = 1.0
"""How often Ray is asked. A notice gives half a minute."""

WHY = "Ray drains it"


class DrainNotices:
    """Looks which nodes are drained. It belongs to the driver's thread, and waits for nothing."""

    def __init__(self, drained: Callable[[Plan], set[str]], notice: Callable[[str], None]) -> None:
        """
        Arguments:
            drained: the nodes of a plan that Ray drains, as it has said last. Raises RavnestError where it has said
                nothing since the last call, and with a cause where it could not be asked (NodesThere).
            notice: tells the user that Ray cannot be asked.
        """
        self._drained = drained
        self._notice = notice
        self._warned = False
        self._told: set[str] = set()
        self._look_s = 0.0

    def turn(self, plan: Plan, now_s: float, left: Collection[str]) -> list[NodeRequest]:
        """The requests of nodes that are drained now, and were not at the last look or are not among those that have
        `left`: a user or the clock has let them in again."""
        if now_s < self._look_s:
            return []
        try:
            drained = self._drained(plan)
        except RavnestError as error:
            if error.__cause__ is not None:
                self._cannot(error.__cause__, now_s)
            return []
        self._look_s = now_s + LOOK_EVERY_S
        new, self._told = sorted(drained - self._told.intersection(left)), drained
        return [NodeRequest("leave", node, WHY, noticed=True) for node in new]

    def _cannot(self, why: BaseException, now_s: float) -> None:
        """Ray could not be asked. It is asked again, unless this version of it cannot say."""
        never = isinstance(why, NotImplementedError)
        self._look_s = math.inf if never else now_s + LOOK_EVERY_S
        if not self._warned:
            self._warned, again = True, "no node leaves for that" if never else "it is asked again"
            self._notice(f"Ray does not say which nodes it drains ({one_line(why)}): {again}")
