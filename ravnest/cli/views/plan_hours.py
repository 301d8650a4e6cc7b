"""Words about the hours at which a plan's clusters are there.

In: a plan whose nodes may state hours. Out: how long each cluster is there, and whether all ever are at once.
"""

from cluster_planner import ALL_DAY, Cluster, Plan, common_hours, format_rate, hours_to, part_of_day


def hours_there(plan: Plan, cluster: Cluster) -> str:
    """Returns the hours at which all nodes of the cluster are available, in words; empty if they always are."""
    hours = _hours(plan, cluster)
    return "" if hours == ALL_DAY else f", there {hours_to(hours)} UTC: {part_of_day(hours):.0%} of the day"


def never_at_once(plan: Plan) -> str:
    """Returns that the clusters never train all at once, and what those of one hour make at most; empty if they do."""
    hours = [_hours(plan, cluster) for cluster in plan.clusters]
    if common_hours(hours):
        return ""
    rates = [one.samples_per_s for one in plan.predicted.clusters]
    most = max(
        sum(rate for rate, there in zip(rates, hours, strict=True) if there >> hour & 1)
        for hour in range(ALL_DAY.bit_length())
    )
    return f" of all clusters, which are never there at once: those of one hour make up to {format_rate(most)}"


def _hours(plan: Plan, cluster: Cluster) -> int:
    return common_hours(plan.fleet.node(stage.node).hours for stage in cluster.stages)
