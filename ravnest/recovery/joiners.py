"""Nodes that come to a run and are not in its plan: they become spares of the plan. Pure.

In: the plan, and the fleet of those who come, with their links to known nodes where these were measured. Out: the plan
with them.
"""

from collections.abc import Collection
from dataclasses import replace

from cluster_planner import Fleet, Plan, Spare
from ravnest.errors import InvalidInput

CAME = "came while the run went on"
"""The reason that a plan gives for such a spare."""

ADDED = tuple(f"joined{number}" for number in range(8))
"""The names of clusters that are made of nodes that came. A run is made ready for so many."""

MOST_NODES = 4096
"""The most nodes that a plan may come to have."""


def further_clusters(plan: Plan) -> list[str]:
    """Return the names that clusters may get which the plan does not have."""
    return [name for name in ADDED if name not in {cluster.name for cluster in plan.clusters}]


def with_nodes(plan: Plan, came: Fleet, which: Collection[str]) -> Plan:
    """Return the plan with these nodes of a fleet, each a spare. Nodes that the plan has already keep its figures.

    Of what the fleet says of links, only those of new nodes are taken, and pairs of regions that are not known. Raises
    InvalidInput where the two contradict each other, or where the fleet has no such node.
    """
    fleet = plan.fleet
    new = [came.node(name) for name in which if name not in fleet.names]
    if len(fleet.nodes) + len(new) > MOST_NODES:
        raise InvalidInput(f"the run has {len(fleet.nodes)} nodes, and may have {MOST_NODES} at most", key="nodes")
    names = {node.name for node in new}
    known = {*fleet.names, *names}
    links = [link for link in came.links if {link.a, link.b} <= known and {link.a, link.b} & names]
    pairs = {frozenset((link.a, link.b)) for link in fleet.regions}
    there = {node.region for node in (*fleet.nodes, *new)}
    regions = [link for link in came.regions if frozenset((link.a, link.b)) not in pairs and {link.a, link.b} <= there]
    grown = replace(
        fleet,
        nodes=(*fleet.nodes, *new),
        links=(*fleet.links, *links),
        regions=(*fleet.regions, *regions),
    )
    return replace(plan, fleet=grown, spares=(*plan.spares, *(Spare(node.name, CAME) for node in new)))
