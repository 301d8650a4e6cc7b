""" """

from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import Cluster, Fleet, ModelCosts, Node, Stage, Workload
from cluster_planner.advice.job_changes import Suggestion
from cluster_planner.advice.shorter_forms import RATIOS, shorter_forms, shorter_rounds
from cluster_planner.advice.single_changes import advise
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings

CLUSTERS = (Cluster("c0", 9, (Stage("a", (0, 4)), Stage("b", (4, 8)))),)


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8), make_workload(update_every=100))


def suggested(fleet: Fleet, spans: SpanCosts) -> list[str]:
    found = shorter_forms(fleet, spans, CLUSTERS, (), predict(fleet, spans, CLUSTERS, ()))
    return [one.words.split()[0] for one in found]


def with_uplink(make_node: Callable[..., Node], rate: float) -> Fleet:
    return Fleet((make_node("a", up_bytes_per_s=rate), make_node("b")))


def test_the_longest_form_that_brings_most_is_suggested_where_a_link_limits(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    slow = with_uplink(make_node, 1e4)
    assert suggested(slow, spans) == ["int4"]
    fast = predict(with_uplink(make_node, 1e9), spans, CLUSTERS, ()).prediction.samples_per_s
    now = predict(slow, spans, CLUSTERS, ()).prediction.samples_per_s
    # With an uplink just so slow that a quarter of the bytes are no limit any more.
    assert suggested(with_uplink(make_node, 1e4 * fast / now / 3), spans) == ["int8"]


def test_what_changes_nothing_is_not_suggested(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    assert suggested(with_uplink(make_node, 1e9), spans) == []
    short = replace(spans.workload, activation_wire_ratio=RATIOS["int4"], gradient_wire_ratio=RATIOS["int4"])
    assert suggested(with_uplink(make_node, 1e3), spans.under(short)) == []
    halves = replace(spans.workload, activation_wire_ratio=RATIOS["int4"], gradient_wire_ratio=0.5)
    (one,) = suggested(Fleet((make_node("a"), make_node("b", up_bytes_per_s=1e3))), spans.under(halves))
    assert one == "int4"


def test_it_is_the_advice_with_what_it_would_bring(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    slow = with_uplink(make_node, 1e4)
    advice = advise(slow, spans, CLUSTERS, (), predict(slow, spans, CLUSTERS, ()))
    assert advice.line.startswith("int4 as the form in which activations and gradients travel (wire) would raise")
    assert advice.change is not None
    assert advice.change.changed is not None
    fleet, work = advice.change.changed
    made = predict(fleet, spans.under(work), CLUSTERS, ()).prediction
    assert made.samples_per_s == pytest.approx(advice.change.samples_per_s)


def rounds(make_node: Callable[..., Node], spans: SpanCosts, memory: int = 10**9) -> list[Suggestion]:
    """What is suggested to two clusters that wait for averaging over slow uplinks."""
    fleet = Fleet(tuple(make_node(name, up_bytes_per_s=1e5, memory_bytes=memory) for name in "abcd"))
    clusters = [
        Cluster("c0", 4, (Stage("a", (0, 4)), Stage("b", (4, 8)))),
        Cluster("c1", 4, (Stage("c", (0, 4)), Stage("d", (4, 8)))),
    ]
    rings = make_rings(fleet, spans, clusters)
    forecast = predict(fleet, spans, clusters, rings)
    assert {limit.kind for limit in forecast.limits} == {"averaging"}
    return shorter_rounds(fleet, spans, clusters, rings, forecast)


def test_a_shorter_form_of_rounds_is_suggested_where_clusters_wait_for_them_and_memory_holds_what_is_fed_back(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(8), make_workload(average_every=128, max_lag=2))
    (one,) = rounds(make_node, spans)
    assert one.words == "int4 as the form in which rounds travel (averaging.wire)"
    assert one.changed is not None
    _, work = one.changed
    assert work.averaged_bytes_per_parameter_byte == RATIOS["int4"]
    assert work.averaging_state_bytes_per_parameter_byte == 1 + work.max_lag
    now, then = (
        max(under.memory_bytes(*units, 4) for units in ((0, 4), (4, 8))) for under in (spans, spans.under(work))
    )
    assert rounds(make_node, spans, memory=then) != []
    assert rounds(make_node, spans, memory=(now + then) // 2) == []
    assert rounds(make_node, spans.under(work)) == []
