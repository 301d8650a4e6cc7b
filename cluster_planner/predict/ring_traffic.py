"""The rings of a run as the planner times them: who passes how many bytes to whom. Pure.

Decides what `tied: averaged` adds to a plan's rings: one more through all stages that have a copy of a tied parameter
and not all of its uses. (The run makes one for each set of stages that have a copy, those with all uses among them,
such as a cluster's only stage; the planner knows parameters by their bytes only, and counts an owner's in its segment's
ring, too. Predictions differ by that, runs do not.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Ring

Member = tuple[str, int]


@dataclass(frozen=True)
class Circuit:
    """`members` (cluster, stage) pass on `parameter_bytes` among them, in this order, in each round."""

    members: tuple[Member, ...]
    parameter_bytes: int

    @property
    def hops(self) -> list[tuple[Member, Member]]:
        """Who sends to whom; nobody in a ring of one."""
        if len(self.members) == 1:
            return []
        return list(zip(self.members, (*self.members[1:], self.members[0]), strict=True))


def circuits(spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring]) -> list[Circuit]:
    """Of the segments, and of tied parameters where they are averaged."""
    found = [Circuit(ring.members, spans.parameter_bytes(*ring.units)) for ring in rings]
    spread = [
        (cluster.name, index)
        for cluster in clusters
        if len(cluster.stages) > 1
        for index, stage in enumerate(cluster.stages)
        if spans.copied_bytes(*stage.units) > 0
    ]
    if spread:
        units = {stage.units for cluster in clusters for stage in cluster.stages}
        found.append(Circuit(tuple(spread), round(max(spans.copied_bytes(*span) for span in units))))
    return found
