from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from cluster_planner.inputs.constraints import LAST, Constraints, Pin
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.links import RegionLink
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.pipeline.common_cuts import fast_cuts
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.whole_plans import WholePlans

NAMES = tuple(f"{place}{i}" for place in "ab" for i in range(4))


@pytest.fixture
def sites(make_node: Callable[..., Node]) -> Fleet:
    nodes = tuple(make_node(name, region=name[0]) for name in NAMES)
    far = RegionLink("a", "b", 0.05, 5e5)
    return Fleet(nodes, (), (far, RegionLink("a", "a", 1e-3, 1e8), RegionLink("b", "b", 1e-3, 1e8)))


@pytest.fixture
def spans(make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]) -> SpanCosts:
    return SpanCosts(make_model(8, parameter_bytes=2 * 10**6), make_workload(average_every=64))


def within(fleet: Fleet, spans: SpanCosts, groups: Sequence[Sequence[str]]) -> list[Cluster]:
    found = [fast_cuts(fleet, spans, group) for group in groups]
    return [Cluster("", one.window, one.stages) for one in found if one is not None]


def climbed(
    fleet: Fleet, spans: SpanCosts, start: Sequence[Cluster], tries: int = 250
) -> tuple[list[list[str]], float]:
    worths = PlanWorths(fleet, spans)
    clusters, worth = WholePlans(fleet, spans, worths, fleet.names, 2).improved(start, tries, 0)
    assert worth == pytest.approx(worths.of(clusters))
    nodes = [stage.node for cluster in clusters for stage in cluster.stages]
    assert len(nodes) == len(set(nodes))
    for cluster in clusters:
        ends = [end for stage in cluster.stages for end in stage.units]
        assert ends[0] == 0
        assert ends[-1] == spans.count
        assert ends[1:-1:2] == ends[2::2]
    return [[stage.node for stage in cluster.stages] for cluster in clusters], worth


def test_rings_that_starve_between_sites_come_to_lie_within_them(sites: Fleet, spans: SpanCosts) -> None:
    start = within(sites, spans, [("a0", "a1"), ("a2", "a3"), ("b0", "b1"), ("b2", "b3")])
    before = PlanWorths(sites, spans).of(start)
    clusters, worth = climbed(sites, spans, start)
    assert worth > 1.5 * before
    assert len(clusters) > 0


def test_the_same_seed_climbs_the_same_way(sites: Fleet, spans: SpanCosts) -> None:
    start = within(sites, spans, [("a0", "b0", "a1"), ("b1", "a2")])
    assert climbed(sites, spans, start, 60) == climbed(sites, spans, start, 60)


def test_whoever_listens_can_end_it(sites: Fleet, spans: SpanCosts) -> None:
    start = within(sites, spans, [("a0", "a1"), ("a2", "a3"), ("b0", "b1"), ("b2", "b3")])
    heard: list[float] = []

    def once(worth: float, clusters: Sequence[Cluster]) -> bool:
        heard.append(worth)
        return False

    worths = PlanWorths(sites, spans)
    _, worth = WholePlans(sites, spans, worths, sites.names, 2).improved(start, 250, 0, tell=once)
    assert heard == [worth]


def test_rules_hold_on_the_way(sites: Fleet, spans: SpanCosts) -> None:
    demanded = Constraints(pins=(Pin("a0", "c0", 0), Pin("b3", None, LAST)), forbid=(("a1", "b1"),), min_clusters=2)
    fleet = replace(sites, constraints=demanded)
    start = within(fleet, spans, [("a0", "a1"), ("b0", "b1"), ("b2", "b3")])
    clusters, _ = climbed(fleet, spans, start)
    assert len(clusters) >= 2
    pinned = next(names for names in clusters if "a0" in names)
    assert pinned[0] == "a0"
    assert next(names for names in clusters if "b3" in names)[-1] == "b3"
    assert not any({"a1", "b1"} <= set(names) for names in clusters)


