"""Nodes that would help by being there all day.

Decides which: of a cluster that is not there all day, those of its nodes that have the same hours, together, since any
one of them alone would change nothing. Hours change what the plan is worth and no speed, so nothing is predicted again.
"""

from collections.abc import Sequence

from cluster_planner.advice.suggestion import WORTHWHILE, Suggestion
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.hours import ALL_DAY, common, hours_to, part_of_day
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Prediction
from cluster_planner.predict.objective import averaging_factor, staleness_factor


def longer_hours(
    fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], predicted: Prediction
) -> list[Suggestion]:
    """All that are worthwhile."""
    if not fleet.rules.count_hours:
        return []
    work, found = spans.workload, []
    for index, (cluster, speed) in enumerate(zip(clusters, predicted.clusters, strict=True)):
        hours = {stage.node: fleet.node(stage.node).hours for stage in cluster.stages}
        now = part_of_day(common(hours.values()))
        a_day = (
            speed.samples_per_s
            * staleness_factor(cluster.window, len(cluster.stages), work)
            * averaging_factor(len(clusters), work)
        )
        for stated in sorted(set(hours.values()) - {ALL_DAY}):
            names = [name for name, own in hours.items() if own == stated]
            then = part_of_day(common(own for own in hours.values() if own != stated))
            gain = (then - now) * a_day
            if gain > WORTHWHILE * predicted.objective:
                words = f"{_listed(names)} being there all day instead of {hours_to(stated)} UTC"
                found.append(Suggestion(words, predicted.samples_per_s, predicted.objective + gain, index))
    return found


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
