from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import Fleet, Link, ModelCosts, Node, Plan, SpanCosts, Workload, make_plan, stage_fits
from cluster_planner.search import planned_anew as module
from cluster_planner.search.candidates import Candidate
from cluster_planner.search.planned_anew import planned_anew


@pytest.fixture
def plan(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Plan:
    """One pipeline of two nodes far apart, with memory for the versions of the weights that two updates keep."""
    nodes = tuple(make_node(name, up_bytes_per_s=1e9, memory_bytes=400 * 10**6) for name in ("a", "b"))
    fleet = Fleet(nodes, (Link("a", "b", 1.0, 1e9),))
    costs, work = make_model(8, parameter_bytes=5 * 10**6), make_workload(update_every=2)
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml", min_stages=2)


def anew(plan: Plan, work: Workload) -> Candidate | None:
    return planned_anew(plan.clusters, plan.fleet, plan.costs, work, plan.least_stages, plan.seed)


def has_memory(plan: Plan, found: Candidate, work: Workload) -> bool:
    spans = SpanCosts(plan.costs, work)
    return all(
        stage_fits(plan.fleet.node(stage.node), spans, stage, (index, len(cluster.stages)), cluster.window)
        for cluster in found.clusters
        for index, stage in enumerate(cluster.stages)
    )


@pytest.mark.parametrize("larger", [False, True], ids=["from groups too", "as in a larger fleet"])
def test_windows_grow_with_the_staleness_as_far_as_memory_goes(
    plan: Plan, larger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if larger:
        monkeypatch.setattr(module, "MOST_NODES_TO_PLAN_ANEW", 0)
    now = plan.predicted.objective
    worths = []
    for value in (0, 1, 2, 3):
        work = replace(plan.workload, max_staleness=value)
        found = anew(plan, work)
        assert found is not None
        assert has_memory(plan, found, work)
        worths.append(found.objective)
    assert worths[1] == pytest.approx(now, rel=0.02)
    assert worths[0] < worths[1] < worths[2]


def test_of_what_fits_nowhere_there_is_no_plan(plan: Plan) -> None:
    assert anew(plan, replace(plan.workload, max_staleness=100)) is None
