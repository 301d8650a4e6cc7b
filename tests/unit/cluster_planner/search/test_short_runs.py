from collections.abc import Callable

import pytest

from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.inputs.spans import SpanCosts
from cluster_planner.plan import Cluster, Stage
from cluster_planner.predict.plan_worths import PlanWorths
from cluster_planner.search.short_runs import TRIES, Ended, EndingPlans, short_runs
from cluster_planner.search.whole_plans import Clusters, WholePlans


def plan(worth: float) -> Clusters:
    return (Cluster(f"{worth:g}", 1, (Stage("n0", (0, 1)),)),)


class Climber(WholePlans):
    """Finds plans of these worths, one in each run."""

    def __init__(self, worths: list[float]) -> None:
        self.worths, self.asked = worths, list[tuple[Clusters, int, int]]()

    def improved(self, clusters: Clusters, tries: int, seed: int) -> tuple[Clusters, float]:  # type: ignore[override]
        self.asked.append((clusters, tries, seed))
        worth = self.worths[len(self.asked) - 1]
        return plan(worth), worth


def test_runs_go_on_from_the_best_plan_with_other_draws_and_say_how_long_nothing_was_gained() -> None:
    climber = Climber([1.0, 3.0, 3.0, 2.0, 4.0])
    runs = short_runs(climber, plan(1.0), 1.0, 7)
    found = [next(runs) for _ in range(5)]
    assert [(worth, idle // TRIES) for _, worth, idle in found] == [(1.0, 1), (3.0, 0), (3.0, 1), (3.0, 2), (4.0, 0)]
    assert [clusters for clusters, _, _ in found] == [plan(1.0), plan(3.0), plan(3.0), plan(3.0), plan(4.0)]
    assert [clusters for clusters, _, _ in climber.asked] == [plan(1.0), plan(1.0), plan(3.0), plan(3.0), plan(3.0)]
    assert [(tries, seed) for _, tries, seed in climber.asked] == [(TRIES, seed) for seed in range(7, 12)]


def test_a_climber_that_is_told_to_end_does_so_before_the_next_change_with_the_best_plan_so_far(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    spans = SpanCosts(make_model(6), make_workload())
    fleet = Fleet(tuple(make_node(f"n{i}", flops_per_s=(i + 1) * 1e9) for i in range(4)))
    worths = PlanWorths(fleet, spans)
    climber = EndingPlans(fleet, spans, worths, fleet.names, 2)
    poor = (Cluster("", 1, (Stage("n0", (0, 5)), Stage("n1", (5, 6)))),)
    told, asked = list[tuple[float, Clusters]](), 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return len(told) == 2

    def tell(worth: float, better: Clusters) -> bool:
        told.append((worth, better))
        return True

    climber.is_over = is_over
    with pytest.raises(Ended) as ended:
        climber.improved(poor, TRIES, 0, tell=tell)
    assert asked < TRIES
    assert len(told) == 2
    assert ended.value.taken == told[-1][1]
    climber.is_over = lambda: True
    with pytest.raises(Ended):
        next(short_runs(climber, poor, worths.of(poor), 0))
    untried = EndingPlans(fleet, spans, worths, fleet.names, 2)
    untried.is_over = lambda: True
    with pytest.raises(Ended) as at_once:
        untried.improved(poor, TRIES, 0)
    assert at_once.value.taken is None
