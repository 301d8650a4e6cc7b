from dataclasses import replace

from cluster_planner import Plan, format_rate, hours_from
from ravnest.cli.views.plan_hours import hours_there, never_at_once


def test_clusters_that_are_never_there_at_once_are_told_with_the_most_of_one_hour(plan: Plan) -> None:
    assert never_at_once(plan) == ""
    assert never_at_once(with_hours(plan, "0-12", "8-24")) == ""
    fastest = max(one.samples_per_s for one in plan.predicted.clusters)
    said = f" of all clusters, which are never there at once: those of one hour make up to {format_rate(fastest)}"
    assert never_at_once(with_hours(plan, "0-12", "12-24")) == said


def test_the_hours_of_a_cluster_are_those_at_which_all_its_nodes_are_there(plan: Plan) -> None:
    away = with_hours(plan, "0-12", "0-24")
    assert hours_there(away, away.clusters[0]) == ", there 0-12 UTC: 50% of the day"
    assert hours_there(away, away.clusters[1]) == ""


def with_hours(plan: Plan, *several: str) -> Plan:
    """`plan` with these hours of the first node of each cluster."""
    first = [cluster.stages[0].node for cluster in plan.clusters]
    hours = dict(zip(first, map(hours_from, several), strict=True))
    nodes = tuple(replace(node, hours=hours.get(node.name, node.hours)) for node in plan.fleet.nodes)
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes))
