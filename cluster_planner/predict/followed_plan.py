"""How fast a plan is with these or those warm spares: one plan, predicted with many choices of who follows which stage.

`FollowedPlan.samples_per_s` gives the number that `predict` gives for a plan with the same spares. What spares are sent
takes of the uplinks only, so all else is worked out once, and a choice costs about a millisecond. In: a plan's clusters
and rings. Out: samples/s, with what spares are sent, or of a cluster in which a spare has taken the place of a stage.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Ring, Spare
from cluster_planner.predict.prediction import arrays_of, no_faster_than_walked, times_of
from cluster_planner.predict.round_traffic import averaged_by_node, exchanges_of, followed_by, times_of_rounds
from cluster_planner.rings import ring_traffic


class FollowedPlan:
    """Clusters and rings that do not change, whatever follows them."""

    def __init__(self, fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring]) -> None:
        self._fleet, self._spans, self._clusters, self._rings = fleet, spans, clusters, rings
        exchanges = exchanges_of(fleet, spans, clusters, ring_traffic(spans, clusters, rings))
        stages = arrays_of(fleet, [times_of(fleet, spans, cluster) for cluster in clusters], exchanges)
        self._stages = no_faster_than_walked(fleet, spans, clusters, stages)
        self._alone = times_of_rounds(exchanges)
        self._slower = self._stages.periods_s(spans.workload) / stages.periods_s(spans.workload)
        number_of = fleet.arrays.number_of
        self._nodes = np.array([number_of[stage.node] for cluster in clusters for stage in cluster.stages])

    def samples_per_s(self, spares: Sequence[Spare] = ()) -> float:
        """Return what the fleet makes while these spares are sent what they follow."""
        sent = followed_by(self._fleet, self._spans, self._clusters, self._rings, spares)
        out, into = averaged_by_node(self._fleet, sent)
        up, down = self._stages.averaged_up + out[self._nodes], self._stages.averaged_down + into[self._nodes]
        stages, work = replace(self._stages, averaged_up=up, averaged_down=down), self._spans.workload
        return float(stages.pace(work, self._alone, stages.walked_s(work, self._alone)).rates.sum())

    def with_spare(self, number: int, index: int, node: str) -> float:
        """Return about what a cluster, by its number, makes by itself with this node in the place of a stage: as much
        slower than by the formula as a walk shows the cluster to be as it is.
        """
        of, work = self._clusters[number], self._spans.workload
        stages = tuple(replace(each, node=node) if i == index else each for i, each in enumerate(of.stages))
        times = times_of(self._fleet, self._spans, replace(of, stages=stages))
        period_s = float(arrays_of(self._fleet, [times], []).periods_s(work)[0])
        return work.micro_batch / (period_s * float(self._slower[number]))
