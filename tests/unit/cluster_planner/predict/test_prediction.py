import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import Link
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict import prediction as predicting
from cluster_planner.predict.objective import averaging_factor, staleness_factor
from cluster_planner.predict.prediction import ClusterLimit, predict
from cluster_planner.predict.steady_state import TOLD_S
from cluster_planner.rings import exchange_of, make_rings

CLUSTERS = (
    Cluster("c0", 6, (Stage("a", (0, 4)), Stage("b", (4, 8)))),
    Cluster("c1", 6, (Stage("c", (0, 2)), Stage("d", (2, 8)))),
)


@pytest.fixture
def spans_of(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> Callable[..., SpanCosts]:
    def build(work: dict[str, object] | None = None, **unit: object) -> SpanCosts:
        return SpanCosts(make_model(8, **unit), make_workload(**{"update_every": 100, **(work or {})}))

    return build


def fleet_of(make_node: Callable[..., Node], **changes: object) -> Fleet:
    return Fleet(tuple(make_node(name, **changes) for name in "abcd"))


def test_one_cluster_runs_at_its_bottleneck(make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]) -> None:
    spans, fleet = spans_of(parameter_bytes=0), fleet_of(make_node)
    forecast = predict(fleet, spans, CLUSTERS[:1], make_rings(fleet, spans, CLUSTERS[:1]))
    cluster = forecast.prediction.clusters[0]
    assert cluster.bottleneck_s == pytest.approx(4 * 3 * 1e8 * 4 / 1e10)
    assert cluster.samples_per_s == pytest.approx(4 / cluster.bottleneck_s)
    assert cluster.stages[0].memory_bytes == spans.memory_bytes(0, 4, 6)
    assert forecast.limits[0].kind == "compute"
    assert forecast.prediction.averaging_s == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_synchronous_schedule_is_not_promised_the_asynchronous_speed(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts], schedule: str
) -> None:
    fleet = fleet_of(make_node, up_bytes_per_s=1e15, down_bytes_per_s=1e15)
    speeds = {}
    for name, staleness in ((schedule, 0), ("async", 1)):
        spans = spans_of({"schedule": name, "max_staleness": staleness, "update_every": 4}, parameter_bytes=0)
        clusters = (Cluster("c0", 2 if name == "1f1b" else 4, (Stage("a", (0, 4)), Stage("b", (4, 8)))),)
        forecast = predict(fleet, spans, clusters, make_rings(fleet, spans, clusters))
        speeds[name] = forecast.prediction.samples_per_s
    # Two stages, four micro-batches: a bubble of (2 - 1) / (4 + 2 - 1), the links' latencies apart.
    assert speeds[schedule] < speeds["async"] * 0.8
    limit = predict(fleet, spans_of({"schedule": schedule, "max_staleness": 0, "update_every": 4}), clusters, ()).limits
    assert limit[0].kind == "flush"


def test_what_a_round_needs_of_a_full_uplink_is_waited_for(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = fleet_of(make_node, flops_per_s=1e15, up_bytes_per_s=1e5)
    spans = spans_of({"average_every": 10**4}, parameter_bytes=10**5)
    rings = make_rings(fleet, spans, CLUSTERS)
    predicted = predict(fleet, spans, CLUSTERS, rings).prediction
    opened_s = 10**4 / (2 * 1e5 / 10**4)  # each cluster fills its uplinks with the bytes of its samples
    sent_s = 6 * 10**5 / 1e5  # by the busiest node, of six units
    interval_s = opened_s + 2 * sent_s + 0.05 + TOLD_S  # clusters with updates of 40 s stop at different moments
    assert predicted.samples_per_s == pytest.approx(10**4 / interval_s)
    for cluster, prediction in zip(CLUSTERS, predicted.clusters, strict=True):
        assert prediction.bottleneck.startswith("waits for the averaging between clusters")
        for stage, timed in zip(cluster.stages, prediction.stages, strict=True):
            pipeline = 4 * 10**4 * prediction.samples_per_s / 4
            averaging = 10**5 * (stage.units[1] - stage.units[0]) / interval_s
            assert pipeline + averaging <= 1e5 * (1 + 1e-6)
            assert timed.up_s == pytest.approx((pipeline + averaging) / 1e5 / (prediction.samples_per_s / 4))
    busiest = max(s.up_s for s in predicted.clusters[1].stages)
    assert busiest == pytest.approx(4 / predicted.clusters[1].samples_per_s, rel=0.03)


def test_waiting_now_and_then_limits_nobody(make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]) -> None:
    fleet = fleet_of(make_node, flops_per_s=1e15, up_bytes_per_s=1e5)
    spans = spans_of({"average_every": 10**5}, parameter_bytes=10**5)
    forecast = predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS))
    assert 0.99 * 20 < forecast.prediction.samples_per_s < 0.999 * 20
    assert {limit.kind for limit in forecast.limits} == {"uplink"}
    assert "uplink" in forecast.prediction.bottleneck


