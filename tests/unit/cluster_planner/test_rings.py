import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.inputs.fleet import Fleet, Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.rings import EXACT_MEMBERS, best_tour, make_rings, tour_cost


def costs_of(seed: int, members: int) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, np.random.default_rng(seed).uniform(size=(members, members)).tolist()))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, EXACT_MEMBERS))
def test_small_rings_are_optimal(seed: int, members: int) -> None:
    costs = costs_of(seed, members)
    everything = [tour_cost(costs, (0, *rest)) for rest in itertools.permutations(range(1, members))]
    assert tour_cost(costs, best_tour(costs)) == min(everything)


@pytest.mark.parametrize("members", [EXACT_MEMBERS + 1, 20])
def test_large_rings_visit_everyone_and_improve_on_the_given_order(members: int) -> None:
    costs = costs_of(1, members)
    tour = best_tour(costs)
    assert sorted(tour) == list(range(members))
    assert tour_cost(costs, tour) < tour_cost(costs, tuple(range(members)))


def test_one_ring_per_segment_each_with_the_stage_that_holds_it(make_node, make_model, make_workload) -> None:  # type: ignore[no-untyped-def]
    costs: ModelCosts = make_model(6)
    work: Workload = make_workload()
    fleet = Fleet(tuple(make_node(n) for n in "abcd"), (Link("a", "c", 0.3, 1e6),))
    clusters = (
        Cluster("c0", 3, (Stage("a", (0, 4)), Stage("b", (4, 6)))),
        Cluster("c1", 3, (Stage("c", (0, 2)), Stage("d", (2, 6)))),
    )
    rings = make_rings(fleet, SpanCosts(costs, work), clusters)
    assert [(ring.units, ring.members) for ring in rings] == [
        ((0, 2), (("c0", 0), ("c1", 0))),
        ((2, 4), (("c0", 0), ("c1", 1))),
        ((4, 6), (("c0", 1), ("c1", 1))),
    ]
    alone = make_rings(fleet, SpanCosts(costs, work), clusters[:1])
    assert [ring.members for ring in alone] == [(("c0", 0),), (("c0", 1),)]
