import io
import json
from dataclasses import replace

from rich.console import Console

from cluster_planner import (
    ConstraintCosts,
    Constraints,
    Fleet,
    ModelCosts,
    Node,
    Plan,
    Step,
    Suggestion,
    Unit,
    Workload,
    make_plan,
    most_helpful_changes,
)
from ravnest.cli.views.plan_explained import IN_A_ROW, explanation, of_constraints, show_explanation, told


def planned(steps: list[Step]) -> Plan:
    nodes = tuple(
        Node(name=name, flops_per_s=speed, memory_bytes=10**9, up_bytes_per_s=1e6, down_bytes_per_s=1e7)
        for name, speed in (("desk", 1e10), ("laptop", 3e9))
    )
    unit = {"flops": 1e8, "parameter_bytes": 10**5, "saved_bytes": 10**4, "boundary_bytes": 10, "name": "u"}
    costs = ModelCosts(tuple(Unit(**unit, boundary_gradient_bytes=10) for _ in range(3)), "x")  # type: ignore[arg-type]
    work = Workload(
        micro_batch=4,
        update_every=100,
        max_staleness=1,
        average_every=1024,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=10**8,
    )
    return make_plan(Fleet(nodes), costs, work, job={}, job_file="job.yaml", min_stages=2, progress=steps.append)


def test_it_tells_what_was_gained_and_what_would_help() -> None:
    steps: list[Step] = []
    plan = planned(steps)
    text = io.StringIO()
    show_explanation(plan, steps, Console(file=text, width=150))
    assert "k-means" in text.getvalue()
    assert "doubling laptop's speed" in text.getvalue()
    assert most_helpful_changes(plan)[0].words == "doubling laptop's speed"
    document = json.loads(json.dumps(explanation(plan, steps)))
    assert document["would_help"][0]["cluster"] == "c0"
    assert document["would_help"][0]["worth"] > plan.predicted.objective
    assert "Gains are of what the plan is worth" in text.getvalue()
    for words in ("1 clusters", "1 groups", "1 nodes", "1 units"):
        assert f" {words}" not in f" {text.getvalue()}"
    assert len(document["search"]) == len(steps)


def test_many_steps_that_gained_nothing_are_told_in_one_line() -> None:
    idle = [Step("all partitions", str(i), 3.0, 0.0) for i in range(IN_A_ROW + 3)]
    rows = told([Step("k-means", "two", 3.0, 3.0), *idle])
    assert rows[0] == ("k-means", "two", 3.0)
    assert len(rows) == 1 + IN_A_ROW + 1
    assert rows[-1] == ("all partitions", "3 more, none of them better", 0.0)


def test_a_constraint_that_costs_more_stands_above_other_changes() -> None:
    plan = planned([])
    dropped = Suggestion("without constraints.pin[0] (desk in stage 0)", 9e9, 9e9, None)
    relaxed = ConstraintCosts((dropped,), "Not all was tried.")
    assert most_helpful_changes(plan, without_constraints=relaxed.found)[0] == dropped
    text = io.StringIO()
    show_explanation(plan, [], Console(file=text, width=150), relaxed=relaxed)
    assert "without constraints.pin[0] (desk in stage 0)" in text.getvalue()
    assert "Not all was tried." in text.getvalue()
    document = json.loads(json.dumps(explanation(plan, [], relaxed=relaxed)))
    assert document["would_help"][0]["change"] == dropped.words
    assert document["untried"] == "Not all was tried."


def test_a_plan_far_from_the_bound_says_where_constraints_are_tried() -> None:
    plan = planned([])
    far = replace(plan.predicted, best_possible=3 * plan.predicted.objective)
    near = replace(plan.predicted, best_possible=1.5 * plan.predicted.objective)
    fleet = replace(plan.fleet, constraints=Constraints(forbid=(("desk", "laptop"),)))
    assert of_constraints(replace(plan, predicted=far)) is None
    assert of_constraints(replace(plan, predicted=near, fleet=fleet)) is None
    assert "ravnest plan --explain" in str(of_constraints(replace(plan, predicted=far, fleet=fleet)))
    more = tuple(replace(fleet.nodes[0], name=f"n{i}") for i in range(30))
    large = replace(fleet, nodes=(*fleet.nodes, *more))
    assert "leave one out" in str(of_constraints(replace(plan, predicted=far, fleet=large)))