def test_averaging_costs_nothing_where_pipelines_leave_it_room(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = fleet_of(make_node)
    alone, averaged = (
        predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS)).prediction
        for spans in (spans_of({"average_every": 10**12}), spans_of({"average_every": 10**6}))
    )
    assert averaged.samples_per_s == pytest.approx(alone.samples_per_s)
    assert "speed" in averaged.bottleneck


def test_clusters_wait_for_rings_that_cannot_keep_up(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = fleet_of(make_node, up_bytes_per_s=1e4, flops_per_s=1e15)
    spans = spans_of(boundary_bytes=0, boundary_gradient_bytes=0)
    forecast = predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS))
    assert forecast.limits == (ClusterLimit("averaging", "d"), ClusterLimit("averaging", "d"))
    assert forecast.prediction.samples_per_s == pytest.approx(1024 / (forecast.prediction.averaging_s + TOLD_S))
    assert "d's links have too little room" in forecast.prediction.bottleneck


@pytest.mark.parametrize(("latency_s", "shared"), [(10.0, 2.0), (0.0, 1.0)])
def test_rings_with_two_neighbours_in_common_share_their_link(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts], latency_s: float, shared: float
) -> None:
    """Where latency is long all members send to each other, so two rings take twice the time of one; else the second
    ring goes round the other way.
    """
    links = tuple(Link(a, b, latency_s, 1e6) for a, b in ("ab", "ac", "ad", "bc", "bd", "cd"))
    fleet = Fleet(tuple(make_node(n, up_bytes_per_s=1e9, down_bytes_per_s=1e9) for n in "abcd"), links)
    whole = [Cluster(f"c{i}", 6, (Stage(n, (0, 8)),)) for i, n in enumerate("ab")]
    halves = Cluster("c2", 6, (Stage("c", (0, 4)), Stage("d", (4, 8))))
    spans = spans_of(parameter_bytes=10**6)
    rings = make_rings(fleet, spans, [*whole, halves])
    one = exchange_of(fleet, ["a", "b", "c"], 10**6, 4.0)
    averaging_s = predict(fleet, spans, [*whole, halves], rings).prediction.averaging_s
    assert averaging_s == pytest.approx(max(shared * one.sending_s + one.last_hop_s, one.way_s))


def test_what_hops_wait_for_large_blocks_is_no_latency(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    draw = random.Random(1)
    names = [f"n{i}" for i in range(20)]
    fleet = Fleet(tuple(make_node(name, up_bytes_per_s=2.5e6 * draw.lognormvariate(0, 0.6)) for name in names))
    spans = spans_of(parameter_bytes=4 * 10**6)
    clusters = [Cluster(f"c{i}", 6, (Stage(name, (0, 8)),)) for i, name in enumerate(names)]
    rings = make_rings(fleet, spans, clusters)
    assert len(rings) == 1
    once = exchange_of(fleet, [clusters[int(name[1:])].stages[0].node for name, _ in rings[0].members], 8 * 10**6, 4.0)
    assert once.stalls_s > once.last_hop_s > 0
    forecast = predict(fleet, spans, clusters, rings)
    assert forecast.prediction.averaging_s == pytest.approx(once.sending_s + once.stalls_s)
    assert forecast.latency_s == pytest.approx(once.last_hop_s)


def test_clusters_are_said_to_wait_for_the_ring_that_takes_longest_with_its_stalls(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, spans = fleet_of(make_node), spans_of()
    rings = make_rings(fleet, spans, CLUSTERS)
    once = exchange_of(fleet, ["a", "c"], 10**4, 4.0)
    each = [replace(once, sending_s=2e5, slowest="a"), replace(once, sending_s=1e5, stalls_s=2e5, slowest="c")]
    monkeypatch.setattr(predicting, "exchanges_of", lambda *_: each)
    forecast = predict(fleet, spans, CLUSTERS, rings)
    assert forecast.prediction.averaging_s == pytest.approx(3e5)
    assert forecast.limits[0] == ClusterLimit("averaging", "c")
    each.append(replace(once, way_s=1e6))
    assert "latencies" in predict(fleet, spans, CLUSTERS, rings).prediction.bottleneck


def test_more_lag_hides_latency_and_no_bytes(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = fleet_of(make_node, up_bytes_per_s=1e6, flops_per_s=1e15)
    made = []
    for lag in (1, 2, 1000):
        spans = spans_of({"max_lag": lag}, boundary_bytes=0, boundary_gradient_bytes=0)
        made.append(predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS)).prediction.samples_per_s)
    # With more than one round on its way the links send the next one while the last bytes of a round travel.
    assert made == pytest.approx([1024 / (6 + 0.05 + TOLD_S), 1024 / 6, 1024 / 6])


def test_a_round_waits_for_an_update_of_the_slowest_cluster(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    slow = [make_node(name, flops_per_s=1e9) for name in "cd"]
    fleet = Fleet((make_node("a"), make_node("b"), *slow))
    spans = spans_of({"average_every": 1}, parameter_bytes=0)
    forecast = predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS))
    update_s = 100 * 4 * 3 * 6e8 / 1e9
    assert forecast.prediction.samples_per_s == pytest.approx(2 * 400 / update_s)
    assert forecast.limits == (ClusterLimit("averaging", "d"), ClusterLimit("averaging", "d"))
    assert "c1 joins" in forecast.prediction.bottleneck


