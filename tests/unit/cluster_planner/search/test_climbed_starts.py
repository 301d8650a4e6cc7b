import math
from collections.abc import Callable, Sequence

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.climbed_starts import (
    CLIMBED,
    FULL,
    IDLE_STARVING,
    LOOKED_AT,
    NEAR,
    OF_EACH,
    SEEDS,
    STAGES,
    STARTS_STARVING,
    TIMES_FURTHER,
    TIMES_FURTHER_STARVING,
    TRIES_PER_NODE,
    Start,
    Starts,
    climbed,
    climbed_in_stages,
)
from cluster_planner.search.estimates import Group
from cluster_planner.search.fleet_parts import MOST_IN_PARTS
from cluster_planner.search.search_context import SearchProblem
from cluster_planner.search.short_runs import TRIES
from cluster_planner.search.whole_plans import Clusters, WholePlans

Given = tuple[SearchProblem, SpanCosts, PlanWorths]


@pytest.fixture
def given(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Callable[..., Given]:
    """Return a problem of so many nodes, each faster than the one before, its costs and what judges its plans."""

    def of(count: int, average_every: int = 4096) -> Given:
        fleet = Fleet(tuple(make_node(f"n{i}", flops_per_s=1e9 * (i + 1)) for i in range(count)))
        costs, work = make_model(8), make_workload(average_every=average_every)
        spans = SpanCosts(costs, work)
        return SearchProblem(fleet, costs, work, tuple(range(count)), 1, 0), spans, PlanWorths(fleet, spans)

    return of


def start_of(given: Given, plans: WholePlans, *groups: Group) -> Start:
    problem, _, worths = given
    found = [plans.made.cut_anew([problem.fleet.names[i] for i in group]) for group in groups]
    clusters = tuple(one for one in found if one is not None)
    assert len(clusters) == len(groups)
    return Start(worths.of(clusters), clusters, tuple(sorted(i for group in groups for i in group)))


def plan(count: int) -> Clusters:
    return tuple(Cluster(f"c{i}", 1, ()) for i in range(count))


def test_some_plans_of_each_number_of_clusters_are_kept_and_the_best_come_first() -> None:
    starts = Starts()
    for worth in range(1, 10):
        starts.remember(Start(10.0 + worth, plan(2), (0,)))
    starts.remember(Start(1.0, plan(1), (0,)))
    starts.remember(Start(19.0, plan(2), (1,)))  # worth as much as one that is known: most likely it is the same
    kept = starts.best(99)
    assert [start.worth for start in kept] == [*(19.0 - i for i in range(OF_EACH)), 1.0]
    assert kept[0].nodes == (0,)
    assert starts.best(2) == kept[:2]


def test_of_no_starts_nothing_is_left(given: Callable[..., Given]) -> None:
    problem, spans, worths = given(8)
    plans = WholePlans(problem.fleet, spans, worths, problem.fleet.names, 1)
    for is_part in (False, True):
        assert climbed(problem, worths, lambda _: plans, Starts(), is_part=is_part) == ()


@pytest.mark.parametrize(("count", "is_part"), [(8, False), (8, True), (MOST_IN_PARTS + 1, False)])
def test_climbing_takes_in_the_nodes_that_a_start_was_made_without(
    count: int, is_part: bool, given: Callable[..., Given]
) -> None:
    problem, spans, worths = of = given(count)
    climbers: dict[Group, WholePlans] = {}

    def plans_of(nodes: Group) -> WholePlans:
        names = [problem.fleet.names[i] for i in nodes]
        return climbers.setdefault(nodes, WholePlans(problem.fleet, spans, worths, names, 1))

    starts = Starts()
    for groups in (((0, 1),), ((0,), (1,))):
        starts.remember(start_of(of, plans_of(problem.able), *groups))
    best = climbed(problem, worths, plans_of, starts, is_part=is_part)
    assert worths.of(best) > 1.5 * starts.best(1)[0].worth
    assert len({stage.node for cluster in best for stage in cluster.stages} - {"n0", "n1"}) > 2


def test_a_start_that_is_worth_least_may_climb_furthest(given: Callable[..., Given]) -> None:
    """The first start is the best by worth, and what climbs from it finds nothing; from the last it finds more."""
    problem, spans, worths = of = given(8)
    plans = WholePlans(problem.fleet, spans, worths, problem.fleet.names, 1)
    poor, better, good = (start_of(of, plans, *((i,) for i in group)) for group in ((0,), (6, 7), (4, 5, 6, 7)))
    assert poor.worth < better.worth < good.worth

    class Climber(WholePlans):
        """Finds the good plan from the poor one, and nothing from any other."""

        def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
            asked.append((clusters, seed))
            found = good if clusters == poor.clusters else Start(worths.of(clusters), tuple(clusters), ())
            return found.clusters, found.worth

    asked: list[tuple[Clusters, int]] = []
    climber = Climber(problem.fleet, spans, worths, problem.fleet.names, 1)
    starts = Starts()
    starts.remember(poor)
    starts.remember(better)
    best = climbed(problem, worths, lambda _: climber, starts, is_part=False)
    assert worths.of(best) >= good.worth
    assert {clusters for clusters, _ in asked} == {poor.clusters, better.clusters, good.clusters}
    seeds = [seed for clusters, seed in asked if clusters == good.clusters]
    last, fewer = [seed for seed in seeds if seed // SEEDS == len(STAGES) - 1], len(problem.able) / FULL
    assert len(last) * TRIES >= STAGES[-1][2] * fewer, "the best goes on for longest"
    assert len(last) * TRIES < 2 * STAGES[-1][2], "of few nodes for less long than of many"
    assert {seed // SEEDS for seed in seeds} == set(range(len(STAGES))), "each stage draws something else"
    from_poor = {seed for clusters, seed in asked if clusters == poor.clusters}
    assert len(from_poor) == STAGES[0][1], "a start is climbed from several times, with other draws"


def test_plans_worth_the_same_go_on_once_and_first_with_the_nodes_that_the_best_run(
    given: Callable[..., Given],
) -> None:
    problem, spans, worths = of = given(8)
    plans = WholePlans(problem.fleet, spans, worths, problem.fleet.names, 1)
    asked: list[tuple[Group, Clusters]] = []
    ends = {1: start_of(of, plans, (6,)), 2: start_of(of, plans, (5,), (6,)), 3: start_of(of, plans, (5,), (6,))}

    class Climber(WholePlans):
        """Finds the same plan of n5 and n6 from starts of two clusters and of three."""

        nodes: Group = ()

        def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
            asked.append((self.nodes, tuple(clusters)))
            end = ends[len(clusters)]
            return end.clusters, end.worth

    starts = Starts()
    for groups in (((0,),), ((0,), (1,)), ((0,), (1,), (2,))):
        starts.remember(start_of(of, plans, *groups))

    def plans_of(nodes: Group) -> WholePlans:
        climber = Climber(problem.fleet, spans, worths, [problem.fleet.names[i] for i in nodes], 1)
        climber.nodes = nodes
        return climber

    best = climbed_in_stages(problem, plans_of, starts, [(3, 1, 50), (2, 1, 50)])
    assert best == ends[2].clusters
    first = [clusters for _, clusters in asked if clusters in {start.clusters for start in starts.best(3)}]
    assert len(first) == 3
    second = [(nodes, clusters) for nodes, clusters in asked if nodes == (5, 6)]
    assert [clusters for _, clusters in second] == [ends[2].clusters, ends[1].clusters], "each worth goes on once"


@pytest.mark.parametrize(("average_every", "starts_of"), [(4096, CLIMBED), (16, STARTS_STARVING)])
def test_where_rounds_starve_more_starts_of_a_larger_fleet_go_on(
    average_every: int, starts_of: int, given: Callable[..., Given]
) -> None:
    problem, spans, worths = of = given(MOST_IN_PARTS + 1, average_every)

    class Climber(WholePlans):
        """Finds nothing, and says from which plans it was asked to climb."""

        def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
            asked.append(tuple(clusters))
            return tuple(clusters), worths.of(clusters)

    asked: list[Clusters] = []
    climber, starts = Climber(problem.fleet, spans, worths, problem.fleet.names, 1), Starts()
    for count in range(2, 12):
        starts.remember(start_of(of, climber, *((40 - i,) for i in range(count))))
    best = climbed(problem, worths, lambda _: climber, starts, is_part=False)
    assert worths.of(best) >= starts.best(1)[0].worth
    assert set(asked) == {start.clusters for start in starts.best(starts_of)}
    last = [clusters for clusters in asked if clusters == starts.best(1)[0].clusters]
    until = IDLE_STARVING if starts_of == STARTS_STARVING else TRIES_PER_NODE
    assert len(last) * TRIES >= until * len(problem.able), "the best goes on until it is idle, or for so many changes"


@pytest.mark.parametrize(("share", "starts_of"), [(NEAR, STARTS_STARVING), (NEAR - 0.01, CLIMBED)])
def test_the_last_start_that_is_looked_at_tells_that_rounds_starve_if_it_is_worth_nearly_the_best(
    share: float, starts_of: int, given: Callable[..., Given]
) -> None:
    problem, spans, _ = of = given(MOST_IN_PARTS + 1)
    asked = set[Clusters]()

    class Worths(PlanWorths):
        """The last of the starts would be worth twice as much if nothing were averaged."""

        def of(self, clusters: Sequence[Cluster], *, averaged: bool = True, **asked: object) -> float:
            return super().of(clusters) if averaged else 2.0 if tuple(clusters) == last.clusters else 0.0

    class Climber(WholePlans):
        """Finds nothing, and says from which plans it was asked to climb."""

        def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
            asked.add(tuple(clusters))
            return tuple(clusters), worths.of(clusters)

    worths = Worths(problem.fleet, spans)
    climber, starts = Climber(problem.fleet, spans, worths, problem.fleet.names, 1), Starts()
    made = [start_of(of, climber, *((40 - i,) for i in range(count))) for count in range(2, 2 + LOOKED_AT)]
    last = made[-1]
    for number, start in enumerate(made):
        starts.remember(start._replace(worth=share if start is last else 1.0 - number / 100))
    assert starts.best(LOOKED_AT)[-1].clusters == last.clusters
    climbed(problem, worths, lambda _: climber, starts, is_part=False)
    assert len(asked) == starts_of


@pytest.mark.parametrize("average_every", [4096, 16])
def test_climbing_that_gains_for_ever_ends(average_every: int, given: Callable[..., Given]) -> None:
    problem, spans, worths = of = given(MOST_IN_PARTS + 1, average_every)

    class Climber(WholePlans):
        """Says that each run has gained a thousandth."""

        def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
            asked.append(tries)
            return tuple(clusters), worths.of(clusters) * 1.001 ** len(asked)

    asked: list[int] = []
    climber, starts = Climber(problem.fleet, spans, worths, problem.fleet.names, 1), Starts()
    starts.remember(start_of(of, climber, (40,), (39,)))
    assert climbed(problem, worths, lambda _: climber, starts, is_part=False)
    times = TIMES_FURTHER_STARVING if average_every == 16 else TIMES_FURTHER
    assert asked.count(TRIES) == math.ceil(times * TRIES_PER_NODE * len(problem.able) / TRIES)
