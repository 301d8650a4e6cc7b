"""The best pipeline for one group of nodes: which nodes run stages, in what order, with what spans and what window.

Two searches by dynamic programming (order_and_cuts.py) run on tables of costs: the least bottleneck; then the shortest
round trip among pipelines whose bottleneck is at most that, or a little more, or anything, or where neither waits for
the other. A stage whose memory is too short for what it would keep recomputes it, if the workload allows, and takes
longer. All results are timed by the exact formulas, in small fleets also walked (schedule_walk.py), and the most
valuable one is taken.

The tables hold occupancy in seconds for bottlenecks, and seconds for round trips, by the formulas of stage_times.py.
Where nodes of the group share a host, a boundary's flow counts by itself against the uplink, since it is not known yet
which neighbours are on the host.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.memory_fit import largest_fitting_window, recomputing
from cluster_planner.pipeline.order_and_cuts import (
    EXACT_ORDER_NODES,
    SHORTLIST,
    SLACKS,
    Pinned,
    Solution,
    Tables,
    best_pipeline,
    candidate_orders,
    is_exact,
    shortlist,
    windows_to_try,
)
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.objective import staleness_factor
from cluster_planner.predict.stage_times import (
    bottleneck_s,
    flushed_s,
    is_near,
    loads_of,
    period_s,
    round_trip_s,
    wanted_window,
    window_limited_s,
)

FASTEST = 32
"""In a group with more nodes than there can be stages, this many of the fastest are considered beside the largest."""


THOROUGH_NODES = 24
"""In fleets of at most this many nodes pipelines are compared as walked (schedule_walk.py), more windows are tried, and
orders are looked for on all cut positions. In larger ones all orders of few nodes are tried on few positions, and the
best one is cut on all.
"""


PLACED_PARTS = (1.0, 0.75, 0.5, 0.25)
"""In larger groups pipelines of these parts of the nodes are cut by what each place holds."""

HALVINGS, FEW_HALVINGS = 4, 1
"""The largest number of limits that are searched between two of SLACKS; the second in fleets of more nodes."""

Find = Callable[[Tables, np.ufunc], Solution | None]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline and its value: samples/s, discounted for staleness and for the hours when not all nodes are there."""

    stages: tuple[Stage, ...]
    window: int
    samples_per_s: float
    value: float


def plan_pipeline(
    fleet: Fleet,
    spans: SpanCosts,
    names: Sequence[str],
    averaging_per_s: float,
    least: int,
    required: str | None = None,
    *,
    in_order: bool = False,
) -> Pipeline | None:
    """Return the most valuable pipeline of `least` or more stages among these nodes, or None where none fits in memory.

    `averaging_per_s`: bytes that averaging moves each way a second per parameter byte. `required`: a node that must run
    a stage, beside those that are pinned. `in_order`: only pipelines in the order of `names`.
    """
    coarse, given = spans.coarse, (averaging_per_s, least, required)
    is_coarser = len(coarse.positions) < len(spans.positions) and is_exact(len(names), len(coarse.positions))
    if is_coarser and not in_order and len(fleet.nodes) > THOROUGH_NODES:
        rough = _searched(fleet, coarse, names, *given, in_order=False)
        if rough is not None:
            fine = plan_pipeline(fleet, spans, [stage.node for stage in rough.stages], *given, in_order=True)
            return rough if fine is None else max(rough, fine, key=_worth)
    best = _searched(fleet, spans, names, *given, in_order=in_order)
    if best is None or required is not None:
        return best
    # Nodes that are left out have set the limits of the search: it may find better cuts without them.
    used = [stage.node for stage in best.stages]
    again = None if len(used) == len(names) else plan_pipeline(fleet, spans, used, *given, in_order=in_order)
    return best if again is None else max(best, again, key=_worth)


