"""What is done about machines that are lost, come back or leave, as decisions without I/O.

In: losses, the nodes that are alive, and the time. Out: which cluster is started anew, where and when, and with which
plan a run goes on of which no cluster is left. The driver carries it out for real, and the simulator in virtual time.
"""

from ravnest.recovery.donors import Donors, Giver, Need, Restored
from ravnest.recovery.handing_on import HandingOn, Way
from ravnest.recovery.hours import HourChange, HourWatch
from ravnest.recovery.joiners import ADDED, further_clusters, planned_shares, with_comers, with_fleet, with_nodes
from ravnest.recovery.nodes_left import NodesLeft
from ravnest.recovery.orders import MoveCluster, Order, Replaced, SharedOut, StartCluster, TryFailed
from ravnest.recovery.placing import READY_AFTER_S, RETURNS_S, SPARE_AGAIN_S, Nodes, Place, Placement, beside, place
from ravnest.recovery.replacing import Replacements
from ravnest.recovery.replanning import CONSIDER_EVERY_S, BetterPlan, PlanningAnew, PlanWanted, Situation
from ravnest.recovery.restarting import Restarts, can_begin, look_for_nodes_s, plan_among, plan_for
from ravnest.recovery.slowness import COMPUTES, NodeSlow, Slowness

__all__ = [
    "ADDED",
    "COMPUTES",
    "CONSIDER_EVERY_S",
    "READY_AFTER_S",
    "RETURNS_S",
    "SPARE_AGAIN_S",
    "BetterPlan",
    "Donors",
    "Giver",
    "HandingOn",
    "HourChange",
    "HourWatch",
    "MoveCluster",
    "Need",
    "NodeSlow",
    "Nodes",
    "NodesLeft",
    "Order",
    "Place",
    "Placement",
    "PlanWanted",
    "PlanningAnew",
    "Replaced",
    "Replacements",
    "Restarts",
    "Restored",
    "SharedOut",
    "Situation",
    "Slowness",
    "StartCluster",
    "TryFailed",
    "Way",
    "beside",
    "can_begin",
    "further_clusters",
    "look_for_nodes_s",
    "place",
    "plan_among",
    "plan_for",
    "planned_shares",
    "with_comers",
    "with_fleet",
    "with_nodes",
]
