from collections.abc import Callable
from dataclasses import replace

import pytest

from cluster_planner import MOST_NODES_TO_PLAN_ANEW, Fleet, ModelCosts, Node, Plan, Workload, make_plan, planner
from cluster_planner.inputs.constraints import Constraints, Pin
from cluster_planner.planner import MOST, ConstraintCosts, has_constraints

Planned = Callable[..., Plan]


def without_constraints(plan: Plan, *, tell: Callable[[str], None] | None = None) -> ConstraintCosts:
    return planner.without_constraints(plan, tell=tell)


@pytest.fixture
def planned(
    make_node: Callable[..., Node], make_model: Callable[..., ModelCosts], make_workload: Callable[..., Workload]
) -> Planned:
    def made(nodes: int = 4, **constraints: object) -> Plan:
        fleet = Fleet(
            tuple(
                make_node(f"n{i}", flops_per_s=1e11 if i < 2 else 1e9, region="x" if i < 2 else "y")
                for i in range(nodes)
            ),
            constraints=Constraints(**constraints),  # type: ignore[arg-type]
        )
        work = make_workload(average_every=10**6)
        return make_plan(fleet, make_model(8), work, job={}, job_file="job.yaml", min_stages=2)

    return made


def test_a_pin_that_costs_much_is_named_with_what_the_fleet_makes_without_it(planned: Planned) -> None:
    plan = planned(pins=(Pin("n3", stage=0),))
    (only,) = without_constraints(plan).found
    free = planned()
    assert only.words == "without constraints.pin[0] (n3 in stage 0)"
    assert (only.samples_per_s, only.worth) == (free.predicted.samples_per_s, free.predicted.objective)
    assert only.worth > 1.1 * plan.predicted.objective
    assert only.cluster is None


def test_constraints_that_cost_only_together_are_named_together(planned: Planned) -> None:
    plan = planned(forbid=(("n0", "n1"),), apart=(("x", "y"),), groups=(("other", ("n0",)),))
    asked: list[str] = []
    relaxed = without_constraints(planned(pins=(Pin("n2", stage=0), Pin("n3", stage="last"))), tell=asked.append)
    assert asked == [
        "planning without any of the constraints (1 of 3 at most)",
        "planning without constraints.pin[0] (n2 in stage 0) (2 of 3 at most)",
        "planning without constraints.pin[1] (n3 in the last stage) (3 of 3 at most)",
    ]
    assert relaxed.found[0].words == "without any of the constraints"
    assert relaxed.untried is None
    assert has_constraints(plan.fleet.constraints)


def test_what_costs_nothing_is_not_named(planned: Planned) -> None:
    assert without_constraints(planned(forbid=(("n2", "n3"),))).found == ()
    asked: list[str] = []
    assert without_constraints(planned(), tell=asked.append).found == ()
    assert asked == []
    assert not has_constraints(Constraints(groups=(("a", ("n0",)),)))


def test_each_kind_is_named_as_nodes_yaml_has_it(planned: Planned) -> None:
    asked: list[str] = []
    plan = planned(
        forbid=(("n0", "n3"),), apart=(("a", "b"),), groups=(("a", ("n1",)), ("b", ("n2",))), min_clusters=2,
        pins=(Pin("n0", cluster="A", stage=0),),
    )  # fmt: skip
    without_constraints(plan, tell=asked.append)
    assert [words.removeprefix("planning ") for words in asked[1:]] == [
        "without constraints.pin[0] (n0 in stage 0 of cluster A) (2 of 5 at most)",
        "without constraints.forbid[0] (n0 and n3 apart) (3 of 5 at most)",
        "without constraints.apart[0] (a and b apart) (4 of 5 at most)",
        "without constraints.min_clusters (2) (5 of 5 at most)",
    ]


def test_what_is_not_tried_is_said(planned: Planned) -> None:
    pairs = tuple((f"n{i}", f"n{j}") for i in range(1, 7) for j in range(i + 1, 7))
    asked: list[str] = []
    relaxed = without_constraints(planned(7, forbid=pairs), tell=asked.append)
    assert relaxed == ConstraintCosts(), "they cost nothing together"
    assert asked == ["planning without any of the constraints (1 of 13 at most)"]
    asked.clear()
    relaxed = without_constraints(planned(7, forbid=pairs, pins=(Pin("n3", stage=0),)), tell=asked.append)
    assert len(asked) == MOST + 1
    assert relaxed.untried == f"Of 16 constraints the first {MOST} are tried by themselves, the others only together."
    plan = planned(forbid=(("n2", "n3"),))
    nodes = tuple(replace(plan.fleet.nodes[0], name=f"n{i}") for i in range(MOST_NODES_TO_PLAN_ANEW + 1))
    large = replace(plan, fleet=replace(plan.fleet, nodes=nodes))
    asked.clear()
    relaxed = without_constraints(large, tell=asked.append)
    assert relaxed.found == ()
    assert asked == []
    assert f"more than {MOST_NODES_TO_PLAN_ANEW} nodes" in str(relaxed.untried)
