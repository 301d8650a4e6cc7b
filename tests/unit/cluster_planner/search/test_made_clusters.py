from collections.abc import Callable, Sequence

import pytest

from cluster_planner.inputs.constraints import LAST, Constraints, Pin
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline import best_pipeline
from cluster_planner.plan import Cluster
from cluster_planner.search import made_clusters
from cluster_planner.search.made_clusters import MadeClusters

HALVES = ((0, 4), (4, 8))


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8), make_workload())


def names_of(cluster: Cluster | None) -> list[str]:
    assert cluster is not None
    return [stage.node for stage in cluster.stages]


def test_equal_nodes_make_the_same_cluster_which_is_computed_once(
    make_node: Callable[..., Node], spans: SpanCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet((*(make_node(f"a{i}") for i in range(4)), make_node("fast", flops_per_s=4e10)))
    made = MadeClusters(fleet, spans, spans, 2)
    computed: list[Sequence[str]] = []

    def plan_pipeline(*given: object, **more: object) -> best_pipeline.Pipeline | None:
        computed.append(given[2])  # type: ignore[arg-type]
        return best_pipeline.plan_pipeline(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(made_clusters, "plan_pipeline", plan_pipeline)
    first, second, other = made.planned(["a0", "fast"]), made.planned(["fast", "a3"]), made.planned(["a1", "a2"])
    assert first is not None
    assert second is not None
    assert [stage.units for stage in second.stages] == [stage.units for stage in first.stages]
    assert second.window == first.window
    assert sorted(names_of(second)) == ["a3", "fast"]
    assert sorted(names_of(other)) == ["a1", "a2"]
    assert len(computed) == 2


def test_cuts_follow_the_kinds_of_nodes_in_their_places(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    fleet = Fleet((make_node("a"), make_node("b"), make_node("fast", flops_per_s=4e10)))
    made = MadeClusters(fleet, spans, spans, 1)
    for names in (["a", "fast"], ["b", "fast"], ["fast", "a"], ["a", "b"]):
        assert names_of(made.cut_anew(names)) == names
        assert names_of(made.of_spans(names, HALVES)) == names
    behind, before = made.cut_anew(["b", "fast"]), made.cut_anew(["fast", "a"])
    assert behind is not None
    assert before is not None
    assert behind.stages[1].units[0] < 4 < before.stages[0].units[1], "the fast node has the larger stage"


def test_where_nodes_are_too_few_too_small_or_in_forbidden_places_there_is_no_cluster(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    nodes = make_node("a"), make_node("b"), make_node("small", memory_bytes=10)
    made = MadeClusters(Fleet(nodes), spans, spans, 2)
    assert made.of_spans(["a", "b"], HALVES) is not None
    assert made.cut_anew(["a"]) is None
    assert made.planned(["b"]) is None
    assert made.of_spans(["a", "small"], HALVES) is None
    pinned = Fleet(nodes, constraints=Constraints(pins=(Pin("a", None, LAST),)))
    made = MadeClusters(pinned, spans, spans, 2)
    assert made.cut_anew(["a", "b"]) is None
    assert names_of(made.cut_anew(["b", "a"])) == ["b", "a"]
    assert names_of(made.planned(["a", "b"])) == ["b", "a"]
