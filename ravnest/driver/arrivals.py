"""Nodes that come to a run while it goes on: those that had left it, and those that its plan does not have.

In: requests of users, and machines that were measured since they appeared. Out: a plan that has them as spares, and
word of each in the run's record. It belongs to the driver's thread.
"""

from cluster_planner import Fleet
from ravnest.driver.node_requests import NodeRequest
from ravnest.driver.observe.place_events import joined
from ravnest.driver.observe.record import RunRecord
from ravnest.errors import InvalidInput
from ravnest.recovery import Replacements, with_nodes


class NodeArrivals:
    """Lets nodes take part in a run."""

    def __init__(self, replacements: Replacements, record: RunRecord) -> None:
        self._replacements = replacements
        self._record = record

    def knows(self, node: str) -> bool:
        """Say whether the run's plan has a node of this name."""
        return node in self._replacements.plan.fleet.names

    def take(self, request: NodeRequest, now_s: float) -> None:
        """A user says that a node may run stages."""
        if self.knows(request.node):
            self._replacements.node_back(request.node, now_s)
            self._record.happened(joined(self._replacements.plan.fleet.node(request.node), known=True, why=request.why))
        elif request.fleet is None:
            self._record.notice(f"no node of the plan is named {request.node!r}: it cannot {request.kind}")
        else:
            self._add(request.fleet, request.node, now_s)

    def _add(self, fleet: Fleet, node: str, now_s: float) -> None:
        try:
            plan = with_nodes(self._replacements.plan, fleet, [node])
        except InvalidInput as error:
            self._record.notice(f"node {node!r} cannot join: {error}")
            return
        self._replacements.node_joined(plan, node, now_s)
        self._record.happened(joined(plan.fleet.node(node), known=False))
