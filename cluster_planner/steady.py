"""How fast all clusters run together, when averaging takes a part of every uplink.

Decides the fleet's steady rate R (samples/s) as predict.py states it: what a host's uplink has left for pipelines is
`up − averaged·R / average_every`, and R = Σ micro_batch / period_c(R), whose right side falls as R rises: one solution,
by bisection. Arrays over all stages, so that ten thousand cost little more than ten. Knows no names.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.costs import Workload
from cluster_planner.spans import Floats
from cluster_planner.timing import SHORTEST_S

BISECTIONS = 60


@dataclass(frozen=True)
class Occupancy:
    """Seconds per micro-batch of each stage, one entry each: computing, its slowest flow, its host's links."""

    compute_s: Floats
    send_s: Floats
    up_s: Floats
    down_s: Floats

    @property
    def most(self) -> Floats:
        return np.maximum(np.maximum(self.compute_s, self.send_s), np.maximum(self.up_s, self.down_s))


@dataclass(frozen=True)
class Pipelines:
    """All clusters' stages one after the other. Bytes are through the stage's host: per micro-batch, and per round
    of averaging. `first`: where each cluster's stages begin; the last three have one entry per cluster.
    """

    compute_s: Floats
    send_s: Floats
    up_bytes: Floats
    down_bytes: Floats
    averaged_up: Floats
    averaged_down: Floats
    up_bytes_per_s: Floats
    down_bytes_per_s: Floats
    first: NDArray[np.int64]
    round_trip_s: Floats
    flushed_s: Floats
    window: NDArray[np.int64]

    def occupancy(self, samples_per_s: float, work: Workload) -> Occupancy:
        """With the fleet at that rate."""
        rounds_per_s = samples_per_s / work.average_every
        up = _seconds(self.up_bytes, self.up_bytes_per_s - self.averaged_up * rounds_per_s)
        down = _seconds(self.down_bytes, self.down_bytes_per_s - self.averaged_down * rounds_per_s)
        return Occupancy(self.compute_s, self.send_s, up, down)

    def periods_s(self, samples_per_s: float, work: Workload) -> Floats:
        """Seconds per micro-batch of each cluster: timing.period_s, and what a flush costs."""
        bottleneck = np.maximum.reduceat(self.occupancy(samples_per_s, work).most, self.first)
        others = (work.update_every - 1) * bottleneck if work.update_every > 1 else 0.0
        admitted = (others + self.round_trip_s) / work.largest_window
        waiting = np.maximum(self.round_trip_s / self.window, np.maximum(admitted, self.flushed_s))
        return np.maximum(np.maximum(bottleneck, waiting), SHORTEST_S)

    def steady_rate(self, work: Workload) -> float:
        """Samples/s of the fleet, as far as its pipelines and uplinks go."""

        def made_at(rate: float) -> float:
            return float((work.micro_batch / self.periods_s(rate, work)).sum())

        low, high = 0.0, made_at(0.0)
        if made_at(high) >= high:
            return high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if made_at(middle) >= middle else (low, middle)
        return low


def _seconds(amounts: Floats, rates: Floats) -> Floats:
    """`amounts` / `rates`; for ever where nothing is left of a rate."""
    seconds = np.full(len(amounts), np.inf)
    np.divide(amounts, rates, out=seconds, where=rates > 0)
    return seconds