def _searched(
    fleet: Fleet,
    spans: SpanCosts,
    names: Sequence[str],
    averaging_per_s: float,
    least: int,
    required: str | None,
    *,
    in_order: bool,
) -> Pipeline | None:
    """Return the most valuable pipeline of one search among these nodes. The arguments are those of plan_pipeline."""
    needed = fleet.rules.required(names) | frozenset(() if required is None else (required,))
    names = names if in_order else _shortlisted(fleet, names, len(spans.positions), needed)
    group, pinned = GroupNodes(fleet, names), _pinned(fleet, names, needed)
    ends = [i for i, name in enumerate(names) if fleet.rules.stage_of.get(name) == LAST]
    longest = both_ways(spans, lambda flops: ending(bottleneck_tables(spans, group, averaging_per_s, flops), ends))
    trips = both_ways(spans, lambda flops: ending(round_trip_tables(spans, group, flops), ends))
    exact = is_exact(len(names), len(spans.positions)) and not in_order
    orders: tuple[tuple[int, ...], ...] = (tuple(range(len(names))),)
    if not exact and not in_order:
        orders = candidate_orders(trips[0], group.flops_per_s, group.room_bytes)
        orders = tuple(dict.fromkeys(_arranged(order, pinned, ends) for order in orders))
    find = partial(best_pipeline, least=least, orders=() if exact else orders, pinned=pinned)
    cuts: dict[tuple[tuple[tuple[int, int, int], ...], int], None] = {}
    tried: list[bytes] = []
    is_thorough = len(fleet.nodes) <= THOROUGH_NODES
    for window, held in _held_to_try(spans, group, least, is_thorough):
        fits = np.stack([spans.ways_that_fit(*group.rooms, each) for each in held])
        if fits.tobytes() in tried:
            continue
        tried.append(fits.tobytes())
        tables, seconds = tables_that_fit(longest, fits), tables_that_fit(trips, fits)
        if not exact and len(orders) > SHORTLIST:
            orders = shortlist(tables, orders, least, pinned)
            find = partial(find, orders=orders)
        fastest = find(tables, np.maximum)
        if fastest is None:
            continue
        period = partial(period_s, window=window, workload=spans.workload)
        halvings = HALVINGS if is_thorough else FEW_HALVINGS
        for solution in (fastest, *_shorter_trips(tables, seconds, fastest.cost, period, find, halvings)):
            cuts |= {(solution.steps, window): None, (solution.steps, 1): None}
    ways = (recomputing(fleet, spans, _stages(spans, names, steps), window) for steps, window in cuts)
    found = [timed(fleet, spans, stages, averaging_per_s) for stages in dict.fromkeys(ways) if stages is not None]
    return _best_walked(fleet, spans, found) if is_thorough else max(found, key=_worth, default=None)


