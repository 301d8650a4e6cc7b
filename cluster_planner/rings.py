"""The rings of a plan: their members' order, what a round sends from whom to whom, and how long it takes.

In: a fleet, costs and clusters. Out: one `Ring` per segment, its members ordered so that the slowest hop is as fast as
possible. Among orders with the same slowest hop the least sum of hops wins. The order is exact up to EXACT_MEMBERS
members. Beyond, it is a nearest-neighbour tour improved by reversing stretches (2-opt) under the sum of hops to the
POWER, which the dearest hops dominate. In rings of more than OWN_ORDER members all segments use one order of the
clusters. An order depends on the nodes and not on how clusters are numbered. Rings of two segments often have two
neighbours in common, which then share the link of that pair; so every other ring goes round the other way where that is
as fast.

`ring_traffic` lists who passes how many bytes to whom, as the planner and the simulator time it. With `tied: averaged`
there is one ring more, through all stages that have a copy of a tied parameter and not all of its uses. (A run makes
one for each set of stages that have a copy, also with stages that have all uses, such as a cluster's only stage. The
planner knows parameters by their bytes only, and counts an owner's bytes in its segment's ring, too. Predictions differ
by that, runs do not.)

`exchange_of` times a round of one ring on idle links. The package `ring_timing` decides who exchanges directly, the
chunk size and the shares, and times the way around; runs and the simulator divide vectors by it, too. `links_of_ring`
gives all three the same rates and latencies.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cluster_planner.inputs.fleet import Fleet
from cluster_planner.inputs.model_costs import PARAMETER_BYTES
from cluster_planner.inputs.spans import Floats, SpanCosts
from cluster_planner.plan import Cluster, Ring, common_refinement
from ring_timing import Groups, RingLinks, direct_is_faster, divide, fastest_s, grouped_round, ring_round

EXACT_MEMBERS = 6
OWN_ORDER = 150
POWER = 8
FINE_SEGMENTS = 16
"""Where nodes are known to come and go, a plan has up to so many segments, and so rings."""

HopCosts = tuple[tuple[float, ...], ...]

RingMember = tuple[str, int]


def make_rings(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster]) -> tuple[Ring, ...]:
    """Return one ring per segment of the clusters' common refinement, in the order of the model."""
    rings = []
    units = [[stage.units for stage in cluster.stages] for cluster in clusters]
    held = [0] * len(clusters)
    shared: tuple[int, ...] | None = None
    if len(clusters) > OWN_ORDER:
        first = [cluster.stages[0].node for cluster in clusters]
        shared = _chained(_hop_seconds(fleet, first, spans.parameter_bytes(0, spans.count) / len(clusters)))
    for number, segment in enumerate(common_refinement(units)):
        for i, cluster in enumerate(clusters):  # segments come in order, so do the stages that hold them
            while cluster.stages[held[i]].units[1] <= segment[0]:
                held[i] += 1
        tour = shared
        if tour is None:
            names = [cluster.stages[index].node for cluster, index in zip(clusters, held, strict=True)]
            tour = tour_of(fleet, names, spans.parameter_bytes(*segment), back=number % 2 == 1)
        rings.append(Ring(segment, tuple((clusters[i].name, held[i]) for i in tour)))
    return tuple(rings)


def finer_rings(rings: Sequence[Ring], spans: SpanCosts, most: int = FINE_SEGMENTS) -> tuple[Ring, ...]:
    """Return the same rings in more segments, up to `most`: the largest is cut in two again and again.

    A run keeps its segments, and a cluster that is made anew can be cut nowhere else.
    """
    found = list(rings)
    while len(found) < most:
        at = max(range(len(found)), key=lambda i: (_is_cuttable(found[i]), spans.parameter_bytes(*found[i].units)))
        if not _is_cuttable(found[at]):
            break
        ring, (start, end) = found[at], found[at].units
        middle = min(range(start + 1, end), key=lambda unit: max(_halves(spans, start, unit, end)))
        found[at : at + 1] = [Ring((start, middle), ring.members), Ring((middle, end), ring.members)]
    return tuple(found)


def _is_cuttable(ring: Ring) -> bool:
    return ring.units[1] - ring.units[0] > 1


