from collections.abc import Callable
from dataclasses import replace

from cluster_planner import Fleet, ModelCosts, Node, Plan, Workload, make_plan
from cluster_planner.advice.plan_warnings import outdated, predicted_again


def planned(make_node: Callable[..., Node], costs: ModelCosts, work: Workload) -> Plan:
    fleet = Fleet((make_node("a"), make_node("b", flops_per_s=2e10)))
    return make_plan(fleet, costs, work, job={}, job_file="job.yaml", min_stages=2)


def test_a_plan_as_it_was_made_predicts_what_it_says(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(make_node, make_model(8), make_workload())
    assert predicted_again(plan) is plan
    assert outdated(plan, plan) is None


def test_an_edited_plan_is_predicted_as_it_stands(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(make_node, make_model(8), make_workload())
    slower = replace(plan.fleet, nodes=tuple(replace(node, flops_per_s=1e9) for node in plan.fleet.nodes))
    edited = replace(plan, fleet=slower)
    again = predicted_again(edited)
    assert again.predicted.samples_per_s < 0.5 * plan.predicted.samples_per_s
    assert (again.predicted.advice, again.predicted.best_possible) == (
        plan.predicted.advice,
        plan.predicted.best_possible,
    )
    said = outdated(edited, again)
    assert said is not None
    assert said.startswith("figures under predicted are not of the plan as it stands (edited since")
    assert "it would make " in said


def test_memory_alone_may_be_old(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> None:
    plan = planned(make_node, make_model(8), make_workload())
    edited = replace(plan, workload=replace(plan.workload, process_bytes=2 * 10**8))
    again = predicted_again(edited)
    assert again.predicted.clusters[0].stages[0].memory_bytes > plan.predicted.clusters[0].stages[0].memory_bytes
    said = outdated(edited, again)
    assert said is not None
    assert "it would make" not in said
