"""The order of a cluster's nodes along its pipeline, and the cuts between them: searches over tables of numbers.

For a given order, dynamic programming over cut positions finds the spans, and which nodes are passed over, so that the
worst of all stage and hop costs (combine = np.maximum), or their sum (np.add), is least. It is optimal for that order:

    best[j][c] = min over b < c of combine(min over i before j of combine(best[i][b], hop[i, j, b]), stage[j, b, c])

`best[j][c]` is the least cost of units up to position c with node j last. The number of stages so far is carried along
up to the least number asked for, or to the last stage that a node is pinned to. Time O(nodes · positions · (nodes +
positions)).

The order is exact for up to EXACT_ORDER_NODES nodes, as long as the tables stay small (`is_exact`): dynamic programming
over the sets of nodes used so far, as Held and Karp do for tours, tries every subset and every order, all sets of one
size at once. Beyond, it is heuristic: the best of a few orders (nearest neighbour by hop cost from several starts, by
speed, by memory), each with optimal cuts.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.model_costs import Workload

Floats: TypeAlias = NDArray[np.float64]

FINER = 0.75
"""Where windows are tried finely, each is at most this part of the one before."""


EXACT_ORDER_NODES = 8

EXACT_WORK = 7_000_000
"""The exact search makes 2^nodes · nodes · positions² steps; it is used where they are no more than this."""

SHORTLIST = 2
"""The number of heuristic orders that are searched beyond their bottleneck."""


@dataclass(frozen=True)
class Tables:
    """Costs of one cluster's nodes; a cost is infinite where something is impossible.

    `stage[j, b, c]` is the cost of node j with positions b to c, shape (nodes, positions, positions). `hop[i, j, b]` is
    the cost of a cut at b from i to j, shape (nodes, nodes, positions). Where a stage's cost depends on its place in
    the pipeline, as memory does with 1f1b, `places` has the tables of each place in turn, and a pipeline has just as
    many stages.
    """

    stage: Floats
    hop: Floats
    places: tuple[Floats, ...] = ()

    def at(self, place: int) -> Floats:
        """Return the costs of stages at this place of the pipeline, counted from 0."""
        return self.places[place] if self.places else self.stage

    def within(self, most: float, costs: "Tables") -> "Tables":
        """Return other costs of the same stages and hops, infinite where these are above `most`."""
        places = tuple(
            np.where(mine <= most, other, np.inf) for mine, other in zip(self.places, costs.places, strict=True)
        )
        stage = places[0] if places else np.where(self.stage <= most, costs.stage, np.inf)
        return Tables(stage, np.where(self.hop <= most, costs.hop, np.inf), places)

    def total(self, steps: Sequence[tuple[int, int, int]], combine: np.ufunc) -> float:
        """Return what the costs in a pipeline of these steps (see Solution) come to."""
        stages = [self.at(place)[step] for place, step in enumerate(steps)]
        hops = [self.hop[a, b, cut] for (a, _, cut), (b, _, _) in itertools.pairwise(steps)]
        return float(combine.reduce([*stages, *hops]))


@dataclass(frozen=True)
class Pinned:
    """The nodes, by index, that have to run a stage (`required`), and the stage that some of them have to run."""

    required: frozenset[int] = frozenset()
    stage_of: Mapping[int, int] = field(default_factory=dict)

    def allows(self, node: int, stage: int) -> bool:
        """Say whether that node may run that stage."""
        return self.stage_of.get(node, stage) == stage and (node in self.stage_of or stage not in self._taken)

    @cached_property
    def _taken(self) -> frozenset[int]:
        return frozenset(self.stage_of.values())


ANYONE = Pinned()


@dataclass(frozen=True)
class Solution:
    """A pipeline and its cost.

    `steps` has (node index, from position index, to position index) of each stage, in order.
    """

    cost: float
    steps: tuple[tuple[int, int, int], ...]


def best_cuts(
    tables: Tables, order: tuple[int, ...], combine: np.ufunc, least: int, pinned: Pinned = ANYONE
) -> Solution | None:
    """Return the cheapest pipeline of `least` or more stages whose nodes appear in this order, or None if there is
    none.
    """
    if least == len(order) and not tables.places and pinned == ANYONE:
        return _each_in_order(tables, order, combine)
    return cuts_of_orders(tables, (order,), combine, least, pinned)[0]


def _each_in_order(tables: Tables, order: tuple[int, ...], combine: np.ufunc) -> Solution | None:
    """Return the cheapest pipeline in which each of these nodes runs a stage."""
    best, came = tables.stage[order[0], 0], list[NDArray[np.int64]]()
    for before, node in itertools.pairwise(order):
        total = combine(combine(best, tables.hop[before, node])[:, None], tables.stage[node])
        came.append(total.argmin(axis=0))
        best = total.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    steps, end = list[tuple[int, int, int]](), len(best) - 1
    for node, starts in zip(order[:0:-1], reversed(came), strict=True):
        steps.append((node, int(starts[end]), end))
        end = int(starts[end])
    return Solution(float(best[-1]), ((order[0], 0, end), *reversed(steps)))


def cuts_of_orders(
    tables: Tables, orders: Sequence[tuple[int, ...]], combine: np.ufunc, least: int, pinned: Pinned = ANYONE
) -> list[Solution | None]:
    """Return what `best_cuts` returns of each of these orders of the same nodes, all at once where nobody is pinned."""
    if len(orders) > 1 and pinned != ANYONE:
        return [best_cuts(tables, order, combine, least, pinned) for order in orders]
    exactly = len(tables.places)
    most = exactly or max((least, *(stage + 2 for stage in pinned.stage_of.values())))  # counted exactly below it
    least = exactly or least
    numbers = np.array(orders)
    nodes, last = numbers.shape[1], tables.stage.shape[1] - 1
    best = np.full((most + 1, nodes, len(orders), last + 1), np.inf)
    came_count = np.full(best.shape, -1, dtype=np.int64)
    came_node, came_cut = came_count.copy(), came_count.copy()
    since, begun = 0, False  # who has to run a stage is not passed over
    for j, at in enumerate(numbers.T):
        node = int(at[0])  # several orders are looked at together only where it does not matter which node it is
        if not begun and pinned.allows(node, 0):
            best[1, j] = tables.at(0)[at, 0]
        # As many stages as there can be by now, and no fewer than leave enough nodes for the least number.
        for count in range(max(1, least - nodes + j), min(most - bool(exactly), j) + 1):
            if not pinned.allows(node, min(count, most - 1)):
                continue
            reach = combine(best[count, since:j], tables.hop[numbers[:, since:j].T, at])
            total = combine(reach.min(axis=0)[:, :, None], tables.at(count)[at])
            start, cost = total.argmin(axis=1), total.min(axis=1)
            reached = min(count + 1, most)
            better = cost < best[reached, j]
            best[reached, j, better] = cost[better]
            came_count[reached, j, better] = count
            came_node[reached, j, better] = since + np.take_along_axis(reach.argmin(axis=0), start, axis=1)[better]
            came_cut[reached, j, better] = start[better]
        if node in pinned.required:
            best[:, :j] = np.where(np.arange(last + 1) < last, best[:, :j], np.inf)
            since, begun = j, True
    came = np.stack((came_count, came_node, came_cut), axis=-1)
    return [_cut_back(best[:, :, i], came[:, :, i], order, least) for i, order in enumerate(orders)]


def _cut_back(best: Floats, came: NDArray[np.int64], order: tuple[int, ...], least: int) -> Solution | None:
    """Return the steps that made the least of `best[least or more, :, last]`, or None where nothing is possible."""
    last = best.shape[2] - 1
    count, j = (int(at) for at in np.unravel_index(best[least:, :, last].argmin(), best[least:, :, last].shape))
    count += least
    cost = float(best[count, j, last])
    if not np.isfinite(cost):
        return None
    steps: list[tuple[int, int, int]] = []
    end = last
    while True:
        previous, i, start = came[count, j, end].tolist()
        if previous < 0:
            steps.append((order[j], 0, end))
            return Solution(cost, tuple(reversed(steps)))
        steps.append((order[j], start, end))
        count, j, end = previous, i, start


def is_exact(nodes: int, positions: int) -> bool:
    """Say whether every subset and order of this many nodes is tried, with this many cut positions."""
    return nodes <= EXACT_ORDER_NODES and (1 << nodes) * nodes * positions**2 <= EXACT_WORK


def best_pipeline(
    tables: Tables, combine: np.ufunc, least: int, orders: tuple[tuple[int, ...], ...], pinned: Pinned = ANYONE
) -> Solution | None:
    """Return the cheapest pipeline of `least` or more stages, or None if none is possible.

    `orders` are tried where the search is not exact.
    """
    if is_exact(*tables.stage.shape[:2]):
        return _over_subsets(tables, combine, least, pinned)
    found = cuts_of_orders(tables, orders, combine, least, pinned)
    return min((s for s in found if s is not None), key=lambda s: s.cost, default=None)


def candidate_orders(tables: Tables, speeds: Floats, memories: Floats) -> tuple[tuple[int, ...], ...]:
    """Return orders worth trying, each also reversed.

    They are nearest-neighbour tours from distinct starts, the order by speed and the order by memory.
    """
    nodes = len(speeds)
    by_speed = tuple(int(i) for i in np.argsort(-speeds, kind="stable"))
    by_memory = tuple(int(i) for i in np.argsort(-memories, kind="stable"))
    distance = tables.hop.mean(axis=2)
    starts = dict.fromkeys((0, by_speed[0], by_speed[-1], by_memory[0], nodes // 2))
    orders = [_nearest_neighbours(distance, start) for start in starts]
    orders += [by_speed, by_memory]
    return tuple(dict.fromkeys(itertools.chain.from_iterable((order, order[::-1]) for order in orders)))


def shortlist(
    tables: Tables, orders: tuple[tuple[int, ...], ...], least: int, pinned: Pinned = ANYONE
) -> tuple[tuple[int, ...], ...]:
    """Return the SHORTLIST orders with the least bottleneck under optimal cuts, or all orders if none is possible."""
    costs = cuts_of_orders(tables, orders, np.maximum, least, pinned)
    ranked = sorted((found.cost, i) for i, found in enumerate(costs) if found is not None)
    return tuple(orders[i] for _, i in ranked[:SHORTLIST]) or orders


def _nearest_neighbours(distance: Floats, start: int) -> tuple[int, ...]:
    order, left = [start], [i for i in range(len(distance)) if i != start]
    while left:
        here = order[-1]
        order.append(min(left, key=lambda i: (distance[here, i], i)))
        left.remove(order[-1])
    return tuple(order)


def _over_subsets(tables: Tables, combine: np.ufunc, least: int, pinned: Pinned) -> Solution | None:
    least = len(tables.places) or least
    best = _of_sets(tables, combine, pinned)
    needed, (sets, sizes) = sum(1 << j for j in pinned.required), sets_by_size(len(tables.stage))
    ends = best[-1, :, sets[(sizes >= least) & (sets & needed == needed)]]
    found = sets[(sizes >= least) & (sets & needed == needed)]
    at, j = (int(index) for index in np.unravel_index(ends.argmin(), ends.shape)) if ends.size else (0, 0)
    if not ends.size or not np.isfinite(ends[at, j]):
        return None
    return Solution(float(ends[at, j]), _walked_back(tables, combine, best.transpose(2, 1, 0), int(found[at]), j))


def cheapest_of_sets(tables: Tables, combine: np.ufunc) -> Floats:
    """Return, for each set of nodes as bits, the cost of the cheapest pipeline in which each of them runs a stage."""
    cheapest: Floats = _of_sets(tables, combine, ANYONE)[-1].min(axis=0)
    return cheapest


def _of_sets(tables: Tables, combine: np.ufunc, pinned: Pinned) -> Floats:
    """Return [position, node, set]: the cost of the cheapest pipeline up to a position in which these nodes run a stage
    each, that one the last.
    """
    nodes, positions = tables.stage.shape[:2]
    best = np.full((positions, nodes, 1 << nodes), np.inf)  # sets last: numpy's innermost loops are long then
    hops, everyone = tables.hop.transpose(2, 0, 1).copy(), np.arange(nodes)[:, None]
    for j in range(nodes):
        if pinned.allows(j, 0):
            best[:, j, 1 << j] = tables.at(0)[j, 0]
    for size in range(2, (len(tables.places) or nodes) + 1):
        used, others = sets_of(nodes, size)
        before, reached_by = used ^ (1 << everyone), others.transpose(2, 0, 1)
        reach = combine(best[:, reached_by, before], hops[:, reached_by, everyone]).min(axis=1)
        stage = tables.at(size - 1).transpose(1, 2, 0)[..., None]
        cost = combine(reach[:, None], stage).min(axis=0)
        for j in (j for j in range(nodes) if not pinned.allows(j, size - 1)):
            cost[:, j] = np.inf
        best[:, everyone, used] = cost
    return best


def _walked_back(
    tables: Tables, combine: np.ufunc, best: Floats, used: int, j: int
) -> tuple[tuple[int, int, int], ...]:
    """Return the steps that made `best[used, j, last]`, by deciding each of them once more."""
    end = best.shape[2] - 1
    steps: list[tuple[int, int, int]] = []
    while before := used & ~(1 << j):
        others = [i for i in range(best.shape[1]) if before >> i & 1]
        reach = combine(best[before, others], tables.hop[others, j])
        stage = tables.at(used.bit_count() - 1)
        start = int(combine(reach.min(axis=0), stage[j, :, end]).argmin())
        steps.append((j, start, end))
        used, j, end = before, others[int(reach[:, start].argmin())], start
    return (j, 0, end), *reversed(steps)


@cache
def sets_by_size(nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all sets of nodes but the empty one as bits, the smallest first, and the size of each."""
    sets = np.array(sorted(range(1, 1 << nodes), key=lambda bits: (bits.bit_count(), bits)))
    return sets, np.array([int(bits).bit_count() for bits in sets])


@cache
def sets_of(nodes: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all sets of `size` nodes by their newest node: as bits [newest node, set], and the other nodes of each,
    [newest node, set, place].
    """
    others = [list(itertools.combinations([i for i in range(nodes) if i != j], size - 1)) for j in range(nodes)]
    numbers = np.array(others, dtype=np.int64).reshape(nodes, math.comb(nodes - 1, size - 1), size - 1)
    return (1 << numbers).sum(axis=2) + (1 << np.arange(nodes))[:, None], numbers


def windows_to_try(work: Workload, nodes: int, *, finely: bool = False) -> Sequence[int]:
    """Return the windows (micro-batches in flight) for which spans that fit in memory are searched, from large to
    small.
    """
    if work.schedule == "gpipe":
        return (work.update_every,)  # every stage holds a whole update
    most = min(work.largest_window, nodes if work.is_synchronous else 3 * nodes + 4)
    if not finely:
        return tuple(dict.fromkeys((most, max(1, most // 2), 1)))
    windows = [most]
    while windows[-1] > 1:
        windows.append(min(windows[-1] - 1, math.floor(FINER * windows[-1])))
    return tuple(windows)