def test_a_link_that_is_too_slow_for_a_ring_is_named(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    nodes = tuple(make_node(name, flops_per_s=1e15) for name in "abcd")
    fleet = Fleet(nodes, (Link("a", "c", 0.05, 1e4),))
    spans = spans_of(boundary_bytes=0, boundary_gradient_bytes=0)
    forecast = predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS))
    assert forecast.prediction.samples_per_s == pytest.approx(1024 / (2 * 10**6 / 1e4 + 0.05 + TOLD_S))
    assert forecast.limits[0] in (ClusterLimit("averaging", "a"), ClusterLimit("averaging", "c"))
    assert forecast.prediction.bottleneck.endswith(
        ("in which a takes longest to send its part to c", "in which c takes longest to send its part to a")
    )


def test_a_shorter_form_on_the_wire_shortens_the_averaging_by_as_much(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet = fleet_of(make_node, up_bytes_per_s=1e4, down_bytes_per_s=1e4)

    def averaging_s(moved: float) -> float:
        spans = spans_of({"averaged_bytes_per_parameter_byte": moved}, parameter_bytes=10**6)
        return predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS)).prediction.averaging_s

    assert averaging_s(0.5) == pytest.approx(averaging_s(1.0) / 2, rel=1e-3)


def test_latency_counts_only_when_the_window_is_too_small(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet, spans = fleet_of(make_node), spans_of()
    wide, narrow = (
        predict(fleet, spans, [Cluster("c0", w, CLUSTERS[0].stages)], ()).prediction.clusters[0] for w in (9, 1)
    )
    assert wide.samples_per_s == pytest.approx(4 / wide.bottleneck_s)
    assert narrow.samples_per_s == pytest.approx(4 / narrow.round_trip_s)
    assert "round trip" in narrow.bottleneck


def test_the_objective_is_the_discounted_sum(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    fleet, spans = fleet_of(make_node), spans_of()
    predicted = predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS)).prediction
    worth = sum(c.samples_per_s for c in predicted.clusters) * staleness_factor(6, 2, spans.workload)
    assert predicted.objective == pytest.approx(worth * averaging_factor(2, spans.workload))
    assert predicted.efficiency == pytest.approx(predicted.objective / predicted.samples_per_s)


def test_hosts_share_their_uplink_over_clusters(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    spans = spans_of(parameter_bytes=0)
    apart = fleet_of(make_node, up_bytes_per_s=1e5, flops_per_s=1e15)
    box = {"a": "box", "c": "box"}
    shared = Fleet(tuple(make_node(n, up_bytes_per_s=1e5, flops_per_s=1e15, host=box.get(n)) for n in "abcd"))
    alone, together = (
        predict(fleet, spans, CLUSTERS, make_rings(fleet, spans, CLUSTERS)).prediction for fleet in (apart, shared)
    )
    assert together.samples_per_s == pytest.approx(alone.samples_per_s / 2)
    assert "uplink" in together.bottleneck


def test_a_lone_fast_cluster_waits_for_the_driver(
    make_node: Callable[..., Node], spans_of: Callable[..., SpanCosts]
) -> None:
    """Its rounds send nothing, but each begins only when the driver has said that the one before it has ended."""
    fleet, alone = Fleet((make_node("a", flops_per_s=1e15),)), (Cluster("c0", 1, (Stage("a", (0, 8)),)),)
    often, seldom = (spans_of({"average_every": every, "update_every": 16}) for every in (64, 10**7))
    waiting, free = (predict(fleet, spans, alone, make_rings(fleet, spans, alone)) for spans in (often, seldom))
    assert waiting.prediction.samples_per_s == pytest.approx(64 / TOLD_S)
    assert waiting.limits == (ClusterLimit("averaging", "a"),)
    assert "the driver's messages" in waiting.prediction.bottleneck
    assert waiting.prediction.averaging_s == 0.0
    assert free.prediction.samples_per_s > 10 * waiting.prediction.samples_per_s
    links = {"up_bytes_per_s": 1e13, "down_bytes_per_s": 1e13}
    nodes = make_node("a", flops_per_s=1e15, **links), make_node("b", flops_per_s=1e13, **links)
    faster = Fleet(nodes, (Link("a", "b", 1e-6, 1e13),))
    both = (*alone, Cluster("c1", 1, (Stage("b", (0, 8)),)))
    joins = predict(faster, spans_of({"average_every": 64, "update_every": 16}), both, make_rings(faster, often, both))
    assert "which c1 joins once in each of its long updates" in joins.prediction.bottleneck
