"""Which files make a checkpoint complete: a segment of every ring, and the optimizer state of every stage.

Decides it twice, from what is at hand. Before the model is captured that is the plan alone, which does not know of the
rings that average copies of tied parameters: the stages do.
"""

from collections.abc import Iterable

from cluster_planner import Plan
from ravnest.checkpoints.checkpoint import optimizer_file, segment_file
from ravnest.stage.setup import StageSetup


def parts_of_plan(plan: Plan) -> frozenset[str]:
    """The files that every checkpoint of a run of this plan holds."""
    segments = (segment_file(ring) for ring in range(len(plan.rings)))
    stages = ((cluster.name, index) for cluster in plan.clusters for index in range(len(cluster.stages)))
    return frozenset((*segments, *(optimizer_file(*stage) for stage in stages)))


def parts_of_stages(setups: Iterable[StageSetup]) -> frozenset[str]:
    """All files of a checkpoint of these stages, those of averaged copies included."""
    every = list(setups)
    segments = (segment_file(segment.ring) for setup in every for segment in setup.segments)
    return frozenset((*segments, *(optimizer_file(setup.cluster, setup.index) for setup in every)))
