"""The best pipeline for one group of nodes: which nodes run stages, in what order, with what spans and what window.

Two searches by dynamic programming (order_and_cuts.py) run on tables of costs: the least bottleneck; then the shortest
round trip among pipelines whose bottleneck is at most that, or anything, or a limit between, as far as the most that
such are worth (value_bounds.py) is more than what was found. All results are timed by the exact formulas, in small
fleets also walked (schedule_walk.py), and the most valuable one is taken.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.constraints import LAST
from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.cost_tables import (
    GroupNodes,
    both_ways,
    bottleneck_tables,
    ending,
    round_trip_tables,
    tables_that_fit,
)
from cluster_planner.pipeline.memory_fit import largest_fitting_window, recomputing
from cluster_planner.pipeline.order_and_cuts import (
    EXACT_ORDER_NODES,
    SHORTLIST,
    Pinned,
    Solution,
    Tables,
    best_pipeline,
    candidate_orders,
    is_exact,
    shortlist,
    windows_to_try,
)
from cluster_planner.pipeline.value_bounds import most_worth
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.objective import staleness_factor
from cluster_planner.predict.schedule_walk import SHORTEST_S
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

LIMITS, FEW_LIMITS = 4, 2
"""The largest number of limits of the bottleneck that are tried beside the least one and none; the second in fleets of
more than THOROUGH_NODES.
"""

SLACK = 1.25
"""The first of these limits is so many times the least one."""

ENOUGH = 1.001
"""What is worth at most so many times the best pipeline by then is not looked for."""

ROUNDING = 1e-12
"""Costs that differ by no more than this part are the same."""

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
    work, is_thorough = spans.workload, len(fleet.nodes) <= THOROUGH_NODES
    solved, found = Solved(), _Found(fleet, spans, averaging_per_s, walks=is_thorough)

    def is_hopeless(most: float) -> bool:
        return not work.is_synchronous and found.best is not None and most <= ENOUGH * found.best.value

    for room in _rooms_to_try(spans, group, least, is_thorough):
        if is_hopeless(room.most(solved.least_s(np.maximum), solved.least_s(np.add), work)):
            continue
        tables, seconds = tables_that_fit(longest, room.fits), tables_that_fit(trips, room.fits)
        if tables.places:
            solved = Solved()  # what fits place by place may not have fitted before
        if not exact and len(orders) > SHORTLIST:
            orders = shortlist(tables, orders, least, pinned)
            find = partial(find, orders=orders)
        solve, most = partial(solved.solve, tables, seconds, find), partial(room.most, work=work)
        for solution in _likely(tables, solve, most, is_hopeless, LIMITS if is_thorough else FEW_LIMITS):
            for window in (room.window, 1):
                stages = recomputing(fleet, spans, _stages(spans, names, solution.steps), window)
                if stages is not None:
                    found.look(stages)
    return found.best


class _Found:
    """The most valuable pipeline of those looked at. `walks`: as it is predicted, since those that wait for their round
    trip are slower than the formulas say, and never faster.
    """

    def __init__(self, fleet: Fleet, spans: SpanCosts, averaging_per_s: float, *, walks: bool) -> None:
        self._given, self._averaging_per_s, self._walks = (fleet, spans), averaging_per_s, walks
        self._seen = set[tuple[Stage, ...]]()
        self.best: Pipeline | None = None

    def look(self, stages: tuple[Stage, ...]) -> None:
        """Time these stages, and take them where they are worth more, or as much with fewer nodes."""
        if stages in self._seen:
            return
        self._seen.add(stages)
        one = timed(*self._given, stages, self._averaging_per_s)
        if self._walks and (self.best is None or one.value >= self.best.value):
            one = _walked(*self._given, one)
        self.best = one if self.best is None else max(self.best, one, key=_worth)


class Solved:
    """The searches over one group's tables so far. What less room allows is among what more room does: so the best
    pipeline with more room, or a higher limit, is the best one here where it is possible here at the same cost, and
    where nothing was possible there, nothing is here.
    """

    def __init__(self) -> None:
        self._known: dict[np.ufunc, list[tuple[float, Solution]]] = {np.maximum: [], np.add: []}
        self._impossible_s: dict[np.ufunc, float] = {np.maximum: -math.inf, np.add: -math.inf}

    def least_s(self, combine: np.ufunc) -> float:
        """Return the least that any pipeline costs, as far as is known; 0 while nothing is."""
        return min((solution.cost for limit, solution in self._known[combine] if np.isinf(limit)), default=0.0)

    def solve(self, tables: Tables, seconds: Tables, find: Find, limit_s: float, combine: np.ufunc) -> Solution | None:
        """Return the pipeline with the least bottleneck (np.maximum), or the shortest round trip (np.add), whose
        bottleneck is at most `limit_s`. The tables of a call leave no more room than those of the calls before.
        """
        if limit_s <= self._impossible_s[combine]:
            return None
        costs = seconds if combine is np.add else tables
        for limit, solution in self._known[combine]:
            is_possible = limit >= limit_s and tables.total(solution.steps, np.maximum) <= limit_s
            if is_possible and costs.total(solution.steps, combine) <= solution.cost * (1 + ROUNDING):
                return solution
        found = find(costs if np.isinf(limit_s) else tables.within(limit_s, costs), combine)
        if found is None:
            self._impossible_s[combine] = limit_s
        else:
            self._known[combine].append((limit_s, found))
        return found


class _Room(NamedTuple):
    """What fits, as `ways_that_fit` says, by place, with some windows: from `low` to `high`; with larger ones less
    does. `window`: the one that is tried.
    """

    window: int
    low: int
    high: int
    fits: NDArray[np.bool_]

    def most(self, longest_s: float, trip_s: float, work: Workload) -> float:
        """Return what pipelines with these times are worth at most, but for lone stages and those that have memory for
        larger windows, and are worth more with such. With a synchronous schedule it is what they make about.
        """
        if work.is_synchronous:
            return work.micro_batch * work.update_every / ((work.update_every - 1) * longest_s + trip_s + SHORTEST_S)
        return float(most_worth(longest_s, trip_s, work, (self.low, self.high)))


def _rooms_to_try(spans: SpanCosts, group: GroupNodes, least: int, finely: bool) -> Sequence[_Room]:
    """Return what is to be tried, from the most room to the least."""
    rooms, placed, above = list[_Room](), list[_Room](), spans.workload.largest_window
    for window, held in _held_to_try(spans, group, least, finely):
        fits = np.stack([spans.ways_that_fit(*group.rooms, each) for each in held])
        if len(held) > 1:
            placed.append(_Room(window, window, window, fits))
        elif rooms and (rooms[-1].fits == fits).all():
            rooms[-1] = rooms[-1]._replace(low=window)
        else:
            rooms.append(_Room(window, window, above, fits))
        above = window - 1
    return *reversed(rooms), *placed


def _held_to_try(
    spans: SpanCosts, group: GroupNodes, least: int, finely: bool
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


def _likely(
    tables: Tables,
    solve: Callable[[float, np.ufunc], Solution | None],
    most: Callable[[float, float], float],
    is_hopeless: Callable[[float], bool],
    limits: int,
) -> Iterator[Solution]:
    """Yield the pipeline with the least bottleneck, those with the shortest round trip among all and among those with
    the least bottleneck, and then with bottlenecks of at most so many limits between. `most`: what pipelines with a
    bottleneck and a round trip are worth at most. A limit is set where that is most, as long as that is not hopeless.
    """
    if (fastest := solve(np.inf, np.maximum)) is None or (shortest := solve(np.inf, np.add)) is None:
        return
    yield from (fastest, shortest)
    least_s = fastest.cost * (1 + ROUNDING)
    if (narrow := solve(least_s, np.add)) is not None:
        yield narrow
    # Within (above this bottleneck, at most that one) no round trip is shorter than the third.
    between = [(least_s, tables.total(shortest.steps, np.maximum), shortest.cost)]
    for number in range(limits):
        between = [one for one in between if one[0] < one[1]]
        if not between:
            return
        low_s, high_s, trip_s = one = max(between, key=lambda one: most(one[0], one[2]))
        middle_s = math.sqrt(low_s * high_s) if number else min(SLACK * low_s, high_s)
        limit_s = middle_s * (1 + ROUNDING)
        if is_hopeless(most(low_s, trip_s)) or (solution := solve(limit_s, np.add)) is None:
            return
        yield solution
        between.remove(one)
        between += [(low_s, tables.total(solution.steps, np.maximum), solution.cost), (limit_s, high_s, trip_s)]


def _worth(pipeline: Pipeline) -> tuple[float, int]:
    return pipeline.value, -len(pipeline.stages)


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
