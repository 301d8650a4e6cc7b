from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cluster_planner.inputs.constraints import ALL_DAY, UNCONSTRAINED, Constraints
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.common_cuts import fast_cuts
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.joined_spares import kinds_of, with_spares
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


def test_no_plan_is_compared_twice_where_there_are_fewer_spares_than_stages(fleet: Fleet, spans: SpanCosts) -> None:
    """A new cluster of all spares is the same with the cuts of another and without, and whichever spare is tried."""
    start, compared = pipeline(fleet, spans, ["a", "b", "c", "slow0", "slow1", "slow2"]), list[Clusters]()
    slower = replace(fleet, nodes=(*fleet.nodes[:6], *(replace(one, flops_per_s=1e4) for one in fleet.nodes[6:8])))
    worths = PlanWorths(slower, spans)

    class Noting(WholePlans):
        def better(
            self, changed: Clusters, now: tuple[float, float], *, slack: float = 0.0
        ) -> tuple[float, float] | None:
            compared.append(changed)
            return super().better(changed, now, slack=slack)

    with_spares(Noting(slower, spans, worths, slower.names, 2), worths, slower, start, 400)
    assert len(compared) == len(set(compared)) > 5


def test_spares_are_of_one_kind_where_nothing_that_counts_tells_them_apart(make_node: Callable[..., Node]) -> None:
    names = ["a", "b", "c", "d", "e", "f"]

    def kinds(constraints: Constraints = UNCONSTRAINED, **of: dict[str, object]) -> set[str]:
        nodes = tuple(make_node(name, **of.get(name, {})) for name in names)
        return {"".join(alike) for alike in kinds_of(Fleet(nodes, (), (), constraints), names[:5])}

    assert kinds() == {"abcde"}
    assert kinds(a={"hours": ALL_DAY}, b={"hours": 0b1111}) == {"acde", "b"}
    assert kinds(Constraints(min_clusters=2)) == {"abcde"}
    assert kinds(Constraints(forbid=(("a", "f"),))) == {"a", "bcde"}
    grouped = Constraints(groups=(("x", ("a", "b")), ("y", ("f",))), apart=(("x", "y"),))
    assert kinds(grouped) == {"ab", "cde"}
    on_hosts = {name: {"host": host} for name, host in zip(names, "xxyyzz", strict=True)}
    assert kinds(**on_hosts) == {"abcd", "e"}, "beside e, f runs a stage"
