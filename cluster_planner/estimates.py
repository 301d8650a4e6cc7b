"""What groups of nodes are worth as clusters, estimated for many groups at once.

Decides about how fast each would be: the same search as pipeline.py's (least bottleneck, then the shortest round trip
within a slack of it), on fewer cut positions, by the bounds that the search finds instead of exact timing, and as
arrays over groups of one size. Of up to EXACT nodes every subset and order is tried; larger groups use all their nodes,
in the best of a few orders. An estimate is what a local search compares with; what it finds is worked out exactly
afterwards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cluster_planner.cheapest import Finder, chains, in_order, over_subsets
from cluster_planner.fleet import Fleet
from cluster_planner.hosts import shared_hops, shares
from cluster_planner.objective import STALENESS_COST
from cluster_planner.order import sets_of
from cluster_planner.pipeline import windows_to_try
from cluster_planner.recomputing import ways_that_fit
from cluster_planner.spans import Floats, SpanCosts
from cluster_planner.timing import SHORTEST_S

POSITIONS = 12
"""Cut positions that estimates consider, at most."""

SLACKS = (1.0, 1.25, np.inf)
"""As in pipeline.py."""

FINE, FINE_POSITIONS = 8, 20
"""Groups of more nodes than FINE have so many."""

FEW_IN_FLIGHT = 2
EXACT = 5
CHUNK = 100_000
"""Numbers that one step of the search handles at once."""

Group = tuple[int, ...]
"""Nodes by their number, sorted."""


@dataclass(frozen=True)
class Estimate:
    """`used`: the nodes that would run stages. `value`: samples/s, discounted for staleness and absence."""

    used: Group
    samples_per_s: float
    value: float


NOTHING = Estimate((), 0.0, 0.0)
"""Of a group that cannot hold the model."""


class Estimator:
    """Remembers what it was asked, for one model, fleet and load of averaging (bytes/s per parameter byte)."""

    def __init__(
        self, fleet: Fleet, spans: SpanCosts, least: int, averaging_per_s: float, finer: SpanCosts | None = None
    ) -> None:
        """`spans` on few cut positions; `finer` on more, for groups of more than FINE nodes."""
        self._fleet, self._spans, self._finer, self._least = fleet, spans, finer, least
        self._averaging_per_s = averaging_per_s
        self._known: dict[Group, Estimate] = {}

    @property
    def asked(self) -> int:
        """How many different groups have been estimated."""
        return len(self._known)

    def of(self, groups: Iterable[Group]) -> list[Estimate]:
        """One estimate for each group."""
        groups = list(groups)
        by_size: dict[int, dict[Group, None]] = {}
        for group in groups:
            if group not in self._known:
                by_size.setdefault(len(group), {})[group] = None
        for size, several in by_size.items():
            if size < self._least:
                self._known |= dict.fromkeys(several, NOTHING)
            else:
                pairs = max(len(sets_of(size, k)[0]) for k in range(1, size + 1)) if size <= EXACT else size
                finer = self._finer if self._finer is not None and size > FINE else self._spans
                step = max(1, CHUNK // (pairs * len(finer.positions) ** 2))
                asked = list(several)
                for start in range(0, len(asked), step):
                    self._estimate(asked[start : start + step])
        return [self._known[group] for group in groups]

    def _estimate(self, groups: list[Group]) -> None:
        at = np.array(groups)
        spans = self._finer if self._finer is not None and at.shape[1] > FINE else self._spans
        memory = self._fleet.sites.memory_bytes[at]
        value, rate = np.zeros(len(at)), np.zeros(len(at))
        used = np.zeros(len(at), dtype=np.int64)
        costs = self._costs(at, spans)
        before: NDArray[np.bool_] | None = None
        for window in windows_to_try(spans.workload, at.shape[1]):
            fits = ways_that_fit(spans, memory.ravel(), window)
            fits = fits.reshape(2, *memory.shape, *fits.shape[2:])
            news = value < self._most(at, spans, window)
            news &= True if before is None else (fits != before).any(axis=(0, 2, 3, 4))
            before = fits
            if not news.any():
                continue
            found = self._searched(costs.of(news), fits[:, news], window)
            better = found[0] > value[news]
            rows = np.flatnonzero(news)[better]
            value[rows], rate[rows], used[rows] = (part[better] for part in found)
        for group, one, speed, bits in zip(groups, value.tolist(), rate.tolist(), used.tolist(), strict=True):
            nodes = group if bits < 0 else tuple(node for i, node in enumerate(group) if bits >> i & 1)
            there = self._fleet.rules.presence(nodes)
            self._known[group] = Estimate(nodes, speed, one * there) if one * there > 0 else NOTHING

    def _most(self, at: NDArray[np.int64], spans: SpanCosts, window: int) -> Floats:
        """No row makes more samples/s with so few in flight: a round trip takes what the fastest node takes alone."""
        fastest: Floats = self._fleet.sites.flops_per_s[at].max(axis=1)
        alone_s = np.maximum(spans.flops(0, spans.count) / fastest, SHORTEST_S)
        most: Floats = spans.workload.micro_batch * min(window, spans.workload.largest_window) / alone_s
        return most

    def _costs(self, at: NDArray[np.int64], spans: SpanCosts) -> "_Rows":
        sites = self._fleet.sites
        forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
        speed = sites.flops_per_s[at]
        latency, rate = _links(self._fleet, at)
        sending, coming = forward / rate[..., None], gradient / rate.swapaxes(1, 2)[..., None]
        return _Rows(
            speed=speed,
            compute=spans.flops_table() / speed[:, :, None, None],
            again=spans.flops_table(recomputes=True) / speed[:, :, None, None],
            uplinks=self._uplinks(at, spans),
            trips=2 * latency[..., None] + sending + coming,
            hop=np.maximum(np.maximum(sending, coming), shared_hops(sites, at, forward, gradient)),
        )

    def _searched(
        self, costs: "_Rows", fits: NDArray[np.bool_], window: int
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """(value, samples/s, the nodes used as bits) of each row, with `window` in flight at most."""
        compute = np.where(fits[0], costs.compute, np.where(fits[1], costs.again, np.inf))
        stage = np.maximum(compute, costs.uplinks)
        count, nodes = costs.speed.shape
        if nodes <= EXACT:
            every_subset = partial(over_subsets, least=self._least)
            shortest = every_subset(stage, costs.hop, np.maximum).cost
            return self._worthiest((compute, costs.trips), (stage, costs.hop), shortest, every_subset, window)
        nearest = chains(costs.trips.mean(axis=3), compute[..., 0, -1])
        orders = np.stack([nearest, nearest[:, ::-1], costs.speed.argsort(axis=1, kind="stable")])
        rows = np.arange(count)[:, None]
        tried = [
            in_order(stage[rows, order], costs.hop[rows, order[:, :-1], order[:, 1:]], np.maximum).cost
            for order in orders
        ]
        order = orders[np.argmin(tried, axis=0), rows[:, 0]]
        before, after = order[:, :-1], order[:, 1:]
        seconds = compute[rows, order], costs.trips[rows, before, after]
        longest = stage[rows, order], costs.hop[rows, before, after]
        return self._worthiest(seconds, longest, np.min(tried, axis=0), in_order, window)

    def _worthiest(
        self,
        seconds: tuple[Floats, Floats],
        longest: tuple[Floats, Floats],
        shortest: Floats,
        least_costs: "Finder",
        window: int,
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """See `_searched`. `seconds` of stages and hops make up round trips, the `longest` bottlenecks, of which
        `shortest` is the least.
        """
        best_value, best_rate = np.zeros(len(shortest)), np.zeros(len(shortest))
        best_used = np.zeros(len(shortest), dtype=np.int64)
        # With any bottleneck, a round trip is only worth searching where hardly more than one micro-batch is in flight.
        for slack in SLACKS if min(window, self._spans.workload.largest_window) <= FEW_IN_FLIGHT else SLACKS[:-1]:
            limit = np.full(len(shortest), np.inf) if np.isinf(slack) else shortest * slack
            stage, hop = (
                np.where(most <= limit.reshape(-1, *(1,) * (most.ndim - 1)), each, np.inf)
                for most, each in zip(longest, seconds, strict=True)
            )
            found = least_costs(stage, hop, np.add)
            bottleneck = found.cost if np.isinf(slack) else limit
            samples, value = self._worth(bottleneck, found.cost, found.used, window)
            better = value > best_value
            best_value[better], best_rate[better], best_used[better] = (
                value[better],
                samples[better],
                found.used[better],
            )
        return best_value, best_rate, best_used

    def _uplinks(self, at: NDArray[np.int64], spans: SpanCosts) -> Floats:
        """[row, node, i, j]: seconds that a span's flows keep the node's uplink, or downlink."""
        sites = self._fleet.sites
        forward, gradient = spans.forward_bytes[spans.positions], spans.gradient_bytes[spans.positions]
        hosts = sites.host[at]
        mates = np.where(hosts < 0, 1, (hosts[:, :, None] == hosts[:, None]).sum(axis=2))[:, :, None, None]
        averaged, part = self._averaging_per_s * mates * spans.parameter_table, shares(sites, at)
        busy = np.zeros(())
        for flows, rate in (
            (gradient[:, None] + forward, sites.up_bytes_per_s[at] * part),
            (forward[:, None] + gradient, sites.down_bytes_per_s[at] * part),
        ):
            left = rate[:, :, None, None] - averaged
            seconds = np.where(left > 0, np.where(mates == 1, flows, 0.0) / np.where(left > 0, left, 1.0), np.inf)
            busy = np.maximum(busy, seconds)
        return busy

    def _worth(self, bottleneck: Floats, trip: Floats, used: NDArray[np.int64], window: int) -> tuple[Floats, Floats]:
        work = self._spans.workload
        possible = np.isfinite(trip) & np.isfinite(bottleneck)
        bottleneck, trip = np.where(possible, np.maximum(bottleneck, SHORTEST_S), 1.0), np.where(possible, trip, 1.0)
        wanted = np.ceil(np.minimum(trip / bottleneck, work.largest_window)) + 2
        in_flight = np.minimum(wanted, min(window, work.largest_window))
        admitted = ((work.update_every - 1) * bottleneck + trip) / work.largest_window
        period = np.maximum(np.maximum(bottleneck, trip / in_flight), np.maximum(admitted, SHORTEST_S))
        delay = np.minimum((in_flight - 1) / (2 * work.update_every), work.max_staleness)
        alone = (used & (used - 1)) == 0
        samples = np.where(possible, work.micro_batch / period, 0.0)
        return samples, samples / np.where(alone, 1.0, 1.0 + STALENESS_COST * delay)


@dataclass(frozen=True)
class _Rows:
    """Seconds, by group: `compute`, recomputing `again`, and `uplinks` [row, node, i, j]; round `trips` and the longer
    way of a `hop` [row, node, node, position]. `speed`: FLOP/s [row, node].
    """

    speed: Floats
    compute: Floats
    again: Floats
    uplinks: Floats
    trips: Floats
    hop: Floats

    def of(self, rows: NDArray[np.bool_]) -> "_Rows":
        """Of these rows only."""
        return self if rows.all() else _Rows(**{name: table[rows] for name, table in vars(self).items()})


def _links(fleet: Fleet, at: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Latencies and rates within each row, shapes (rows, nodes, nodes)."""
    nodes, where = np.unique(at, return_inverse=True)
    latency, rate = fleet.sites.between(nodes, nodes)
    where = where.reshape(at.shape)
    pairs = where[:, :, None], where[:, None]
    return latency[pairs], rate[pairs]


def merged(*groups: Sequence[int]) -> Group:
    """All their nodes as one group."""
    return tuple(sorted(node for group in groups for node in group))