def _halves(spans: SpanCosts, start: int, middle: int, end: int) -> tuple[int, int]:
    return spans.parameter_bytes(start, middle), spans.parameter_bytes(middle, end)


def tour_of(fleet: Fleet, names: Sequence[str], parameter_bytes: int, *, back: bool = False) -> tuple[int, ...]:
    """Return the order, as indices of `names`, in which these nodes pass on `parameter_bytes` around their ring.

    It is the same whatever the order of `names`, and begins with the first by the alphabet. `back`: the other way round
    where that is as fast.
    """
    ranked = sorted(range(len(names)), key=names.__getitem__)
    hops = _hop_seconds(fleet, [names[i] for i in ranked], parameter_bytes / len(names))
    costs = tuple(map(tuple, hops.tolist()))
    tour = best_tour(costs)
    if back:
        backwards = (tour[0], *tour[:0:-1])
        pairs = zip(tour_cost(costs, backwards), tour_cost(costs, tour), strict=True)
        tour = backwards if all(other <= one * (1 + 1e-9) for other, one in pairs) else tour
    return tuple(ranked[i] for i in tour)


def best_tour(costs: HopCosts) -> tuple[int, ...]:
    """Return the order (starting with 0) around a ring in which the dearest hop is cheapest. `costs[i][j]`: hop from i
    to j.
    """
    return _exact(costs) if len(costs) <= EXACT_MEMBERS else _improved(costs)


