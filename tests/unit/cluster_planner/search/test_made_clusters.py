from collections.abc import Callable, Iterator, Sequence

import pytest

from cluster_planner.inputs.constraints import LAST, Constraints, Pin
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline import best_pipeline
from cluster_planner.pipeline import common_cuts as pipeline_cuts
from cluster_planner.plan import Cluster
from cluster_planner.search import made_clusters
from cluster_planner.search.made_clusters import MadeClusters

HALVES = ((0, 4), (4, 8))


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8), make_workload())


@pytest.fixture
def sites(make_node: Callable[..., Node]) -> Fleet:
    """Three nodes in each of two places that are far from each other."""
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(3))
    near = (RegionLink(place, place, 1e-3, 1e8) for place in "ab")
    return Fleet(nodes, (), (RegionLink("a", "b", 0.05, 5e5), *near))


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


@pytest.mark.parametrize("same_cuts", [True, False])
def test_a_cluster_like_another_has_each_stage_in_the_same_place(
    sites: Fleet, spans: SpanCosts, same_cuts: bool
) -> None:
    made = MadeClusters(sites, spans, spans, 1)
    model = made.of_spans(["b0", "a0", "b1"], [(0, 1), (1, 6), (6, 8)])
    assert model is not None
    found = made.like(model, ["a1", "a2", "b2"], same_cuts=same_cuts)
    assert found is not None
    assert [stage.node[0] for stage in found.stages].count("a") == 2
    assert found.stages[1].node in ("a1", "a2")
    assert ([stage.units for stage in found.stages] == [stage.units for stage in model.stages]) == same_cuts


def test_a_cluster_like_another_of_fewer_nodes_is_cut_anew(sites: Fleet, spans: SpanCosts) -> None:
    made = MadeClusters(sites, spans, spans, 1)
    model = made.cut_anew(["b0", "a0", "b1"])
    assert model is not None
    found = made.like(model, ["b2", "a1"], same_cuts=True)
    assert sorted(names_of(found)) == ["a1", "b2"]
    assert found is not None
    assert found.stages[-1].units[1] == 8
    assert made.like(model, [], same_cuts=True) is None
    assert MadeClusters(sites, spans, spans, 3).like(model, ["b2", "a1"], same_cuts=False) is None


def test_along_a_tour_neighbours_follow_each_other(sites: Fleet, spans: SpanCosts) -> None:
    made = MadeClusters(sites, spans, spans, 1)
    places = [name[0] for name in names_of(made.along_tour(["a0", "b0", "a1", "b1"]))]
    assert places in (list("aabb"), list("bbaa"))


def test_a_model_of_one_unit_has_clusters_of_one_node_only(
    sites: Fleet, make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    """It has no cut, so that no hop has a size: what that was on average was no number, with a warning of NumPy's."""
    spans = SpanCosts(make_model(1), make_workload())
    made = MadeClusters(sites, spans, spans, 1)
    assert names_of(made.along_tour(["a0"])) == ["a0"]
    assert made.along_tour(["a0", "a1"]) is None
    model = made.cut_anew(["a0"])
    assert model is not None
    assert names_of(made.like(model, ["b0", "a1", "b1"], same_cuts=True)) == ["a1"]


def test_clusters_with_common_cuts_are_computed_once_for_equal_nodes(
    make_node: Callable[..., Node], spans: SpanCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet((*(make_node(f"a{i}") for i in range(3)), *(make_node(f"f{i}", flops_per_s=4e10) for i in range(3))))
    made = MadeClusters(fleet, spans, spans, 2)
    computed: list[object] = []

    def common_cuts(*given: object) -> Iterator[tuple[best_pipeline.Pipeline, ...]]:
        computed.append(given[2])
        return pipeline_cuts.common_cuts(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(made_clusters, "common_cuts", common_cuts)
    first, second = (made.in_common(orders) for orders in ([["a0", "f0"], ["a1", "f1"]], [["a2", "f1"], ["a0", "f2"]]))
    assert len(computed) == 1
    assert first
    for way, other in zip(first, second, strict=True):
        assert [names_of(cluster) for cluster in way] == [["a0", "f0"], ["a1", "f1"]]
        assert [names_of(cluster) for cluster in other] == [["a2", "f1"], ["a0", "f2"]]
        cuts = {tuple(stage.units for stage in cluster.stages) for cluster in (*way, *other)}
        assert len(cuts) == 1
    assert made.in_common([["a0"], ["a1"]]) == [], "two stages are demanded"
