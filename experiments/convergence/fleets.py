"""The virtual fleets of the experiments on convergence, and the schedules that their machines make.

Decides durations and latencies so that a fleet has the staleness, the round length and the lag that are asked for, as
far as the machines allow them: what really came is read off the schedule. Durations are in units of one forward and
backward of the slowest cluster, no real seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from experiments.convergence.schedule import Schedule, schedule_of
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualRing, VirtualStage
from ravnest.simulator.run import VirtualRun
from ring_allreduce.transport import LinkShape

RATE = 1e12
"""Bytes per second of every link: latency is what delays."""


@dataclass(frozen=True)
class Shape:
    """A fleet in the words of docs/theory.md."""

    speeds: tuple[float, ...] = (1.0,)
    """Of each cluster, over the slowest: unequal ones contribute unequally."""
    stages: int = 2
    staleness: int = 0
    """Updates: T, what the window fills (one micro-batch an update)."""
    round: int = 8
    """Updates of the slowest cluster in a round: h."""
    lag: int = 1
    """Rounds: Λ."""
    ring_rounds: float = 0.5
    """How long an averaging takes, in rounds."""

    @property
    def clusters(self) -> int:
        return len(self.speeds)


def equal(clusters: int, **rest: object) -> Shape:
    """Clusters of one speed."""
    return Shape(speeds=(1.0,) * clusters, **rest)  # type: ignore[arg-type]


@lru_cache(maxsize=32)
def schedule(shape: Shape, updates: int) -> Schedule:
    """What the machines make of a fleet until it has made so many updates in all."""
    fleet = fleet_of(shape)
    result = VirtualRun(fleet).run(stop_samples=updates)
    return schedule_of(result.trace, fleet)


def fleet_of(shape: Shape) -> VirtualFleet:
    """One micro-batch an update. Where staleness is asked for, the way through the pipeline is so long that as many
    micro-batches as the window admits are always on it.
    """
    window = shape.staleness + 1
    clusters = tuple(
        VirtualCluster(f"c{index}", window, _stages(shape, speed)) for index, speed in enumerate(shape.speeds)
    )
    trip = 1.5 * window if shape.staleness and shape.stages > 1 else 0.0
    slowest = max(1.0, trip / window)
    hops = 2 * max(1, shape.clusters - 1)
    ring_latency = shape.ring_rounds * shape.round * slowest / hops
    rings = tuple(
        VirtualRing(tuple(cluster.stage_names()[stage] for cluster in clusters), 8, 8, 4)
        for stage in range(shape.stages)
    )
    pipeline_latency = trip / 2 / max(1, shape.stages - 1)
    links = {
        (a, b): LinkShape(RATE, pipeline_latency / speed)
        for cluster, speed in zip(clusters, shape.speeds, strict=True)
        for before, after in pairwise(cluster.stage_names())
        for a, b in ((before, after), (after, before))
    }
    return VirtualFleet(
        clusters=clusters,
        update_every=1,
        max_staleness=shape.staleness,
        rings=rings if shape.clusters > 1 else (),
        average_every=round(shape.round * sum(shape.speeds)),
        max_lag=shape.lag,
        links=links,
        default_link=LinkShape(RATE, ring_latency),
    )


def _stages(shape: Shape, speed: float) -> tuple[VirtualStage, ...]:
    each = VirtualStage(forward_s=1 / 3 / speed, backward_s=2 / 3 / speed)
    return (each,) * shape.stages
