from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import Cluster, Fleet, ModelCosts, Node, Stage, Workload
from cluster_planner.advice.job_changes import Suggestion
from cluster_planner.advice.single_changes import longer_hours
from cluster_planner.inputs.constraints import hours_from
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.predict.prediction import predict


def found(
    fleet: Fleet, costs: ModelCosts, work: Workload, *pairs: tuple[str, str]
) -> tuple[list[Suggestion], float, float]:
    spans = SpanCosts(costs, work)
    clusters = [Cluster(f"c{i}", 5, (Stage(a, (0, 4)), Stage(b, (4, 8)))) for i, (a, b) in enumerate(pairs)]
    now = predict(fleet, spans, clusters, ()).prediction
    always = Fleet(tuple(replace(node, hours=hours_from("0-24")) for node in fleet.nodes))
    return (
        longer_hours(fleet, spans, clusters, now),
        now.objective,
        predict(always, spans, clusters, ()).prediction.objective,
    )


def test_nodes_of_the_same_hours_are_named_together_with_what_their_being_there_is_worth(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    evening = hours_from("18-24")
    fleet = Fleet((make_node("a", hours=evening), make_node("b", hours=evening), make_node("c"), make_node("d")))
    (only,), now, always = found(fleet, make_model(8), make_workload(), ("a", "b"), ("c", "d"))
    assert (only.words, only.cluster) == ("a and b being there all day instead of 18-24 UTC", 0)
    assert only.worth == pytest.approx(always)
    assert only.worth > now


def test_hours_that_cost_nothing_are_not_named(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    narrow = make_node("b", hours=hours_from("18-20"))
    fleet = Fleet((make_node("a", hours=hours_from("18-24")), narrow))
    (only,), _, _ = found(fleet, make_model(8), make_workload(), ("a", "b"))
    assert only.words == "b being there all day instead of 18-20 UTC"
    assert found(Fleet((make_node("a"), make_node("b"))), make_model(8), make_workload(), ("a", "b"))[0] == []
