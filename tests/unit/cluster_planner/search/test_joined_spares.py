from collections.abc import Callable, Sequence

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.common_cuts import fast_cuts
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.joined_spares import with_spares
from cluster_planner.search.whole_plans import Clusters, WholePlans


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=64))


@pytest.fixture
def fleet(make_node: Callable[..., Node]) -> Fleet:
    """Three fast nodes, and nine that are a million times slower."""
    slow = [make_node(f"slow{i}", flops_per_s=1e5) for i in range(9)]
    return Fleet((make_node("a"), make_node("b"), make_node("c"), *slow))


def pipeline(fleet: Fleet, spans: SpanCosts, names: Sequence[str]) -> Clusters:
    found = fast_cuts(fleet, spans, names)
    assert found is not None
    return (Cluster("", found.window, found.stages),)


def tried(fleet: Fleet, spans: SpanCosts, start: Clusters, tries: int) -> tuple[Clusters, frozenset[str], int]:
    """Return what comes out, the useless spares, and how many plans were compared."""
    worths = PlanWorths(fleet, spans)
    clusters, useless = with_spares(WholePlans(fleet, spans, worths, fleet.names, 2), worths, fleet, start, tries)
    return clusters, useless, worths.asked


def test_a_spare_that_helps_is_taken_in_and_others_are_known_to_be_useless(fleet: Fleet, spans: SpanCosts) -> None:
    start = pipeline(fleet, spans, ["a", "b"])
    clusters, useless, _ = tried(fleet, spans, start, 400)
    assert "c" in {stage.node for cluster in clusters for stage in cluster.stages}
    assert PlanWorths(fleet, spans).of(clusters) > PlanWorths(fleet, spans).of(start)
    assert useless == {f"slow{i}" for i in range(9)}


def test_no_more_plans_are_compared_than_asked_for(fleet: Fleet, spans: SpanCosts) -> None:
    best, _, _ = tried(fleet, spans, pipeline(fleet, spans, ["a", "b"]), 400)
    clusters, useless, asked = tried(fleet, spans, best, 3)
    assert clusters == best
    assert useless == frozenset(), "nothing is said of spares that were not tried at each place"
    assert asked <= 2 + 2 * 3