def _held_to_try(
    spans: SpanCosts, group: "GroupNodes", least: int, finely: bool
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield windows to try, each with the micro-batches that stages hold then: all the same, or place by place.

    With 1f1b a later stage holds fewer. Where memory is too short for all to hold as many as the first, which keeps the
    search short, pipelines of each number of stages are tried with what their places hold.
    """
    work, nodes = spans.workload, len(group.room_bytes)
    for window in windows_to_try(work, nodes, finely=finely):
        yield window, (window,)
    if work.schedule != "1f1b":
        return
    most = min(nodes, len(spans.positions) - 1)
    tight = spans.ways_that_fit(*group.rooms, min(most, work.update_every))
    if (tight == spans.ways_that_fit(*group.rooms, 1)).all():
        return
    counts = list(range(max(2, least), most + 1))
    if most > EXACT_ORDER_NODES:
        counts = sorted({round(most * part) for part in PLACED_PARTS} & set(counts))
    for stages in counts:
        yield stages, tuple(work.held(stages, index) for index in range(stages))


def _shorter_trips(
    tables: Tables,
    seconds: Tables,
    least_s: float,
    period: Callable[[float, float], float],
    find: Find,
    halvings: int,
) -> Iterator[Solution]:
    """Return the shortest round trips with bottlenecks of at most SLACKS times the least, then of so many limits
    between: at the best limit the round trip is waited for just as long as the bottleneck takes.
    """

    def within(limit_s: float) -> Solution | None:
        return find(tables.within(limit_s * (1 + 1e-12), seconds), np.add)

    too_low_s, too_high_s = 0.0, np.inf
    for turn in range(len(SLACKS) + halvings):
        if turn < len(SLACKS):
            limit_s = least_s * SLACKS[turn]
            if np.isinf(limit_s) and np.isfinite(too_high_s):
                continue  # a longer bottleneck does not wait for a shorter round trip
        elif 0 < too_low_s < too_high_s < np.inf:
            limit_s = math.sqrt(too_low_s * too_high_s)
        else:
            return
        solution = within(limit_s)
        if solution is None:
            continue
        yield solution
        longest_s = tables.most(solution.steps)
        if period(longest_s, solution.cost) > longest_s:
            too_low_s = max(too_low_s, min(limit_s, too_high_s))
        else:
            too_high_s = min(too_high_s, longest_s)


def _worth(pipeline: Pipeline) -> tuple[float, int]:
    return pipeline.value, -len(pipeline.stages)


def _best_walked(fleet: Fleet, spans: SpanCosts, found: Sequence[Pipeline]) -> Pipeline | None:
    """Return the most valuable one as it is predicted: those that wait for their round trip are slower than the
    formulas say, and never faster.
    """
    best: Pipeline | None = None
    for one in sorted(found, key=_worth, reverse=True):
        if best is not None and one.value <= best.value:
            break
        best = max((each for each in (best, _walked(fleet, spans, one)) if each is not None), key=_worth)
    return best


def _walked(fleet: Fleet, spans: SpanCosts, pipeline: Pipeline) -> Pipeline:
    stages, work = pipeline.stages, spans.workload
    bottleneck = bottleneck_s(fleet, stages, loads_of(fleet, spans, stages), 0.0)
    trip = round_trip_s(fleet, spans, stages)
    if len(stages) == 1 or not is_near(work, *map(np.asarray, (bottleneck, trip, pipeline.window))):
        return pipeline
    rate = work.micro_batch / window_limited_s(fleet, spans, Cluster("", pipeline.window, stages))
    slower = min(1.0, rate / pipeline.samples_per_s)
    return replace(pipeline, samples_per_s=pipeline.samples_per_s * slower, value=pipeline.value * slower)


def timed(fleet: Fleet, spans: SpanCosts, stages: tuple[Stage, ...], averaging_per_s: float) -> Pipeline:
    """Time these stages by the exact formulas, with the window that they want and have memory for."""
    work = spans.workload
    bottleneck = bottleneck_s(fleet, stages, loads_of(fleet, spans, stages), averaging_per_s)
    trip = round_trip_s(fleet, spans, stages)
    if work.is_synchronous:
        window = work.held(len(stages), 0)
    else:
        window = largest_fitting_window(fleet, spans, stages, wanted_window(bottleneck, trip, work))
    period = max(period_s(bottleneck, trip, window, work), flushed_s(fleet, spans, stages))
    rate = work.micro_batch / period
    counted = staleness_factor(window, len(stages), work) * fleet.rules.presence_of(stage.node for stage in stages)
    return Pipeline(stages, window, rate, rate * counted)


def _stages(spans: SpanCosts, names: Sequence[str], steps: Sequence[tuple[int, int, int]]) -> tuple[Stage, ...]:
    at = spans.positions
    return tuple(Stage(names[i], (int(at[start]), int(at[end]))) for i, start, end in steps)


def _pinned(fleet: Fleet, names: Sequence[str], needed: frozenset[str]) -> Pinned:
    stages = ((i, fleet.rules.stage_of.get(name)) for i, name in enumerate(names))
    return Pinned(
        frozenset(i for i, name in enumerate(names) if name in needed),
        {i: stage for i, stage in stages if isinstance(stage, int)},
    )


def _arranged(order: tuple[int, ...], pinned: Pinned, ends: Sequence[int]) -> tuple[int, ...]:
    """Return the order with pinned nodes in their places."""
    arranged = [i for i in order if i not in pinned.stage_of and i not in ends]
    for node, stage in sorted(pinned.stage_of.items(), key=lambda item: item[1]):
        arranged.insert(stage, node)
    return (*arranged, *ends)


def _shortlisted(fleet: Fleet, names: Sequence[str], positions: int, needed: frozenset[str]) -> Sequence[str]:
    """Choose among more nodes than there can be stages: the largest, with which the model fits if it does at all, the
    fastest, and those that have to run a stage.
    """
    if len(names) <= positions:
        return names
    nodes = [fleet.node(name) for name in names]
    largest = sorted(nodes, key=lambda node: (-node.room_bytes, -node.flops_per_s))[: positions - 1]
    fastest = sorted(nodes, key=lambda node: -node.flops_per_s)[:FASTEST]
    kept = needed | {node.name for node in (*largest, *fastest)}
    return [name for name in names if name in kept]


class GroupNodes:
    """The nodes of a search, as arrays in the order of `names`."""

    def __init__(self, fleet: Fleet, names: Sequence[str]) -> None:
        sites = fleet.arrays
        at = np.array([sites.number_of[name] for name in names])
        self.flops_per_s, self.room_bytes = sites.flops_per_s[at], sites.room_bytes[at]
        self.host_room_bytes = sites.host_room_bytes[at]
        self.up_bytes_per_s, self.down_bytes_per_s = sites.up_bytes_per_s[at], sites.down_bytes_per_s[at]
        self.latency_s, self.flow_bytes_per_s = sites.between(at, at)
        hosts = sites.host[at]
        self.mates = np.where(hosts < 0, 1, (hosts[:, None] == hosts).sum(axis=1))

    @classmethod
    def slowest_of(cls, fleet: Fleet, orders: Sequence[Sequence[str]]) -> "GroupNodes":
        """Return nodes that at each place are as slow as the slowest of all these orders, in each respect, with as
        little memory and links as slow.
        """
        group = cls(fleet, orders[0])
        for order in orders[1:]:
            other = cls(fleet, order)
            for name in (
                "flops_per_s",
                "room_bytes",
                "host_room_bytes",
                "up_bytes_per_s",
                "down_bytes_per_s",
                "flow_bytes_per_s",
            ):
                setattr(group, name, np.minimum(getattr(group, name), getattr(other, name)))
            group.latency_s = np.maximum(group.latency_s, other.latency_s)
            group.mates = np.maximum(group.mates, other.mates)
        return group

    @property
    def rooms(self) -> tuple[Floats, Floats]:
        """Return the room of each node, and of each GPU's machine, in bytes."""
        return self.room_bytes, self.host_room_bytes


def bottleneck_tables(spans: SpanCosts, group: GroupNodes, averaging_per_s: float, flops: Floats) -> Tables:
    """Occupancy in seconds, when averaging moves `averaging_per_s` bytes each way per parameter byte."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    averaged = averaging_per_s * spans.parameter_table
    sent, received = gradient[:, None] + forward[None, :], forward[:, None] + gradient[None, :]
    stage = spans.table_with_reading(flops / group.flops_per_s[:, None, None])
    alone = (group.mates == 1)[:, None, None]
    for flows, rate in ((sent, group.up_bytes_per_s), (received, group.down_bytes_per_s)):
        if averaging_per_s == 0.0:
            busy = np.where(alone, flows / rate[:, None, None], 0.0)
        else:
            left = rate[:, None, None] - group.mates[:, None, None] * averaged
            busy = np.where(left > 0, np.where(alone, flows, 0.0) / np.where(left > 0, left, 1.0), np.inf)
        stage = np.maximum(stage, busy)
    rate = group.flow_bytes_per_s
    hop = np.maximum(forward / rate[:, :, None], gradient / rate.T[:, :, None])
    return Tables(stage, hop)


def round_trip_tables(spans: SpanCosts, group: GroupNodes, flops: Floats) -> Tables:
    """Return the seconds that each stage and each hop adds to a round trip."""
    forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
    rate = group.flow_bytes_per_s
    hop = 2 * group.latency_s[:, :, None] + forward / rate[:, :, None] + gradient / rate.T[:, :, None]
    return Tables(spans.table_with_reading(flops / group.flops_per_s[:, None, None]), hop)


def ending(tables: Tables, ends: Sequence[int]) -> Tables:
    """Forbid, in place, all nodes but those of `ends` to run the last stage, and those to run any other."""
    for node in ends:
        others = np.arange(len(tables.stage)) != node
        tables.stage[others, :, -1] = np.inf
        tables.stage[node, :, :-1] = np.inf
    return tables


def both_ways(spans: SpanCosts, tables: Callable[[Floats], Tables]) -> tuple[Tables, Tables]:
    """Return `tables` of the FLOPs of stages that keep their activations, and of those that recompute them."""
    return tables(spans.flops_table()), tables(spans.flops_table(recomputes=True))


def tables_that_fit(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """Return the tables of a way that fits, where `fits` has several along its first axis place by place."""
    placed = [first_that_fits(both, each) for each in fits]
    return placed[0] if len(placed) == 1 else Tables(placed[0].stage, placed[0].hop, tuple(one.stage for one in placed))


def first_that_fits(both: tuple[Tables, Tables], fits: NDArray[np.bool_]) -> Tables:
    """Return the tables of the first way in which each span fits. `fits`: [way, node, i, j], see
    SpanCosts.ways_that_fit.
    """
    keep, again = both
    return Tables(np.where(fits[0], keep.stage, np.where(fits[1], again.stage, np.inf)), keep.hop)
