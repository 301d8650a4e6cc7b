"""The best pipeline for one group of nodes.

Decides which of the group's nodes run stages, in what order, with what spans and what window. Two searches,
both by dynamic programming (order.py): the least bottleneck; then the shortest round trip among pipelines
whose bottleneck is at most that, or a little more, or anything. A stage whose memory is too short for what it would
keep recomputes it, if the workload allows, and takes longer. All results are timed by the exact formulas and the most
valuable one is taken.

Where nodes of the group share a host, the search counts each boundary flow by itself against the uplink
instead of their sum (it does not know yet which neighbours are on the host); the timing afterwards does know.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster_planner.costs import Workload
from cluster_planner.cuts import Tables
from cluster_planner.fleet import Fleet, Node
from cluster_planner.objective import staleness_factor
from cluster_planner.order import SHORTLIST, best_pipeline, candidate_orders, is_exact, shortlist
from cluster_planner.plan import Stage
from cluster_planner.recomputing import recomputing, ways_that_fit
from cluster_planner.spans import Floats, SpanCosts
from cluster_planner.timing import bottleneck_s, flushed_s, host_key, loads_of, period_s, round_trip_s, wanted_window

SLACKS = (1.0, 1.25, np.inf)
"""How much longer than the least bottleneck a stage may take when that shortens the round trip."""


@dataclass(frozen=True)
class Pipeline:
    """A pipeline and its value: samples/s, discounted for staleness."""

    stages: tuple[Stage, ...]
    window: int
    samples_per_s: float
    value: float


def plan_pipeline(
    fleet: Fleet, spans: SpanCosts, names: Sequence[str], averaged: float, least: int, required: str | None = None
) -> Pipeline | None:
    """The most valuable pipeline of `least` or more stages among these nodes; None where none fits in memory.

    `averaged`: bytes that averaging moves each way per parameter byte and micro-batch. `required`: a node
    that must run a stage; ignored where the search is not exact (order.py).
    """
    nodes = [fleet.node(name) for name in names]
    memory = np.array([node.memory_bytes for node in nodes], dtype=np.float64)
    longest = _both(spans, lambda flops: _bottleneck_tables(fleet, spans, nodes, averaged, flops))
    trips = _both(spans, lambda flops: _round_trip_tables(fleet, spans, nodes, flops))
    orders: tuple[tuple[int, ...], ...] = ()
    if not is_exact(len(nodes), len(spans.positions)):
        speeds = np.array([node.flops_per_s for node in nodes])
        orders = candidate_orders(trips[0], speeds, memory)
    needed = None if required is None else list(names).index(required)
    found: dict[tuple[Stage, ...], Pipeline] = {}
    tried: list[bytes] = []
    for window in _windows_to_try(spans.workload, len(nodes)):
        fits = ways_that_fit(spans, memory, window)
        if fits.tobytes() in tried:
            continue
        tried.append(fits.tobytes())
        tables, seconds = _chosen(longest, fits), _chosen(trips, fits)
        if len(orders) > SHORTLIST:
            orders = shortlist(tables, orders, least)
        fastest = best_pipeline(tables, np.maximum, least, orders, needed)
        if fastest is None:
            continue
        for slack in SLACKS:
            limit = fastest.cost * slack * (1 + 1e-12)
            within = Tables(
                np.where(tables.stage <= limit, seconds.stage, np.inf),
                np.where(tables.hop <= limit, seconds.hop, np.inf),
            )
            solution = best_pipeline(within, np.add, least, orders, needed)
            for steps in (fastest.steps, () if solution is None else solution.steps):
                cut = _stages(spans, nodes, steps)
                for in_flight in dict.fromkeys((window, 1)) if cut else ():
                    stages = recomputing(fleet, spans, cut, in_flight)
                    if stages is not None and stages not in found:
                        found[stages] = _timed(fleet, spans, stages, averaged)
    best = max(found.values(), key=_worth, default=None)
    if best is None or required is not None or len(best.stages) == len(nodes):
        return best
    # Nodes that are left out have set the limits of the search: it may find better cuts without them.
    again = plan_pipeline(fleet, spans, [stage.node for stage in best.stages], averaged, least)
    return best if again is None else max(best, again, key=_worth)


def _worth(pipeline: Pipeline) -> tuple[float, int]:
    return pipeline.value, -len(pipeline.stages)


def _windows_to_try(work: Workload, nodes: int) -> Sequence[int]:
    """Micro-batches in flight for which spans are searched that fit in memory: from many to few."""
    if work.schedule == "gpipe":
        return (work.update_every,)  # every stage holds a whole update
    most = min(work.largest_window, nodes if work.is_synchronous else 3 * nodes + 4)
    return tuple(dict.fromkeys((most, max(1, most // 2), 1)))


def _fit(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], window: int) -> bool:
    """Whether every stage has memory for `window` micro-batches in flight, or for what a synchronous schedule holds."""
    return all(
        spans.stage_memory_bytes(*stage.units, (index, len(stages)), window, recomputes=stage.recomputes)
        <= fleet.node(stage.node).memory_bytes
        for index, stage in enumerate(stages)
    )


def largest_fitting_window(fleet: Fleet, spans: SpanCosts, stages: Sequence[Stage], wanted: int) -> int:
    """The largest window up to `wanted` that every stage has memory for; at least 1."""
    return next((window for window in range(wanted, 1, -1) if _fit(fleet, spans, stages, window)), 1)


def _timed(fleet: Fleet, spans: SpanCosts, stages: tuple[Stage, ...], averaged: float) -> Pipeline:
    work = spans.workload
    bottleneck = bottleneck_s(fleet, stages, loads_of(fleet, spans, stages), averaged)
    trip = round_trip_s(fleet, spans, stages)
    if work.is_synchronous:
        window = work.held(len(stages), 0)
    else:
        window = largest_fitting_window(fleet, spans, stages, wanted_window(bottleneck, trip, work))
    period = max(period_s(bottleneck, trip, window, work), flushed_s(fleet, spans, stages))
    rate = work.micro_batch / period
    return Pipeline(stages, window, rate, rate * staleness_factor(window, len(stages), work))


def _stages(spans: SpanCosts, nodes: Sequence[Node], steps: Sequence[tuple[int, int, int]]) -> tuple[Stage, ...]:
    at = spans.positions
    return tuple(Stage(nodes[i].name, (int(at[start]), int(at[end]))) for i, start, end in steps)


def _both(spans: SpanCosts, tables: Callable[[Floats], Tables]) -> tuple[Tables, Tables]:
    """`tables` of the FLOPs of stages that keep their activations, and of those that recompute them."""
    return tables(spans.flops_table()), tables(spans.flops_table(recomputes=True))


def _chosen(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """`fits`: [way, node, i, j]. The first way that does."""
    keep, again = both
    return Tables(np.where(fits[0], keep.stage, np.where(fits[1], again.stage, np.inf)), keep.hop)


def _bottleneck_tables(fleet: Fleet, spans: SpanCosts, nodes: Sequence[Node], averaged: float, flops: Floats) -> Tables:
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    share = averaged * spans.parameter_table
    sent, received = gradient[:, None] + forward[None, :], forward[:, None] + gradient[None, :]
    hosts = [host_key(fleet, node.name) for node in nodes]
    rows = []
    for node, host in zip(nodes, hosts, strict=True):
        mates = hosts.count(host)
        flows_out, flows_in = (sent, received) if mates == 1 else (0.0, 0.0)
        up = (flows_out + mates * share) / node.up_bytes_per_s
        down = (flows_in + mates * share) / node.down_bytes_per_s
        rows.append(np.maximum(np.maximum(up, down), flops / node.flops_per_s))
    rate = _flow_rates(fleet, nodes)
    hop = np.maximum(forward / rate[:, :, None], gradient / rate.T[:, :, None])
    return Tables(np.stack(rows), hop)


def _round_trip_tables(fleet: Fleet, spans: SpanCosts, nodes: Sequence[Node], flops: Floats) -> Tables:
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    rate = _flow_rates(fleet, nodes)
    latency = np.array([[0.0 if a is b else fleet.link(a.name, b.name).latency_s for b in nodes] for a in nodes])
    hop = 2 * latency[:, :, None] + forward / rate[:, :, None] + gradient / rate.T[:, :, None]
    return Tables(np.stack([flops / node.flops_per_s for node in nodes]), hop)


def _flow_rates(fleet: Fleet, nodes: Sequence[Node]) -> Floats:
    return np.array([[np.inf if a is b else fleet.flow_bytes_per_s(a.name, b.name) for b in nodes] for a in nodes])
