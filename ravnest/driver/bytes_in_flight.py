"""How many bytes may be under way from one node to a stage of another: what a measured link between them holds.

Decides the bound from the plan's rate and delay; whether a connection can be bound so is the transport's
(ring_allreduce/transport/zmq/lanes.py). Too little would leave the link idle, too much fills the router's queue;
where
no delay was measured nothing is bound. Pure.
"""

from cluster_planner import Plan
from ravnest.driver.imitation import stages_elsewhere

MARGIN = 2.0
SPARE_BYTES = 64 << 10
"""More than the link holds: a full buffer takes more only once a third of it is free, and packets count with their
overhead. With little more than the link holds it would be idle between two fillings."""


def in_flight(plan: Plan, node: str) -> dict[str, int]:
    """Bytes by transport name of the receiving stage: rate × round trip (jitter included), with a margin."""
    fleet = plan.fleet
    measured = {end for link in fleet.links if node in (link.a, link.b) for end in (link.a, link.b)}
    bounds = {}
    for name, other in stages_elsewhere(plan, node):
        if other in measured and not fleet.same_host(node, other):
            link = fleet.link(node, other)
            round_trip_s = 2 * (link.latency_s + link.jitter_s)
            bounds[name] = int(MARGIN * fleet.flow_bytes_per_s(node, other) * round_trip_s) + SPARE_BYTES
    return bounds
