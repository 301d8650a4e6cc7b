""" """

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import Cluster, Fleet, Link, ModelCosts, Node, Stage, Workload
from cluster_planner.advice import job_changes as advice
from cluster_planner.advice.job_changes import Suggestion, is_round_capped, job_changes, most_of, most_of_a_round
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.prediction import predict
from cluster_planner.predict.stage_times import wanted_window
from cluster_planner.rings import make_rings

Make = Callable[..., Node]


def changes(fleet: Fleet, spans: SpanCosts, cluster: Cluster) -> dict[str, Suggestion]:
    """By key of the job."""
    found = job_changes(fleet, spans, [cluster], (), predict(fleet, spans, [cluster], ()))
    return {one.words.split()[0]: one for one in found}


def far_apart(make_node: Make, **changes: object) -> Fleet:
    nodes = (make_node("a", up_bytes_per_s=1e9, **changes), make_node("b", up_bytes_per_s=1e9, **changes))
    return Fleet(nodes, (Link("a", "b", 1.0, 1e9),))


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8), make_workload(update_every=2))


@pytest.fixture
def cluster(spans: SpanCosts) -> Cluster:
    return Cluster("c0", spans.workload.largest_window, (Stage("a", (0, 4)), Stage("b", (4, 8))))


def test_a_round_trip_asks_for_more_staleness_or_larger_updates_with_figures(
    make_node: Make, spans: SpanCosts, cluster: Cluster
) -> None:
    fleet = far_apart(make_node)
    now = predict(fleet, spans, [cluster], ()).prediction
    found = changes(fleet, spans, cluster)
    assert found["max_staleness"].words == "max_staleness 3 instead of 1"
    assert found["update_every"].words == "update_every 8 instead of 2, if such large updates learn as well,"
    under = spans.under(replace(spans.workload, max_staleness=3))
    window = wanted_window(now.clusters[0].bottleneck_s, now.clusters[0].round_trip_s, under.workload)
    then = predict(fleet, under, [replace(cluster, window=window)], ()).prediction
    assert (found["max_staleness"].samples_per_s, found["max_staleness"].worth) == (then.samples_per_s, then.objective)
    assert found["update_every"].worth == pytest.approx(found["update_every"].samples_per_s * now.efficiency)


def test_what_does_not_fit_in_memory_is_not_suggested(make_node: Make, spans: SpanCosts, cluster: Cluster) -> None:
    # Room for the versions that staleness 1 keeps, and for no more.
    tight = max(spans.memory_bytes(0, 4, cluster.window), spans.memory_bytes(4, 8, cluster.window))
    assert "max_staleness" in changes(far_apart(make_node, memory_bytes=2 * tight), spans, cluster)
    assert "max_staleness" not in changes(far_apart(make_node, memory_bytes=tight), spans, cluster)


def test_a_window_that_is_smaller_than_wanted_is_not_for_the_job_to_mend(
    make_node: Make, spans: SpanCosts, cluster: Cluster
) -> None:
    assert changes(far_apart(make_node), spans, replace(cluster, window=1)) == {}


def test_a_flush_asks_for_larger_updates_or_schedule_async(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(update_every=2, schedule="1f1b", max_staleness=0))
    cluster = Cluster("c0", 2, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    found = changes(Fleet((make_node("a"), make_node("b"))), spans, cluster)
    assert found["schedule"].words == "schedule async with max_staleness 1 instead of 1f1b"
    assert "update_every" in found


@pytest.mark.parametrize("schedule", ["async", "1f1b"])
def test_nothing_is_suggested_that_a_job_may_not_have(
    make_node: Make,
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    monkeypatch: pytest.MonkeyPatch,
    schedule: str,
) -> None:
    work = make_workload(update_every=2, schedule=schedule, max_staleness=1 if schedule == "async" else 0)
    spans = SpanCosts(make_model(8), work)
    cluster = Cluster("c0", work.largest_window, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    assert changes(far_apart(make_node), spans, cluster)
    monkeypatch.setattr(advice, "MOST_IN_FLIGHT", work.largest_window)
    assert changes(far_apart(make_node), spans, cluster) == {}


def test_nothing_is_tried_where_no_cluster_waits(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(update_every=100))
    cluster = Cluster("c0", 9, (Stage("a", (0, 4)), Stage("b", (4, 8))))
    assert changes(Fleet((make_node("a"), make_node("b"))), spans, cluster) == {}


def starving(
    make_node: Make, spans: SpanCosts, most_round: float = math.inf
) -> tuple[dict[str, Suggestion], list[Cluster], Fleet]:
    """Two clusters that wait for averaging over each house's uplink, which it fills whatever the pipelines leave."""
    fleet = Fleet(
        tuple(make_node(name, host=host, up_bytes_per_s=1e5) for name, host in zip("abcd", "hhii", strict=True))
    )
    clusters = [
        Cluster("c0", 4, (Stage("a", (0, 4)), Stage("b", (4, 8)))),
        Cluster("c1", 4, (Stage("c", (0, 4)), Stage("d", (4, 8)))),
    ]
    rings = make_rings(fleet, spans, clusters)
    forecast = predict(fleet, spans, clusters, rings)
    assert {limit.kind for limit in forecast.limits} == {"averaging"}
    found = job_changes(fleet, spans, clusters, rings, forecast, most_round)
    return {one.words.split()[0]: one for one in found}, clusters, fleet


@pytest.mark.parametrize("average_every", [128, 256])
def test_rarer_averaging_is_suggested_where_averaging_fills_the_links(
    make_node: Make,
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    average_every: int,
) -> None:
    spans = SpanCosts(make_model(8), make_workload(average_every=average_every))
    found, clusters, fleet = starving(make_node, spans)
    under = spans.under(replace(spans.workload, average_every=8 * average_every))
    then = predict(fleet, under, clusters, make_rings(fleet, under, clusters)).prediction
    assert found["average_every"].words == f"average_every {8 * average_every} instead of {average_every}"
    assert found["average_every"].worth >= then.objective


def test_a_round_that_holds_an_update_of_each_cluster_is_not_made_larger_by_less(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(average_every=2))  # a round is 2 clusters' updates of 16 samples
    assert starving(make_node, spans)[0]["average_every"].words == "average_every 256 instead of 2"


def test_no_round_is_suggested_of_which_training_has_too_few(
    make_node: Make, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(average_every=256))
    most_round = most_of_a_round(8 * 600, math.inf, 100.0)
    assert starving(make_node, spans, most_round)[0]["average_every"].words == "average_every 512 instead of 256"
    assert not is_round_capped(spans.workload, 2, most_round)
    assert "average_every" not in starving(make_node, spans, 500.0)[0]
    assert is_round_capped(spans.workload, 2, 500.0)


def test_training_ends_by_samples_or_by_time() -> None:
    assert most_of_a_round(70_000, math.inf, 10.0) == 8750
    assert most_of_a_round(math.inf, 60.0, 1000.0) == 7500
    assert most_of_a_round(math.inf, math.inf, 10.0) == math.inf


def test_the_least_size_that_brings_most_of_the_gain_is_suggested() -> None:
    sizes = [Suggestion(str(n), 0.0, worth, None) for n, worth in ((2, 150.0), (4, 196.0), (8, 200.0))]
    chosen = most_of(sizes, 100.0)
    assert chosen is sizes[1]
    assert most_of(sizes, 199.0) is None
    assert most_of([], 100.0) is None
