"""What each stage and each hop of one pipeline costs, and how fast the pipeline can go by itself.

Occupancy contains no latency, the round trip does. With U = update_every:

    window    W = ceil(round trip / bottleneck) + 2, at most (max_staleness + 1)·U, at least 1
    period    max(bottleneck, round trip / W, ((U − 1)·bottleneck + round trip) / ((max_staleness + 1)·U))

The last term is there because an update's first micro-batch is admitted only when the update max_staleness + 1 before
it is done. A synchronous schedule has the window that it holds, and takes at least what a walk of one update says
(schedule_walk.update_s). A pipeline that its window or staleness limits, or nearly, takes what a walk of several
updates says (`window_limited_s`). Averaging enters as bytes that each stage sends and receives per micro-batch; other
clusters do not enter.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.schedule_walk import SHORTEST_S, Hop, PassTimes, Uplink, update_s, walked_s

NEAR = 0.85
"""If waiting, as period_s counts it, takes less than this part of the bottleneck, bunches dissolve and nothing is
walked.
"""


@dataclass(frozen=True)
class WorkTimes:
    """What each piece of a stage's work takes on its node, in seconds; of one micro-batch, but for the update."""

    forward_s: float
    backward_s: float
    input_gradients_s: float
    """The first part of a split backward."""
    weight_gradients_s: float
    update_s: float


def work_times(fleet: Fleet, spans: SpanCosts, stage: Stage) -> WorkTimes:
    """Return the seconds of each piece of work. A backward takes two forwards; where the stage recomputes, one more.
    The forward includes what reading data takes.
    """
    speed = fleet.node(stage.node).flops_per_s
    forward_s = spans.forward_flops(*stage.units) / speed
    compute_s = spans.flops(*stage.units, recomputes=stage.recomputes) / speed
    return WorkTimes(
        forward_s=forward_s + (spans.with_reading(*stage.units, compute_s) - compute_s),
        backward_s=(2.0 + stage.recomputes) * forward_s,
        input_gradients_s=(1.0 + stage.recomputes) * forward_s,
        weight_gradients_s=forward_s,
        update_s=spans.step_flops(*stage.units) / speed,
    )


@dataclass(frozen=True)
class Load:
    """The work of one stage per micro-batch, averaging apart. Bytes count what leaves or enters its host."""

    compute_s: float
    up_bytes: float
    down_bytes: float
    send_s: float
    """The slowest flow it sends, on the link that carries it."""
    send_to: str | None
    """The node at the other end of that flow."""
    parameter_bytes: int
    reading_s: float = 0.0
    """The part of `compute_s` in which it reads, or waits for, data."""


def loads_of(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage]) -> tuple[Load, ...]:
    """Return the load of each stage of a pipeline, in order."""
    loads = []
    for index, stage in enumerate(stages):
        start, end = stage.units
        up = down = send_s = 0.0
        send_to = None
        for neighbour, cut, onward in ((index - 1, start, False), (index + 1, end, True)):
            if not 0 <= neighbour < len(stages):
                continue
            forward, gradient = float(spans.forward_bytes[cut]), float(spans.gradient_bytes[cut])
            sent, received = (forward, gradient) if onward else (gradient, forward)
            other = stages[neighbour].node
            seconds = sent / fleet.flow_bytes_per_s(stage.node, other)
            if send_to is None or seconds > send_s:
                send_s, send_to = seconds, other
            if not fleet.same_host(stage.node, other):
                up, down = up + sent, down + received
        compute_s = spans.flops(start, end, recomputes=stage.recomputes) / fleet.node(stage.node).flops_per_s
        whole_s = spans.with_reading(start, end, compute_s)
        parameter_bytes = spans.parameter_bytes(start, end)
        loads.append(Load(whole_s, up, down, send_s, send_to, parameter_bytes, whole_s - compute_s))
    return tuple(loads)


def round_trip_s(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage]) -> float:
    """Return the seconds from a micro-batch's injection to its gradient at the first stage, in an idle pipeline."""
    total = 0.0
    for stage in stages:
        compute_s = spans.flops(*stage.units, recomputes=stage.recomputes) / fleet.node(stage.node).flops_per_s
        total += spans.with_reading(*stage.units, compute_s)
    for stage, onward in itertools.pairwise(stages):
        cut = stage.units[1]
        total += 2 * fleet.link(stage.node, onward.node).latency_s
        total += float(spans.forward_bytes[cut]) / fleet.flow_bytes_per_s(stage.node, onward.node)
        total += float(spans.gradient_bytes[cut]) / fleet.flow_bytes_per_s(onward.node, stage.node)
    return total


