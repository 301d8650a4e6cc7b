""" """

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Ring, Stage
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import (
    EXACT_MEMBERS,
    FINE_SEGMENTS,
    RingTraffic,
    best_path,
    best_tour,
    finer_rings,
    make_rings,
    ring_traffic,
    tour_cost,
    tour_of,
)


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


def test_a_ring_does_not_depend_on_how_clusters_are_numbered(make_node: Callable[..., Node]) -> None:
    fleet, names = Fleet(tuple(make_node(name) for name in "abcdefgh")), list("hcbgadfe")
    for back in (False, True):
        tour = [names[i] for i in tour_of(fleet, names, 10**6, back=back)]
        again = sorted(names)
        assert [again[i] for i in tour_of(fleet, again, 10**6, back=back)] == tour
    assert tour[1:] == [names[i] for i in tour_of(fleet, names, 10**6)][:0:-1], "the other way round, as it is as fast"


def test_a_ring_goes_round_the_way_that_is_faster(make_node: Callable[..., Node]) -> None:
    slow = make_node("b", up_bytes_per_s=1e5)
    nodes = (make_node("a"), slow, *(make_node(name, down_bytes_per_s=2e4 if name == "c" else 1e6) for name in "cd"))
    names = [node.name for node in nodes]
    one, other = (tour_of(Fleet(nodes), names, 10**6, back=back) for back in (False, True))
    assert one == other


CLUSTERS = (
    Cluster("c0", 6, (Stage("a", (0, 1)), Stage("b", (1, 2)), Stage("c", (2, 3)))),
    Cluster("c1", 6, (Stage("d", (0, 2)), Stage("e", (2, 3)))),
)
RINGS = (
    Ring((0, 1), (("c0", 0), ("c1", 0))),
    Ring((1, 2), (("c0", 1), ("c1", 0))),
    Ring((2, 3), (("c0", 2), ("c1", 1))),
)


@pytest.fixture
def spans_of(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Callable[..., SpanCosts]:
    def build(tied: str) -> SpanCosts:
        units = make_model(3, parameter_bytes=10**6, tied_bytes=10**6).units
        costs = ModelCosts((*units[:2], replace(units[2], borrowed_bytes=10**6)), "")
        return SpanCosts(costs, make_workload(update_every=100, tied=tied))

    return build


def test_averaged_copies_are_one_circuit_more(spans_of: Callable[..., SpanCosts]) -> None:
    assert [circuit.members for circuit in ring_traffic(spans_of("exact"), CLUSTERS, RINGS)] == [
        r.members for r in RINGS
    ]
    *_, last = ring_traffic(spans_of("averaged"), CLUSTERS, RINGS)
    assert last == RingTraffic((("c0", 0), ("c0", 2), ("c1", 0), ("c1", 1)), 10**6)
    assert last.hops[-1] == (("c1", 1), ("c0", 0))
    assert RingTraffic((("c0", 0),), 1).hops == []


def test_one_cluster_alone_averages_its_copies(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = Fleet(tuple(make_node(name) for name in "abc"))
    alone = [Ring(ring.units, ring.members[:1]) for ring in RINGS]
    found = {tied: predict(fleet, spans_of(tied), CLUSTERS[:1], alone).prediction for tied in ("exact", "averaged")}
    assert found["exact"].averaging_s == 0.0
    assert found["averaged"].averaging_s >= 10**6 / 5e6  # two members, each of which sends all of it
    up = [stage.up_s for stage in found["averaged"].clusters[0].stages]
    assert up[0] != up[1]


def test_a_path_has_two_ends_and_takes_no_dear_hop_back() -> None:
    places = [0.0, 30.0, 10.0, 40.0, 20.0]
    path = best_path([[abs(a - b) for b in places] for a in places])
    assert [places[i] for i in path] in (sorted(places), sorted(places, reverse=True))
    assert best_path([[0.0]]) == (0,)


@pytest.mark.parametrize(("units", "expected"), [(6, 6), (40, FINE_SEGMENTS)])
def test_finer_rings_cover_the_same_units_in_smaller_parts(
    make_node, make_model, make_workload, units, expected
) -> None:  # type: ignore[no-untyped-def]
    fleet = Fleet(tuple(make_node(n) for n in "abc"), ())
    clusters = (
        Cluster("c0", 3, (Stage("a", (0, 4)), Stage("b", (4, units)))),
        Cluster("c1", 3, (Stage("c", (0, units)),)),
    )
    spans = SpanCosts(make_model(units), make_workload())
    rings = make_rings(fleet, spans, clusters)
    fine = finer_rings(rings, spans)
    assert len(fine) == expected
    assert [each.units[0] for each in fine] == [0, *(each.units[1] for each in fine[:-1])]
    assert fine[-1].units[1] == units
    members = {ring.units: ring.members for ring in rings}
    for each in fine:
        [whole] = [span for span in members if span[0] <= each.units[0] and each.units[1] <= span[1]]
        assert each.members == members[whole]
    sizes = [spans.parameter_bytes(*each.units) for each in fine]
    assert max(sizes) < max(spans.parameter_bytes(*ring.units) for ring in rings)
