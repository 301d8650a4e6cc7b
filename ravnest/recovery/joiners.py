"""Nodes that come to a run and are not in its plan: they become spares of the plan. Pure.

In: the plan, and the fleet of those who come, with their links to known nodes where these were measured. Out: the plan
with them. Where a run begins again, or is resumed, those who had come are in its plan again, with their clusters.
"""

from collections.abc import Collection
from dataclasses import replace

from cluster_planner import Fleet, Plan, Spare, with_cluster
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


def with_fleet(plan: Plan, fleet: Fleet) -> Plan:
    """Return the plan that a run began with, for the `fleet` that it has by now: who came is a spare."""
    came = (Spare(name, CAME) for name in fleet.names if name not in plan.fleet.names)
    return replace(plan, fleet=fleet, spares=(*plan.spares, *came))


def with_comers(plan: Plan, last: Plan, alive: Collection[str]) -> Plan:
    """Return the plan with whoever had come to the run by the time when `last` was its plan.

    Nodes are spares. A cluster that they had made is there again if its nodes are `alive` and run no stage of the plan.
    The plan is returned as it is where nobody had come. Raises InvalidInput as `with_nodes` does.
    """
    came = [name for name in last.fleet.names if name not in plan.fleet.names]
    grown = with_nodes(plan, last.fleet, came) if came else plan
    known = {cluster.name for cluster in plan.clusters}
    used = {stage.node for cluster in plan.clusters for stage in cluster.stages}
    for cluster in last.clusters:
        nodes = {stage.node for stage in cluster.stages}
        if cluster.name in ADDED and cluster.name not in known and nodes <= set(alive) and not nodes & used:
            grown = with_cluster(grown, cluster, CAME)
            used |= nodes
    return grown


def planned_shares(plan: Plan) -> dict[str, tuple[float, float]]:
    """Return by cluster the part of the data that it reads, as if nobody had come: whoever came reads in an order of
    its own."""
    planned = [each.name not in ADDED for each in plan.clusters]
    clusters = tuple(each for each, kept in zip(plan.clusters, planned, strict=True) if kept)
    if not clusters:
        return {}
    predicted = tuple(each for each, kept in zip(plan.predicted.clusters, planned, strict=True) if kept)
    alone = replace(plan, clusters=clusters, predicted=replace(plan.predicted, clusters=predicted))
    return {each.name: alone.share(each.name) for each in clusters}