def flushed_s(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage]) -> float:
    """Return the seconds per micro-batch of a synchronous schedule, with its bubble and latencies; 0 for an
    asynchronous one.
    """
    work = spans.workload
    if not work.is_synchronous:
        return 0.0
    times = [work_times(fleet, spans, stage) for stage in stages]
    passes = [PassTimes(each.forward_s, each.backward_s, each.update_s) for each in times]
    hops = [
        Hop(
            float(spans.forward_bytes[stage.units[1]]) / fleet.flow_bytes_per_s(stage.node, onward.node),
            float(spans.gradient_bytes[stage.units[1]]) / fleet.flow_bytes_per_s(onward.node, stage.node),
            fleet.link(stage.node, onward.node).latency_s,
        )
        for stage, onward in itertools.pairwise(stages)
    ]
    return update_s(work, passes, hops) / work.update_every


def by_host(fleet: Fleet, amounts: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    """Sum amounts given per node over the nodes that share an uplink; keyed by node."""
    totals: dict[tuple[bool, str], float] = {}
    for name, amount in amounts:
        totals[host_key(fleet, name)] = totals.get(host_key(fleet, name), 0.0) + amount
    return {name: totals[host_key(fleet, name)] for name, _ in amounts}


def host_key(fleet: Fleet, name: str) -> tuple[bool, str]:
    """Return what nodes that share an uplink have in common."""
    host = fleet.node(name).host
    return (False, name) if host is None else (True, host)


def bottleneck_s(fleet: Fleet, stages: Sequence[Stage], loads: Sequence[Load], averaging_per_s: float) -> float:
    """Return the largest occupancy, when averaging moves `averaging_per_s` bytes a second each way per parameter byte;
    infinite where it leaves nothing of a link.
    """
    names = [stage.node for stage in stages]
    averaged = by_host(
        fleet, [(n, averaging_per_s * load.parameter_bytes) for n, load in zip(names, loads, strict=True)]
    )
    up = by_host(fleet, [(n, load.up_bytes) for n, load in zip(names, loads, strict=True)])
    down = by_host(fleet, [(n, load.down_bytes) for n, load in zip(names, loads, strict=True)])
    longest = 0.0
    for name, load in zip(names, loads, strict=True):
        node = fleet.node(name)
        left_up, left_down = node.up_bytes_per_s - averaged[name], node.down_bytes_per_s - averaged[name]
        if left_up <= 0 or left_down <= 0:
            return math.inf
        longest = max(longest, load.compute_s, load.send_s, up[name] / left_up, down[name] / left_down)
    return longest


def wanted_window(bottleneck: float, round_trip: float, workload: Workload) -> int:
    """Return the window that keeps the bottleneck of an asynchronous pipeline busy, as far as `max_staleness`
    admits.
    """
    if bottleneck <= 0:
        return workload.largest_window
    return max(1, min(math.ceil(round_trip / bottleneck) + 2, workload.largest_window))


def period_s(bottleneck: float, round_trip: float, window: int, workload: Workload) -> float:
    """Return the seconds per micro-batch of an asynchronous pipeline in the steady state."""
    per_update = workload.update_every
    admitted = ((per_update - 1) * bottleneck + round_trip) / workload.largest_window
    return max(bottleneck, round_trip / window, admitted, SHORTEST_S)


def is_near(work: Workload, bottleneck_s: Floats, round_trip_s: Floats, window: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say whether pipelines have to be walked: those without flushes that wait for their round trip, or nearly."""
    admitted = ((work.update_every - 1) * bottleneck_s + round_trip_s) / work.largest_window
    near: NDArray[np.bool_] = np.maximum(admitted, round_trip_s / window) >= NEAR * bottleneck_s
    return near & (not work.is_synchronous)


def window_limited_s(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> float:
    """Return the seconds per micro-batch of a cluster by itself."""
    stages, last = cluster.stages, len(cluster.stages) - 1
    passes, hops, uplinks = [], [], []
    hosts: dict[tuple[bool, str], int] = {}
    for index, stage in enumerate(stages):
        up_bytes_per_s = fleet.node(stage.node).up_bytes_per_s
        times = work_times(fleet, spans, stage)
        passes.append(PassTimes(times.forward_s, times.backward_s, times.update_s))
        start, end = stage.units
        after = index < last and not fleet.same_host(stage.node, stages[index + 1].node)
        before = index > 0 and not fleet.same_host(stage.node, stages[index - 1].node)
        uplinks.append(
            Uplink(
                hosts.setdefault(host_key(fleet, stage.node), len(hosts)),
                float(spans.forward_bytes[end]) / up_bytes_per_s if after else 0.0,
                float(spans.gradient_bytes[start]) / up_bytes_per_s if before else 0.0,
            )
        )
    for stage, onward in itertools.pairwise(stages):
        a, b, cut = stage.node, onward.node, stage.units[1]
        forward_s = float(spans.forward_bytes[cut]) / fleet.flow_bytes_per_s(a, b)
        gradient_s = float(spans.gradient_bytes[cut]) / fleet.flow_bytes_per_s(b, a)
        hops.append(Hop(forward_s, gradient_s, fleet.link(a, b).latency_s))
    return walked_s(spans.workload, cluster.window, tuple(passes), tuple(hops), tuple(uplinks))