def best_path(hops: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return an order of all places, from any to any other, in which the dearest hop is cheap.

    It is a tour through one place more, to and from which nothing takes any time, and is opened there.
    """
    padded = ((0.0,) * (len(hops) + 1), *((0.0, *row) for row in hops))
    return tuple(i - 1 for i in best_tour(padded)[1:])


def tour_cost(costs: HopCosts, tour: Sequence[int]) -> tuple[float, float]:
    """Return (dearest hop, sum of hops) of a closed tour."""
    hops = [costs[a][b] for a, b in zip(tour, (*tour[1:], tour[0]), strict=True)]
    return max(hops), sum(hops)


def _hop_seconds(fleet: Fleet, names: Sequence[str], size: float) -> Floats:
    latency, rate = _pairs(fleet, names)
    return latency + size / rate


@lru_cache(maxsize=4096)
def _exact(costs: HopCosts) -> tuple[int, ...]:
    tours = ((0, *rest) for rest in itertools.permutations(range(1, len(costs))))
    return min(tours, key=lambda tour: tour_cost(costs, tour))


@lru_cache(maxsize=4096)
def _improved(costs: HopCosts) -> tuple[int, ...]:
    hops = np.array(costs)
    largest = float(hops.max())
    powers = (np.maximum(hops, hops.T) / largest) ** POWER if largest > 0 else hops
    return min((_two_opt(powers, _chained(table)) for table in (hops, powers)), key=lambda tour: tour_cost(costs, tour))


def _chained(hops: Floats) -> tuple[int, ...]:
    """Return the nearest-neighbour tour from 0."""
    tour, left = [0], np.ones(len(hops), dtype=bool)
    for _ in range(len(hops) - 1):
        left[tour[-1]] = False
        tour.append(int(np.where(left, hops[tour[-1]], np.inf).argmin()))
    return tuple(tour)


def _two_opt(hops: Floats, tour: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tour after reversing stretches as long as that lowers the sum of `hops`, which are the same both
    ways.
    """
    at = np.array(tour)
    not_later = np.tri(len(at), dtype=bool)
    for _ in range(4 * len(at)):
        onward = np.append(at[1:], at[0])
        now = hops[at, onward]
        gain = now[:, None] + now - hops[at[:, None], at] - hops[onward[:, None], onward]
        gain[not_later] = 0.0
        i, j = divmod(int(gain.argmax()), len(at))
        if gain[i, j] <= 1e-12 * max(float(now.sum()), 1e-300):
            break
        at[i + 1 : j + 1] = at[i + 1 : j + 1][::-1].copy()
    found = at.tolist()
    first = found.index(0)
    return (*found[first:], *found[:first])


@dataclass(frozen=True)
class RingTraffic:
    """`members` (cluster, stage) pass on `parameter_bytes` among them, in this order, in each round."""

    members: tuple[RingMember, ...]
    parameter_bytes: int

    @property
    def elements(self) -> int:
        """Return how many numbers are averaged."""
        return self.parameter_bytes // PARAMETER_BYTES

    @property
    def hops(self) -> list[tuple[RingMember, RingMember]]:
        """Return who sends to whom; nobody in a ring of one."""
        if len(self.members) == 1:
            return []
        return list(zip(self.members, (*self.members[1:], self.members[0]), strict=True))


def ring_traffic(spans: SpanCosts, clusters: Sequence[Cluster], rings: Sequence[Ring]) -> list[RingTraffic]:
    """Return the traffic of the segments' rings, and of tied parameters where they are averaged."""
    found = [RingTraffic(ring.members, spans.parameter_bytes(*ring.units)) for ring in rings]
    spread = [
        (cluster.name, index)
        for cluster in clusters
        if len(cluster.stages) > 1
        for index, stage in enumerate(cluster.stages)
        if spans.copied_bytes(*stage.units) > 0
    ]
    if spread:
        units = {stage.units for cluster in clusters for stage in cluster.stages}
        found.append(RingTraffic(tuple(spread), round(max(spans.copied_bytes(*span) for span in units))))
    return found


@dataclass(frozen=True, eq=False)
class Exchange:
    """What one round of one ring sends, and how long that takes while nothing else is sent.

    The arrays have one entry for each pair of nodes of which one sends to the other.
    """

    pairs: NDArray[np.int64]
    """The sender's number in the fleet, times the number of its nodes, plus the receiver's."""
    sent_bytes: Floats
    taken_s: Floats
    """How long these bytes take on the link of their pair."""
    latency_s: Floats
    """The latency of that link."""
    slowest: str
    """The node that sends for the longest time."""
    sending_s: float
    """For how long that node sends."""
    last_hop_s: float
    """How much later the last of it has arrived: the longest latency."""
    way_s: float
    """How long a chunk that waits for nobody travels around the ring, as often as it goes; 0 in a direct exchange."""
    stalls_s: float = 0.0
    """By how much later than `sending_s` the last has arrived where hops wait for large blocks (`RingRound`)."""

    @property
    def alone_s(self) -> float:
        """How long the ring takes by itself, but for the latency of its last hop."""
        return max(self.sending_s + self.stalls_s, self.way_s)


def links_of_ring(fleet: Fleet, nodes: Sequence[str]) -> RingLinks:
    """Return the rates and latencies between `nodes`, which are given in passing order.

    Several members may be on one node, which reaches itself at once. Whether they exchange directly is judged by all
    pairs, since a direct exchange would use them all.
    """
    return _links(*_pairs(fleet, nodes))


def exchange_of(
    fleet: Fleet,
    nodes: Sequence[str],
    elements: int,
    element_bytes: float,
    *,
    each: bool = False,
    hierarchical: bool = False,
    roughly: bool = False,
) -> Exchange:
    """Time the round in which two or more nodes, in passing order, average `elements` numbers.

    Each number takes `element_bytes` bytes on the wire. `each`: everyone has to see each member's part.
    `hierarchical`: a ring of rings where that is faster. `roughly`: the shares of unequal blocks, which solve a linear
    program, are not looked for; the busiest hop takes what no shares could better.
    """
    latency_s, rates = _pairs(fleet, nodes)
    links, vector_bytes = _links(latency_s, rates), int(elements * element_bytes)
    direct = each or direct_is_faster(vector_bytes, len(nodes), links.pair_latency_s, links.pair_bytes_per_s)
    if roughly and not direct and not hierarchical:
        return _rough_exchange(fleet, nodes, links, vector_bytes)
    division = divide(elements, element_bytes, links, each=each, hierarchical=hierarchical)
    if division.direct:
        apart = np.nonzero(~np.eye(len(nodes), dtype=bool))
        sent_bytes = np.full(len(apart[0]), float(vector_bytes))
        return Exchange(
            _numbers(fleet, nodes, *apart),
            sent_bytes,
            sent_bytes / rates[apart],
            latency_s[apart],
            nodes[int(rates.min(axis=1).argmin())],
            vector_bytes / float(rates.min()),
            float(latency_s.max()),
            0.0,
        )
    chunk_bytes = division.chunk_elements * element_bytes
    if division.groups is not None:
        return _grouped(fleet, nodes, links, Groups(len(nodes), division.groups), vector_bytes, chunk_bytes)
    once = ring_round(vector_bytes, chunk_bytes, division.shares, links.hop_bytes_per_s, links.hop_latency_s)
    slowest = nodes[max(range(len(nodes)), key=once.hop_s.__getitem__)]
    around = _around(
        fleet, nodes, links, np.array(once.hop_bytes), np.array(once.hop_s), slowest, once.sending_s, once.way_s
    )
    return replace(around, stalls_s=once.stalls_s) if once.stalls_s > 0 else around


def _grouped(
    fleet: Fleet, nodes: Sequence[str], links: RingLinks, groups: Groups, vector_bytes: int, chunk_bytes: float
) -> Exchange:
    assert links.pair is not None
    once = grouped_round(groups, vector_bytes, chunk_bytes, links.pair)
    ways = list(once.sent_bytes)
    senders, receivers = np.array([a for a, _ in ways]), np.array([b for _, b in ways])
    shapes = np.array([links.pair(a, b) for a, b in ways])
    sent_bytes = np.array([once.sent_bytes[way] for way in ways])
    return Exchange(
        _numbers(fleet, nodes, senders, receivers),
        sent_bytes,
        sent_bytes / shapes[:, 0],
        shapes[:, 1],
        nodes[once.slowest],
        once.sending_s,
        float(shapes[:, 1].max()),
        once.way_s,
    )


def _rough_exchange(fleet: Fleet, nodes: Sequence[str], links: RingLinks, vector_bytes: int) -> Exchange:
    rates, members = np.array(links.hop_bytes_per_s), len(nodes)
    equal_bytes = 2 * (members - 1) / members * vector_bytes
    slowest = int(rates.argmin())
    sending_s = min(equal_bytes / float(rates[slowest]), vector_bytes * fastest_s(links.hop_bytes_per_s))
    sent_bytes = np.minimum(equal_bytes, np.maximum(float(vector_bytes), sending_s * rates))
    way_s = 2 * (members - 1) / members * sum(links.hop_latency_s)
    return _around(fleet, nodes, links, sent_bytes, sent_bytes / rates, nodes[slowest], sending_s, way_s)


def _around(
    fleet: Fleet,
    nodes: Sequence[str],
    links: RingLinks,
    sent_bytes: Floats,
    taken_s: Floats,
    slowest: str,
    sending_s: float,
    way_s: float,
) -> Exchange:
    """Return the exchange in which each node sends to the next one."""
    at = np.arange(len(nodes))
    pairs, latency_s = _numbers(fleet, nodes, at, (at + 1) % len(nodes)), np.array(links.hop_latency_s)
    return Exchange(pairs, sent_bytes, taken_s, latency_s, slowest, sending_s, max(links.hop_latency_s), way_s)


def _numbers(
    fleet: Fleet, nodes: Sequence[str], senders: NDArray[np.int64], receivers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the pairs' numbers. `senders`, `receivers`: indices of `nodes`."""
    numbers = np.array([fleet.arrays.number_of[name] for name in nodes], dtype=np.int64)
    pairs: NDArray[np.int64] = numbers[senders] * len(fleet.nodes) + numbers[receivers]
    return pairs


def _pairs(fleet: Fleet, nodes: Sequence[str]) -> tuple[Floats, Floats]:
    """Return (one-way latency, bytes/s of one flow) from each node to each, shapes (nodes, nodes)."""
    numbers = [fleet.arrays.number_of[name] for name in nodes]
    return fleet.arrays.between(numbers, numbers)


def _links(latency_s: Floats, rates: Floats) -> RingLinks:
    count = len(rates)
    if count < 2:
        return RingLinks()
    at = np.arange(count)
    hops = at, (at + 1) % count
    ways = tuple(rates[hops].tolist()), tuple(latency_s[hops].tolist())

    def pair(a: int, b: int) -> tuple[float, float]:
        return float(rates[a, b]), float(latency_s[a, b])

    return RingLinks(*ways, float(rates.min()), float(latency_s.max()), pair)
