import itertools
from dataclasses import replace

import pytest

from cluster_planner import (
    Fleet,
    ModelCosts,
    Node,
    Plan,
    SpanCosts,
    Spare,
    Step,
    Unit,
    Workload,
    make_plan,
    make_rings,
    predict,
    validate,
)
from ravnest.errors import InvalidInput
from ravnest.planning.searching_on import BUDGET_PHASE, Budget, searched_on


def some_plan() -> Plan:
    speeds = (9e9, 7e9, 5e9, 4e9, 3e9, 2e9)
    nodes = tuple(
        Node(name=f"n{i}", flops_per_s=speed, memory_bytes=10**10, up_bytes_per_s=1e7, down_bytes_per_s=1e7)
        for i, speed in enumerate(speeds)
    )
    unit = Unit(
        name="u", flops=1e8, parameter_bytes=10**5, saved_bytes=10, boundary_bytes=10**3, boundary_gradient_bytes=10**3
    )
    work = Workload(
        micro_batch=4,
        update_every=8,
        max_staleness=1,
        average_every=1024,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=10**6,
        averaged_bytes_per_parameter_byte=1.0,
        averaging_state_bytes_per_parameter_byte=3.0,
    )
    return make_plan(Fleet(nodes), ModelCosts((unit,) * 12, "print"), work, job={}, job_file="job.yaml", min_stages=2)


def worse(plan: Plan) -> Plan:
    """The plan without all but one of its clusters."""
    clusters, spans = plan.clusters[:1], SpanCosts(plan.costs, plan.workload)
    rings = make_rings(plan.fleet, spans, clusters)
    running = {stage.node for stage in clusters[0].stages}
    return replace(
        plan,
        clusters=clusters,
        rings=rings,
        predicted=predict(plan.fleet, spans, clusters, rings).prediction,
        spares=tuple(Spare(name, "") for name in plan.fleet.names if name not in running),
    )


def test_it_goes_on_while_there_is_time_and_finds_better_plans() -> None:
    begun, told = worse(some_plan()), list[float]()
    found = searched_on(
        begun,
        Budget(40.0, lambda plan: None),
        lambda words: None,
        trained=(1e9, 1e9),
        part=told.append,
        clock=itertools.count().__next__,
    )
    assert (told[-1], sorted(told)) == (1.0, told)
    assert len(told) < 50, "changes of one run"
    assert found.predicted.objective > 1.05 * begun.predicted.objective
    validate(found)


@pytest.mark.parametrize("ended", ["by the clock", "by the user"])
def test_it_ends_when_it_is_told_to(ended: str) -> None:
    plan, asked, steps = some_plan(), [], []

    def stop() -> bool:
        asked.append(True)
        return ended == "by the user" and len(asked) == 2

    times = iter([0.0, 1.0, 2.0, 99.0])
    clock = times.__next__ if ended == "by the clock" else lambda: 0.0
    found = searched_on(
        plan,
        Budget(10.0, lambda plan: None, stop),
        lambda words: None,
        trained=(1e9, 1e9),
        tell=steps.append,
        clock=clock,
    )
    assert found.predicted.objective >= plan.predicted.objective
    assert len(asked) == 2
    assert steps == []


@pytest.mark.parametrize("ended", ["by the clock", "by the user"])
def test_spares_are_tried_one_by_one_at_the_end_unless_the_user_waits(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That took seconds after Ctrl-C in a large fleet."""
    tried: list[str] = []

    def with_spares(*given: object) -> tuple[object, frozenset[str]]:
        tried.append(ended)
        assert given[4] == 12_000 / 6, "plans are compared at most; of fewer nodes more"
        return given[3], frozenset()

    monkeypatch.setattr("cluster_planner.planner.with_spares", with_spares)
    begun, told, said = worse(some_plan()), list[float](), list[str]()
    budget = Budget(90.0, lambda plan: None, lambda: ended == "by the user" and len(told) > 4)
    found = searched_on(
        begun, budget, said.append, trained=(1e9, 1e9), part=told.append, clock=itertools.count().__next__
    )
    assert found.predicted.objective > begun.predicted.objective
    assert tried == ([] if ended == "by the user" else [ended])
    assert bool(said) == (ended == "by the clock"), "the user ends the first run"
    assert all(words.startswith("searching on: the best plan so far is worth ") for words in said)


def test_a_search_that_ends_before_its_time_says_why() -> None:
    steps: list[Step] = []
    found = searched_on(
        some_plan(),
        Budget(600.0, lambda plan: None),
        lambda words: None,
        trained=(1e9, 1e9),
        tell=steps.append,
        clock=itertools.count(step=0.01).__next__,
    )
    (step,) = steps
    assert step.phase == BUDGET_PHASE
    assert step.words.endswith(" of 10 min 00 s: 400 changes in a row gained nothing")
    assert step.objective == pytest.approx(found.predicted.objective, rel=1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_is_a_finite_time(seconds: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        Budget(seconds, lambda plan: None)
    assert caught.value.key == "budget"
