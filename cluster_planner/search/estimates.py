"""Estimates of what groups of nodes are worth as clusters, for many groups at once.

In: a fleet, a model's costs on few cut positions, and groups. Out: one `GroupEstimate` for each group. An estimate is
the search of pipeline/best_pipeline.py (the least bottleneck, then the shortest round trip within a slack of it) on
fewer cut positions, by the bounds that the search finds instead of exact timing, and as arrays over groups of about one
size. For up to EXACT nodes every subset and order is tried. Larger groups use all their nodes, or as many of the
fastest as there can be stages, in the best of a few orders. A local search compares estimates; what it finds is worked
out exactly afterwards (candidates.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.pipeline.order_and_cuts import windows_to_try
from cluster_planner.predict.objective import STALENESS_COST
from cluster_planner.predict.schedule_walk import SHORTEST_S
from cluster_planner.search.group_pipelines import (
    FAR,
    NOBODY,
    CheapestPipelines,
    GroupCosts,
    chains,
    costs_of,
    in_order,
    over_subsets,
)

SLACKS = (1.0, 1.25, np.inf)
"""A stage may take this many times the least bottleneck when that shortens the round trip."""

FINE, FINE_POSITIONS = 8, 20
"""Groups of more than EXACT nodes, of which up to FINE are estimated together, have FINE_POSITIONS cut positions."""

FEW_IN_FLIGHT = 2
EXACT = 5

CHUNK = 100_000
"""The number of array elements that one step of the search handles at once."""

Group = tuple[int, ...]
"""The sorted numbers, within the fleet, of the nodes of a group."""


class GroupEstimate(NamedTuple):
    """An estimate of one group.

    `used` names the nodes that would run stages; `value` is `samples_per_s` discounted for staleness and absence.
    """

    used: Group
    samples_per_s: float
    value: float


NOTHING = GroupEstimate((), 0.0, 0.0)
"""The estimate of a group that cannot hold the model."""


class Estimator:
    """An estimator caches its answers for one model, one fleet and one load of averaging.

    `averaging_per_s` is that load in bytes/s per parameter byte.
    """

    def __init__(
        self, fleet: Fleet, spans: SpanCosts, least: int, averaging_per_s: float, finer: SpanCosts | None = None
    ) -> None:
        """`spans` has few cut positions; `finer` has more, and serves groups of more than EXACT nodes."""
        self._fleet, self._spans, self._finer, self._least = fleet, spans, finer, least
        self._averaging_per_s = averaging_per_s
        self._known: dict[Group, GroupEstimate] = {}

    @property
    def asked(self) -> int:
        """This is the number of different groups that have been estimated."""
        return len(self._known)

    def of(self, groups: Iterable[Group]) -> list[GroupEstimate]:
        """Return one estimate for each group."""
        asked_for = [self._fastest(group) for group in groups]
        alike: dict[int, dict[Group, None]] = {}
        for group in asked_for:
            if group in self._known:
                continue
            if len(group) < self._least:
                self._known[group] = NOTHING
            else:
                alike.setdefault(self._width(len(group)), {})[group] = None
        for width, several in alike.items():
            spans = self._finer if self._finer is not None and width > EXACT else self._spans
            step = max(1, CHUNK // ((1 << width if width <= EXACT else 1) * len(spans.positions) ** 2))
            asked = list(several)
            for start in range(0, len(asked), step):
                self._estimate(asked[start : start + step], spans, windows_to_try(spans.workload, width))
        return [self._known[group] for group in asked_for]

    def _fastest(self, group: Group) -> Group:
        """Return the group, without its slowest nodes where it has more than there can be stages."""
        spans = self._spans if self._finer is None else self._finer
        most = len(spans.positions) - 1
        if len(group) <= most:
            return group
        speed = self._fleet.arrays.flops_per_s
        return tuple(sorted(sorted(group, key=lambda i: (-speed[i], i))[:most]))

    def _width(self, size: int) -> int:
        """Return the largest size of the groups that are estimated together with groups of `size` nodes."""
        if size <= EXACT or self._spans.workload.is_synchronous:  # which holds as many micro-batches as it has stages
            return size
        width = FINE
        while width < size:
            width += width // 2
        return width

    def _estimate(self, groups: list[Group], spans: SpanCosts, windows: Sequence[int]) -> None:
        at = np.array(list(zip_longest(*groups, fillvalue=NOBODY)))
        costs = costs_of(self._fleet.arrays, spans, at, self._averaging_per_s)
        value, rate = np.zeros(len(groups)), np.zeros(len(groups))
        used = np.zeros(len(groups), dtype=np.int64)
        before: NDArray[np.bool_] | None = None
        for window in windows:
            fits = costs.fits(window)
            news = value < self._most(costs.fastest, window)
            if before is not None:
                news &= (fits != before).any(axis=(0, 1, 2))[costs.entry].any(axis=0)
            before = fits
            if not news.any():
                continue
            found = self._searched(costs.of(news), fits, window)
            better = found[0] > value[news]
            rows = np.flatnonzero(news)[better]
            value[rows], rate[rows], used[rows] = (part[better] for part in found)
        for group, one, speed, bits in zip(groups, value.tolist(), rate.tolist(), used.tolist(), strict=True):
            nodes = group if bits < 0 else tuple(node for i, node in enumerate(group) if bits >> i & 1)
            there = self._fleet.rules.presence(nodes)
            self._known[group] = GroupEstimate(nodes, speed, one * there) if one * there > 0 else NOTHING

    def _most(self, fastest: Floats, window: int) -> Floats:
        """Return the samples/s that no row exceeds with `window` in flight.

        A round trip takes at least what the fastest node takes by itself.
        """
        alone_s = np.maximum(self._spans.flops(0, self._spans.count) / fastest, SHORTEST_S)
        work = self._spans.workload
        most: Floats = work.micro_batch * min(window, work.largest_window) / alone_s
        return most

    def _searched(
        self, costs: GroupCosts, fits: NDArray[np.bool_], window: int
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Return each row's value, its samples/s and the nodes used as bits, with at most `window` in flight."""
        compute, longest = costs.stages(fits)
        if len(costs.entry) <= EXACT:
            everyone = np.arange(len(costs.entry))
            trips, hops = costs.hops(everyone[:, None, None], everyone[:, None])
            seconds, stages = (table[..., costs.entry].transpose(2, 0, 1, 3) for table in (compute, longest))
            shortest = over_subsets(stages, hops, np.maximum, self._least).cost

            def least_trip(limit: Floats) -> CheapestPipelines:
                within = np.where(stages <= limit, seconds, np.inf), np.where(hops <= limit, trips, np.inf)
                return over_subsets(*within, np.add, self._least)

            return self._worthiest(shortest, least_trip, window)
        nearest = chains(costs.distances(), compute[0, -1][costs.entry])
        orders = np.stack([nearest, nearest[::-1], costs.speed.argsort(axis=0, kind="stable")])
        rows = np.arange(orders.shape[2])
        tried = [
            in_order(_each(longest, costs.entry[order, rows]), costs.hops(order[:-1], order[1:])[1], np.maximum).cost
            for order in orders
        ]
        order = orders[np.argmin(tried, axis=0), :, rows].T
        entry, (trips, hops) = costs.entry[order, rows], costs.hops(order[:-1], order[1:])

        def least_trip_in_order(limit: Floats) -> CheapestPipelines:
            stages = _each_within(compute, longest, entry, limit)
            return in_order(stages, np.where(hops <= limit, trips, np.inf), np.add)

        return self._worthiest(np.min(tried, axis=0), least_trip_in_order, window)

    def _worthiest(
        self, shortest: Floats, least_trip: Callable[[Floats], CheapestPipelines], window: int
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Return the same as `_searched`.

        `shortest` is the least bottleneck of each row. `least_trip` gives the shortest round trip of pipelines whose
        bottleneck is at most a limit.
        """
        best_value, best_rate = np.zeros(len(shortest)), np.zeros(len(shortest))
        best_used = np.zeros(len(shortest), dtype=np.int64)
        # With any bottleneck, a round trip is only worth searching where hardly more than one micro-batch is in flight.
        for slack in SLACKS if min(window, self._spans.workload.largest_window) <= FEW_IN_FLIGHT else SLACKS[:-1]:
            limit = np.full(len(shortest), np.inf) if np.isinf(slack) else shortest * slack
            found = least_trip(limit)
            bottleneck = found.cost if np.isinf(slack) else limit
            samples, value = self._worth(bottleneck, found.cost, found.used, window)
            better = value > best_value
            best_value[better], best_rate[better], best_used[better] = (
                value[better],
                samples[better],
                found.used[better],
            )
        return best_value, best_rate, best_used

    def _worth(self, bottleneck: Floats, trip: Floats, used: NDArray[np.int64], window: int) -> tuple[Floats, Floats]:
        work = self._spans.workload
        possible = (trip < FAR) & (bottleneck < FAR)
        bottleneck, trip = np.where(possible, np.maximum(bottleneck, SHORTEST_S), 1.0), np.where(possible, trip, 1.0)
        wanted = np.ceil(np.minimum(trip / bottleneck, work.largest_window)) + 2
        in_flight = np.minimum(wanted, min(window, work.largest_window))
        admitted = ((work.update_every - 1) * bottleneck + trip) / work.largest_window
        period = np.maximum(np.maximum(bottleneck, trip / in_flight), np.maximum(admitted, SHORTEST_S))
        delay = np.minimum((in_flight - 1) / (2 * work.update_every), work.max_staleness)
        alone = (used & (used - 1)) == 0
        samples = np.where(possible, work.micro_batch / period, 0.0)
        return samples, samples / np.where(alone, 1.0, 1.0 + STALENESS_COST * delay)


def _each(table: Floats, entry: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield [i, j, row] of one node after the other, in an array that is used again.

    `table` is [i, j, entry] and `entry` is [node, row].
    """
    given = np.empty((*table.shape[:2], entry.shape[1]))
    for mine in entry:
        yield np.take(table, mine, axis=2, out=given, mode="clip")  # clip: take copies once more to raise


def _each_within(compute: Floats, longest: Floats, entry: NDArray[np.int64], limit: Floats) -> Iterator[Floats]:
    """Yield `compute` as `_each` does where `longest` is within the limit of the row, and FAR or more beyond it."""
    beyond = np.empty((*compute.shape[:2], entry.shape[1]))
    for most, mine in zip(_each(longest, entry), _each(compute, entry), strict=True):
        np.multiply(most > limit, FAR, out=beyond)  # np.where has branches, which takes several times as long
        yield np.add(mine, beyond, out=mine)


def merged(*groups: Sequence[int]) -> Group:
    """Return the union of these groups as one group."""
    return tuple(sorted(chain.from_iterable(groups)))
