from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import (
    STALENESS_PHASE,
    Fleet,
    Link,
    ModelCosts,
    Node,
    NoFeasiblePlan,
    Plan,
    Step,
    Workload,
    make_plan,
    with_best_staleness,
)
from cluster_planner.formatting import format_rate
from cluster_planner.search.best_staleness import FIRST, WORTHWHILE

Make = Callable[..., Node]
Planned = Callable[[Workload], Plan]


@pytest.fixture
def costs(make_model: Callable[..., ModelCosts]) -> ModelCosts:
    return make_model(8)


@pytest.fixture
def work(make_workload: Callable[..., Workload]) -> Workload:
    return make_workload(update_every=2, max_staleness=0)


def a_pair(make_node: Make, latency_s: float, memory_bytes: int = 10**9) -> Fleet:
    """Two nodes that form one pipeline."""
    nodes = tuple(make_node(name, up_bytes_per_s=1e9, memory_bytes=memory_bytes) for name in ("a", "b"))
    return Fleet(nodes, (Link("a", "b", latency_s, 1e9),))


def planner_of(fleet: Fleet, costs: ModelCosts, asked: list[int]) -> Planned:
    def planned(work: Workload) -> Plan:
        asked.append(work.max_staleness)
        return make_plan(fleet, costs, work, job={}, job_file="job.yaml", min_stages=2)

    return planned


def test_where_a_pipeline_waits_for_its_round_trip_a_larger_bound_is_chosen_and_said(
    make_node: Make, costs: ModelCosts, work: Workload
) -> None:
    asked: list[int] = []
    steps: list[Step] = []
    planned = planner_of(a_pair(make_node, 1.0), costs, asked)
    plan = with_best_staleness(planned, work, steps.append)
    chosen = plan.workload.max_staleness
    assert chosen > FIRST
    assert asked == [FIRST, chosen]
    best = max(planned(replace(work, max_staleness=value)).predicted.objective for value in range(12))
    assert plan.predicted.objective >= best * (1 - 2 * WORTHWHILE)
    first = planned(replace(work, max_staleness=FIRST)).predicted.objective
    assert steps[-1].phase == STALENESS_PHASE
    assert steps[-1].words.startswith(
        f"{chosen} is chosen, worth {format_rate(plan.predicted.objective)}; others about ("
    )
    assert f"{FIRST}: {format_rate(first)}" in steps[-1].words
    assert steps[-1].gained == plan.predicted.objective - first


def test_where_no_bound_is_worth_more_nothing_is_searched_again(
    make_node: Make, costs: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    asked: list[int] = []
    planned = planner_of(a_pair(make_node, 1e-4), costs, asked)
    plan = with_best_staleness(planned, make_workload(update_every=8), lambda step: None)
    assert asked == [FIRST]
    assert plan == planned(make_workload(update_every=8))


def test_what_fits_only_without_older_versions_is_planned_so(
    make_node: Make, make_model: Callable[..., ModelCosts], work: Workload
) -> None:
    heavy = make_model(2, parameter_bytes=10**7)
    steps: list[Step] = []
    sizes = range(10**8, 3 * 10**8, 2 * 10**6)
    for memory_bytes in sizes:
        fleet, asked = a_pair(make_node, 1e-3, memory_bytes), []
        planned = planner_of(fleet, heavy, asked)
        try:
            plan = with_best_staleness(planned, work, steps.append)
        except NoFeasiblePlan:
            assert asked == [FIRST, 0]
            continue
        break
    assert plan.workload.max_staleness == 0
    assert steps[-1].words.endswith("memory does not suffice")


def test_no_bound_is_tried_that_a_job_may_not_have(
    make_node: Make, costs: ModelCosts, make_workload: Callable[..., Workload]
) -> None:
    asked: list[int] = []
    work = make_workload(update_every=4096)
    plan = with_best_staleness(planner_of(a_pair(make_node, 1e-3), costs, asked), work, lambda step: None)
    assert plan.workload.max_staleness in (0, 1)