def test_a_stage_moves_or_leaves_in_all_clusters_with_the_same_cuts(sites: Fleet, spans: SpanCosts) -> None:
    start = within(sites, spans, [("a0", "b0", "a1", "b1"), ("a2", "b2", "a3", "b3")])
    clusters, _ = climbed(sites, spans, start, 400)
    assert {names[0][0] for names in clusters} == {clusters[0][0][0]}
    hops = [names[i][0] != names[i + 1][0] for names in clusters for i in range(len(names) - 1)]
    assert sum(hops) <= len(clusters)  # a pipeline goes from one site to the other once, at most


def test_nodes_of_several_clusters_and_spares_are_mixed(sites: Fleet, spans: SpanCosts) -> None:
    """Of b2 and b3, which are spares, up to three join; a cluster keeps one node of its own at least."""
    now = tuple(within(sites, spans, [("a0", "a1", "a2"), ("a3", "b0", "b1")]))
    plans = WholePlans(sites, spans, PlanWorths(sites, spans), sites.names, 1)
    moved = set[int]()
    for seed in range(60):
        changed = plans.mixed(now, np.random.default_rng(seed))
        if changed is None:
            continue
        names = [[stage.node for stage in cluster.stages] for cluster in changed]
        flat = [name for group in names for name in group]
        assert len(flat) == len(set(flat))
        assert len(changed) == len(now)
        assert all({stage.node for stage in one.stages} & set(group) for one, group in zip(now, names, strict=True))
        moved.add(len(set(flat) ^ {stage.node for one in now for stage in one.stages}))
    assert max(moved) >= 2, "several nodes join or leave at once"


def test_nodes_that_change_places_keep_their_cuts_or_are_cut_anew(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    speeds = {"a": 8e9, "b": 1e9, "c": 1e9, "d": 1e9}
    fleet = Fleet(tuple(make_node(name, flops_per_s=speed) for name, speed in speeds.items()))
    now = tuple(within(fleet, spans, [("a", "b"), ("c", "d")]))
    plans = WholePlans(fleet, spans, PlanWorths(fleet, spans), fleet.names, 1)
    for anew in (False, True):
        changed = plans.with_exchange(now, (0, 0), (1, 0), anew=anew)
        assert changed is not None
        assert [[stage.node for stage in one.stages] for one in changed] == [["c", "b"], ["a", "d"]]
        cuts = [[stage.units for stage in one.stages] for one in changed]
        assert (cuts == [[stage.units for stage in one.stages] for one in now]) is not anew
        if anew:
            assert cuts[0][0][1] < now[0].stages[0].units[1], "c computes as much as b"


def test_slow_nodes_become_spares(make_node: Callable[..., Node], spans: SpanCosts) -> None:
    nodes = (*(make_node(f"n{i}", up_bytes_per_s=1e8) for i in range(4)), make_node("slow", up_bytes_per_s=1e3))
    fleet = Fleet(nodes)
    clusters, _ = climbed(fleet, spans, within(fleet, spans, [("n0", "n1"), ("n2", "slow", "n3")]))
    assert all("slow" not in names for names in clusters)


def test_a_plan_that_differs_by_equal_nodes_only_is_not_tried_again(
    make_node: Callable[..., Node], spans: SpanCosts
) -> None:
    """Of four equal nodes in one pipeline no exchange and no order is another plan; so few are left to compare."""
    fleet = Fleet(tuple(make_node(name) for name in "abcd"))
    worths = PlanWorths(fleet, spans)
    plans = WholePlans(fleet, spans, worths, fleet.names, 4)
    start = within(fleet, spans, ["abcd"])
    plans.improved(start, 200, 0)
    asked = worths.asked
    _, worth = plans.improved(start, 200, 1)
    assert worth >= worths.of(start)
    assert worths.asked - asked < 100


def test_a_change_is_judged_by_what_the_plan_is_worth(sites: Fleet, spans: SpanCosts) -> None:
    worths = PlanWorths(sites, spans)
    plans = WholePlans(sites, spans, worths, sites.names, 2)
    one, two = (tuple(within(sites, spans, groups)) for groups in ([("a0", "a1")], [("a0", "a1"), ("b0", "b1")]))
    less, more = sorted((one, two), key=worths.of)
    of_less, of_more = ((worths.of(plan), worths.of(plan, roughly=True)) for plan in (less, more))
    assert plans.better(more, of_less) == pytest.approx(of_more)
    assert plans.better(less, of_more) is None
    assert plans.better(more, of_more) is None
