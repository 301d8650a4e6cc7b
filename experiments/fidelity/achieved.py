"""What one plan came to, one way or another: the figures that all three runs share, and how they are read.

Decides nothing about what they mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ravnest.pipeline.time_ledger import WAITS
from ravnest.simulator import SimulatedRun


@dataclass(frozen=True)
class StageAchieved:
    """Shares of the steady state. `late_share`: None where nothing was imitated."""

    busy: float
    waiting: Mapping[str, float]
    late_share: float | None


@dataclass(frozen=True)
class Achieved:
    """In the steady state."""

    samples_per_s: float
    averaging_s: float | None
    """A round, from its opening to its commit."""
    stages: Mapping[str, StageAchieved]

    @property
    def most_late(self) -> float | None:
        """The largest late share of a stage."""
        return max((each.late_share for each in self.stages.values() if each.late_share is not None), default=None)


def of_rehearsal(document: Mapping[str, Any]) -> Achieved:
    """From the JSON of ravnest.rehearsal.comparison. Raises RuntimeError where the run came to no steady state."""
    rate = document["samples_per_s"]["achieved"]
    if rate is None:
        raise RuntimeError("the run was too short for a steady state")
    stages = [stage for cluster in document["clusters"] for stage in cluster["stages"]]
    return Achieved(
        samples_per_s=rate,
        averaging_s=document["averaging_s"]["achieved"],
        stages={
            stage["stage"]: StageAchieved(stage["busy"]["achieved"], stage["waiting"], stage["late_share"])
            for stage in stages
        },
    )


def of_simulation(simulated: SimulatedRun) -> Achieved:
    """What a simulated run came to. The waiting of its stages is told from the start to the drain."""
    stages = {}
    for each in simulated.stages:
        whole_s = sum(each.seconds.values())
        waiting = {cause: each.seconds[cause] / whole_s for cause in WAITS if each.seconds.get(cause, 0.0) > 0}
        stages[each.name] = StageAchieved(each.utilisation, waiting, None)
    several = len(simulated.clusters) > 1
    return Achieved(simulated.samples_per_s, simulated.averaging_s if several else None, stages)
