"""Rings: one per segment, its members ordered to make the slowest hop as fast as can be.

Decides the order in which chunks are passed. Among orders with the same slowest hop the least sum of hops
wins. Exact up to EXACT_MEMBERS members; beyond, a nearest-neighbour tour improved by reversing stretches
(2-opt). Knows the fleet's links; knows nothing of what is sent but its size.
"""

import itertools
from collections.abc import Sequence
from functools import lru_cache

from cluster_planner.fleet import Fleet
from cluster_planner.plan import Cluster, Ring
from cluster_planner.segments import common_refinement, holder
from cluster_planner.spans import SpanCosts

EXACT_MEMBERS = 6
SWEEPS = 3

Costs = tuple[tuple[float, ...], ...]


def make_rings(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster]) -> tuple[Ring, ...]:
    """One ring per segment of the clusters' common refinement, in the order of the model."""
    rings = []
    for segment in common_refinement([[stage.units for stage in cluster.stages] for cluster in clusters]):
        held = [holder([stage.units for stage in cluster.stages], segment) for cluster in clusters]
        names = [cluster.stages[index].node for cluster, index in zip(clusters, held, strict=True)]
        block_bytes = spans.parameter_bytes(*segment) / len(names)
        tour = best_tour(_hop_seconds(fleet, names, block_bytes))
        rings.append(Ring(segment, tuple((clusters[i].name, held[i]) for i in tour)))
    return tuple(rings)


def best_tour(costs: Costs) -> tuple[int, ...]:
    """The order (starting with 0) around a ring in which the dearest hop is cheapest. `costs[i][j]`: hop from
    i to j.
    """
    return _exact(costs) if len(costs) <= EXACT_MEMBERS else _improved(costs)


def tour_cost(costs: Costs, tour: Sequence[int]) -> tuple[float, float]:
    """(dearest hop, sum of hops) of a closed tour."""
    hops = [costs[a][b] for a, b in zip(tour, (*tour[1:], tour[0]), strict=True)]
    return max(hops), sum(hops)


def _hop_seconds(fleet: Fleet, names: Sequence[str], size: float) -> Costs:
    return tuple(
        tuple(0.0 if a == b else fleet.link(a, b).latency_s + size / fleet.flow_bytes_per_s(a, b) for b in names)
        for a in names
    )


@lru_cache(maxsize=4096)
def _exact(costs: Costs) -> tuple[int, ...]:
    tours = ((0, *rest) for rest in itertools.permutations(range(1, len(costs))))
    return min(tours, key=lambda tour: tour_cost(costs, tour))


def _improved(costs: Costs) -> tuple[int, ...]:
    tour, left = [0], list(range(1, len(costs)))
    while left:
        here = tour[-1]
        tour.append(min(left, key=lambda i: (costs[here][i], i)))
        left.remove(tour[-1])
    cost = tour_cost(costs, tour)
    for _ in range(SWEEPS):
        before = cost
        for i, j in itertools.combinations(range(1, len(tour)), 2):
            other = tour[:i] + tour[i : j + 1][::-1] + tour[j + 1 :]
            if (other_cost := tour_cost(costs, other)) < cost:
                tour, cost = other, other_cost
        if cost == before:
            break
    return tuple(tour)
