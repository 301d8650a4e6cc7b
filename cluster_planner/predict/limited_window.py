"""How fast an asynchronous pipeline goes whose window or staleness limits what is in flight.

Micro-batches of one update are admitted together, when an update before them is done, so they go round in bunches. A
bunch that goes forward meets others that come back, at stages and uplinks that both need; so a round takes longer than
its idle trip and one bunch's passage, which is all that timing.period_s counts. Decides that figure by walking: the
stages' own order of work (as ravnest's stage machine has it: update, then backward and forward in turn), one message
after another on each uplink and on each link, until one cycle of updates takes what the one before did. Knows no
averaging, no downlink that several fill at once, and no tuned window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Cluster
from cluster_planner.predict.schedule_walk import Hop, Passes
from cluster_planner.predict.stage_times import host_key, work_times
from cluster_planner.predict.steady_state import Pipelines

NEAR = 0.85
"""Of the bottleneck: where what timing.period_s counts for waiting is less, bunches dissolve and nothing is walked."""

SAME = 1e-3
"""Cycles whose times differ by no more than this part are the same."""

CYCLES = 5
"""Walked at most, beside the first. A cycle is as many updates as may be in flight at once."""

REMEMBERED = 4096
"""Walks whose figures are kept, in this process."""

_ACTIVATION, _GRADIENT, _FORWARD, _BACKWARD, _UPDATE = range(5)


@dataclass(frozen=True)
class Uplink:
    """What a stage sends for one micro-batch, in seconds of its uplink. Stages of one `host` share it."""

    host: tuple[bool, str]
    activation_s: float = 0.0
    gradient_s: float = 0.0


def no_faster_than_walked(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster], stages: Pipelines) -> Pipelines:
    """`stages`, with the walked period as the least of each cluster whose round trip counts, or nearly; the same object
    if there are none.
    """
    work = spans.workload
    bottleneck = np.maximum.reduceat(stages.occupancy().most, stages.first)
    several = np.array([len(cluster.stages) > 1 for cluster in clusters])
    near = several & is_near(work, bottleneck, stages.round_trip_s, stages.window)
    if not near.any():
        return stages
    least_s = stages.flushed_s.copy()
    for at in np.flatnonzero(near).tolist():
        least_s[at] = circulating_s(fleet, spans, clusters[at])
    return replace(stages, flushed_s=least_s)


def is_near(work: Workload, bottleneck_s: Floats, round_trip_s: Floats, window: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether pipelines have to be walked: those without flushes that wait for their round trip, or nearly."""
    admitted = ((work.update_every - 1) * bottleneck_s + round_trip_s) / work.largest_window
    near: NDArray[np.bool_] = np.maximum(admitted, round_trip_s / window) >= NEAR * bottleneck_s
    return near & (not work.is_synchronous)


