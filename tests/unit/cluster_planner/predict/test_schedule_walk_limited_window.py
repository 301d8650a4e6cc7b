from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.prediction import predict
from cluster_planner.predict.schedule_walk import Hop, PassTimes, Uplink, walked_s
from cluster_planner.predict.stage_times import period_s

Works = Callable[..., Workload]


def own_uplinks(count: int, activation_s: float = 0.0, gradient_s: float = 0.0) -> tuple[Uplink, ...]:
    """Of stages in a row: the first sends no gradient, the last no activation."""
    last = count - 1
    return tuple(Uplink(i, activation_s * (i < last), gradient_s * (i > 0)) for i in range(count))


def test_with_room_in_flight_the_slowest_stage_decides(make_workload: Works) -> None:
    work = make_workload(update_every=8, max_staleness=2)
    stages = [PassTimes(1.0, 2.0, 0.0), PassTimes(2.0, 4.0, 1.0), PassTimes(1.0, 2.0, 0.0)]
    hops = [Hop(0.1, 0.1, 0.2)] * 2
    assert walked_s(work, 9, tuple(stages), tuple(hops), own_uplinks(3)) == pytest.approx(6 + 1 / 8, rel=0.01)


seconds = st.floats(0.01, 10.0)


@settings(deadline=None)
@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=5))
def test_one_micro_batch_in_flight_takes_the_round_trip(drawn: list[tuple[float, float, float]]) -> None:
    work = Workload(
        micro_batch=1,
        update_every=1,
        max_staleness=3,
        average_every=1,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=0.0,
        process_bytes=0,
    )
    stages = [PassTimes(forward, backward, 0.0) for forward, backward, _ in drawn]
    hops = [Hop(latency / 2, latency / 4, latency) for _, _, latency in drawn[1:]]
    trip = sum(f + b for f, b, _ in drawn) + sum(h.forward_s + h.gradient_s + 2 * h.latency_s for h in hops)
    assert walked_s(work, 1, tuple(stages), tuple(hops), own_uplinks(len(drawn))) == pytest.approx(trip)


def test_an_uplink_carries_what_goes_either_way_one_after_the_other(make_workload: Works) -> None:
    work = make_workload(update_every=8, max_staleness=2)
    stages = [PassTimes(0.1, 0.2, 0.0)] * 3
    hops = [Hop(1.0, 0.7, 0.0)] * 2
    # The stage in the middle sends both an activation and a gradient.
    assert walked_s(work, 12, tuple(stages), tuple(hops), own_uplinks(3, 1.0, 0.7)) == pytest.approx(1.7, rel=0.02)


def test_a_link_slower_than_the_uplink_holds_up_its_own_messages_only(make_workload: Works) -> None:
    work = make_workload(update_every=8, max_staleness=2)
    stages = [PassTimes(0.1, 0.2, 0.0)] * 3
    hops = [Hop(1.0, 0.1, 0.0), Hop(0.1, 0.9, 0.0)]
    assert walked_s(work, 12, tuple(stages), tuple(hops), own_uplinks(3, 0.1, 0.1)) == pytest.approx(1.0, rel=0.02)


def test_bunches_that_meet_hold_each_other_up(make_workload: Works) -> None:
    work = make_workload(update_every=4, max_staleness=3)
    stages = [PassTimes(0.035 + 0.005 * (i % 3), 0.07 + 0.01 * (i % 3), 0.0) for i in range(8)]
    hops = [Hop(0.1, 0.1, 0.065)] * 7
    bottleneck, trip = 0.2, sum(s.forward_s + s.backward_s for s in stages) + 7 * (0.2 + 0.13)
    formula = period_s(bottleneck, trip, 16, work)
    walked = walked_s(work, 16, tuple(stages), tuple(hops), own_uplinks(8, 0.1, 0.1))
    assert 1.04 * formula < walked < 1.3 * formula


def test_only_clusters_whose_round_trip_counts_are_walked(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Works
) -> None:
    spans = SpanCosts(make_model(8), make_workload(update_every=4))
    nodes = tuple(make_node(f"{where}{i}", region=where) for where in ("near", "far") for i in range(2))
    links = [RegionLink("near", "near", 0.001, 1e9), RegionLink("far", "far", 1.0, 1e9)]
    fleet = Fleet(nodes, (), (*links, RegionLink("near", "far", 0.01, 1e9)))
    clusters = [
        Cluster("c0", 6, (Stage("near0", (0, 4)), Stage("near1", (4, 8)))),
        Cluster("c1", 8, (Stage("far0", (0, 4)), Stage("far1", (4, 8)))),
    ]
    alone = [predict(fleet, spans, [cluster], ()).prediction.clusters[0] for cluster in clusters]
    assert alone[0].samples_per_s == pytest.approx(4 / alone[0].bottleneck_s)
    formula = period_s(alone[1].bottleneck_s, alone[1].round_trip_s, 8, spans.workload)
    assert 4 / alone[1].samples_per_s >= formula * (1 - 1e-9)
    assert "round trip" in alone[1].bottleneck
    together = predict(fleet, spans, clusters, ()).prediction.clusters
    assert [one.samples_per_s for one in together] == pytest.approx([one.samples_per_s for one in alone])
