from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.predict.prediction import predict
from cluster_planner.rings import make_rings

Cuts = Sequence[Sequence[tuple[str, int]]]


def clusters_of(*several: Sequence[tuple[str, int]], window: int = 4) -> list[Cluster]:
    """Clusters of (node, units) in order."""
    found = []
    for number, stages in enumerate(several):
        ends = [sum(units for _, units in stages[: i + 1]) for i in range(len(stages))]
        spans = zip([0, *ends], ends, strict=False)
        found.append(
            Cluster(f"c{number}", window, tuple(Stage(n, span) for (n, _), span in zip(stages, spans, strict=True)))
        )
    return found


def predicted(fleet: Fleet, spans: SpanCosts, clusters: Sequence[Cluster]) -> float:
    return predict(fleet, spans, clusters, make_rings(fleet, spans, clusters)).prediction.objective


@pytest.mark.parametrize("tied", ["exact", "averaged"])
@pytest.mark.parametrize("average_every", [64, 100_000])
def test_a_plan_is_worth_what_is_predicted_of_it(
    home: Fleet,
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    tied: str,
    average_every: int,
) -> None:
    spans = SpanCosts(make_model(8, tied_bytes=1000), make_workload(tied=tied, average_every=average_every))
    worths = PlanWorths(home, spans)
    plans = [
        clusters_of([("fast0", 3), ("fast1", 5)], [("slow0", 4), ("slow1", 2), ("slow2", 2)]),
        clusters_of([("fast0", 3), ("slow1", 5)], [("slow0", 4), ("fast1", 2), ("slow2", 2)]),
        clusters_of([("fast0", 8)], [("fast1", 8)], [("fast2", 8)], [("slow0", 8)]),
        clusters_of([("fast0", 4), ("fast1", 4)]),
    ]
    for plan in (*plans, *plans):  # the second time from what is remembered
        worth, unaveraged = worths.of(plan), worths.of(plan, averaged=False)
        assert worth == pytest.approx(predicted(home, spans, plan), rel=1e-12)
        assert worths.at_most(plan) >= unaveraged * (1 - 1e-12) >= worth * (1 - 2e-12)
    assert worths.at_most(plans[-1]) == pytest.approx(worths.of(plans[-1])), "one cluster waits for no rounds"
    assert worths.asked == 4 * len(plans) + 1


def test_what_clusters_share_of_a_host_counts_where_nothing_is_averaged(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    slow = {"up_bytes_per_s": 1e5, "down_bytes_per_s": 1e5}
    fleet = Fleet((*(make_node(f"a{i}", host="a", **slow) for i in range(2)), make_node("b"), make_node("c")))
    spans = SpanCosts(make_model(8), make_workload(average_every=10**9))
    worths, plan = PlanWorths(fleet, spans), clusters_of([("a0", 4), ("b", 4)], [("a1", 4), ("c", 4)])
    assert worths.at_most(plan) > 1.1 * worths.of(plan)
    assert worths.of(plan, averaged=False) == pytest.approx(worths.of(plan), rel=1e-3)


def test_a_larger_window_is_a_plan_of_its_own(
    home: Fleet, gpt: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(gpt, make_workload())
    worths = PlanWorths(home, spans)
    for window in (1, 6):
        plan = clusters_of([("fast0", 13), ("slow1", len(gpt.units) - 13)], window=window)
        assert worths.of(plan) == pytest.approx(predicted(home, spans, plan))


@pytest.mark.parametrize("roughly", [False, True])
@pytest.mark.parametrize("average_every", [64, 100_000])
def test_of_a_plan_that_is_worth_no_more_it_is_only_said_that_it_is_not(
    home: Fleet,
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
    average_every: int,
    roughly: bool,
) -> None:
    spans = SpanCosts(make_model(8), make_workload(average_every=average_every))
    for window in (1, 2, 6):
        plan = clusters_of([("fast0", 3), ("fast1", 5)], [("slow0", 4), ("slow1", 2), ("slow2", 2)], window=window)
        worth = PlanWorths(home, spans).of(plan, roughly=roughly)
        assert PlanWorths(home, spans).of(plan, roughly=roughly, above=0.999 * worth) == worth
        for above in (1.001 * worth, 1.2 * worth, 10 * worth):
            assert worth <= PlanWorths(home, spans).of(plan, roughly=roughly, above=above) <= max(worth, above)


def test_what_holds_a_plan_up_is_its_slowest_stages_and_the_slowest_way_of_a_round(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = [make_node(name) for name in ("a", "b", "c")]
    fleet = Fleet((*nodes, make_node("slow", up_bytes_per_s=1e5)))
    spans = SpanCosts(make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=64))
    worths = PlanWorths(fleet, spans)
    plan = clusters_of([("a", 6), ("b", 2)], [("c", 7), ("slow", 1)])
    assert worths.limiting(plan)[0] == (0, 0)
    assert set(worths.limiting(plan)[2:]) >= {(1, 1)}
    assert worths.limiting(plan[:1]) == [(0, 0)]


def test_rough_worth_ranks_rings_of_neighbours_first(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(f"{place}{i}", region=place) for place in "ab" for i in range(4))
    far = RegionLink("a", "b", 0.1, 5e5)
    fleet = Fleet(nodes, (), (far, RegionLink("a", "a", 1e-3, 1e8), RegionLink("b", "b", 1e-3, 1e8)))
    spans = SpanCosts(make_model(8, parameter_bytes=4 * 10**6), make_workload(average_every=64))
    worths = PlanWorths(fleet, spans)
    across = clusters_of(*([(f"a{i}", 4), (f"b{i}", 4)] for i in range(4)))
    within = clusters_of(*([(f"{place}{i}", 4), (f"{place}{i + 1}", 4)] for place in "ab" for i in (0, 2)))
    assert worths.of(across) > 2 * worths.of(within)
    assert worths.of(across, roughly=True) > 2 * worths.of(within, roughly=True)


def test_rough_worth_is_near_where_blocks_are_unequal(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    nodes = tuple(make_node(f"n{i}", up_bytes_per_s=rate) for i, rate in enumerate((1e6, 4e6, 4e6, 4e6)))
    fleet = Fleet(nodes)
    spans = SpanCosts(make_model(4, parameter_bytes=4 * 10**6), replace(make_workload(), average_every=64))
    plan = clusters_of(*([(node.name, 4)] for node in nodes))
    worths = PlanWorths(fleet, spans)
    assert worths.of(plan, roughly=True) == pytest.approx(worths.of(plan), rel=0.1)