def circulating_s(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> float:
    """Seconds per micro-batch of a cluster by itself."""
    stages, last = cluster.stages, len(cluster.stages) - 1
    passes, hops, uplinks = [], [], []
    for index, stage in enumerate(stages):
        up_bytes_per_s = fleet.node(stage.node).up_bytes_per_s
        times = work_times(fleet, spans, stage)
        passes.append(Passes(times.forward_s, times.backward_s, times.update_s))
        start, end = stage.units
        after = index < last and not fleet.same_host(stage.node, stages[index + 1].node)
        before = index > 0 and not fleet.same_host(stage.node, stages[index - 1].node)
        uplinks.append(
            Uplink(
                host_key(fleet, stage.node),
                float(spans.forward_bytes[end]) / up_bytes_per_s if after else 0.0,
                float(spans.gradient_bytes[start]) / up_bytes_per_s if before else 0.0,
            )
        )
    for stage, onward in pairwise(stages):
        a, b, cut = stage.node, onward.node, stage.units[1]
        forward_s = float(spans.forward_bytes[cut]) / fleet.flow_bytes_per_s(a, b)
        gradient_s = float(spans.gradient_bytes[cut]) / fleet.flow_bytes_per_s(b, a)
        hops.append(Hop(forward_s, gradient_s, fleet.link(a, b).latency_s))
    return walked_s(spans.workload, cluster.window, tuple(passes), tuple(hops), tuple(uplinks))


@lru_cache(maxsize=REMEMBERED)
def walked_s(
    work: Workload, window: int, stages: tuple[Passes, ...], hops: tuple[Hop, ...], uplinks: tuple[Uplink, ...]
) -> float:
    """Seconds per micro-batch in the steady state. `hops`: one less than stages. Walked once for the same figures: a
    plan, and each change that its advice tries, has most clusters as they were.
    """
    walk = _Walk(work, window, stages, hops, uplinks)
    updates = work.max_staleness + 1
    ended_s = [walk.updated(updates), walk.updated(updates)]
    for _ in range(1, CYCLES):
        ended_s.append(walk.updated(updates))
        if abs(ended_s[-1] - 2 * ended_s[-2] + ended_s[-3]) <= SAME * (ended_s[-1] - ended_s[-2]):
            break
    return (ended_s[-1] - ended_s[-3]) / (2 * updates * work.update_every)


class _Walk:
    """The pipeline at one moment. What has been done is counted; which micro-batch it was follows from the order."""

    def __init__(
        self, work: Workload, window: int, stages: Sequence[Passes], hops: Sequence[Hop], uplinks: Sequence[Uplink]
    ) -> None:
        count = len(stages)
        self._every, self._staleness, self._window = work.update_every, work.max_staleness, window
        self._stages, self._hops, self._uplinks, self._last = stages, hops, uplinks, count - 1
        self._came, self._came_back = [0] * count, [0] * count
        self._forwards, self._backwards, self._version = [0] * count, [0] * count, [0] * count
        self._is_busy, self._went_back = [False] * count, [False] * count
        self._uplink_free_s = dict.fromkeys((uplink.host for uplink in uplinks), 0.0)
        self._link_free_s = {(index, kind): 0.0 for index in range(count) for kind in (_ACTIVATION, _GRADIENT)}
        self._coming: list[tuple[float, int, int, int]] = []
        self._number = 0
        self._choose(0, 0.0)

    def updated(self, updates: int) -> float:
        """When the first stage has made so many updates more."""
        until, now_s = self._version[0] + updates, 0.0
        while self._version[0] < until:
            now_s, _, index, kind = heappop(self._coming)
            self._happened(index, kind, now_s)
            self._choose(index, now_s)
        return now_s

    def _happened(self, index: int, kind: int, now_s: float) -> None:
        if kind == _ACTIVATION:
            self._came[index] += 1
            return
        if kind == _GRADIENT:
            self._came_back[index] += 1
            return
        self._is_busy[index] = False
        if kind == _UPDATE:
            self._version[index] += 1
        elif kind == _FORWARD:
            self._forwards[index] += 1
            if index < self._last:
                self._send(index, index + 1, _ACTIVATION, now_s)
            else:
                self._came_back[index] += 1
        else:
            self._backwards[index] += 1
            if index:
                self._send(index, index - 1, _GRADIENT, now_s)

    def _choose(self, index: int, now_s: float) -> None:
        if self._is_busy[index]:
            return
        stage, version = self._stages[index], self._version[index]
        forwards, backwards = self._forwards[index], self._backwards[index]
        if backwards == (version + 1) * self._every:
            self._compute(index, _UPDATE, now_s + stage.step_s)
            return
        if index:
            forward = self._came[index] > forwards
        else:
            forward = forwards - backwards < self._window and version >= forwards // self._every - self._staleness
        if self._came_back[index] > backwards and not (forward and self._went_back[index]):
            self._went_back[index] = True
            self._compute(index, _BACKWARD, now_s + stage.backward_s)
        elif forward:
            self._went_back[index] = False
            self._compute(index, _FORWARD, now_s + stage.forward_s)

    def _compute(self, index: int, kind: int, ends_s: float) -> None:
        self._is_busy[index] = True
        self._tell(index, kind, ends_s)

    def _send(self, index: int, to: int, kind: int, now_s: float) -> None:
        uplink, hop = self._uplinks[index], self._hops[min(index, to)]
        if kind == _ACTIVATION:
            uplink_s, link_s = uplink.activation_s, hop.forward_s
        else:
            uplink_s, link_s = uplink.gradient_s, hop.gradient_s
        starts_s = max(now_s, self._uplink_free_s[uplink.host], self._link_free_s[index, kind])
        self._uplink_free_s[uplink.host] = starts_s + uplink_s
        arrived_s = self._link_free_s[index, kind] = starts_s + max(uplink_s, link_s)
        self._tell(to, kind, arrived_s + hop.latency_s)

    def _tell(self, index: int, kind: int, at_s: float) -> None:
        self._number += 1  # at one moment, what was caused first happens first
        heappush(self._coming, (at_s, self._number, index, kind))
