"""Where the best plan of many nodes runs few of them, these are searched like a small fleet."""

from collections.abc import Callable

import numpy as np
import pytest

from cluster_planner.inputs.constraints import UNCONSTRAINED, Constraints, Pin
from cluster_planner.inputs.fleet import Fleet, Node
from cluster_planner.inputs.model_costs import ModelCosts, Workload
from cluster_planner.planner import make_plan
from cluster_planner.search.fleet_parts import MOST_IN_PARTS
from cluster_planner.search.large_fleets import LARGEST
from cluster_planner.search.steps import Step

PINNED = Constraints(pins=(Pin("n0", stage=0),), forbid=(("n0", "n1"),))


@pytest.mark.timeout(900)  # some minutes on a slow and busy machine
@pytest.mark.parametrize(
    "constraints", [UNCONSTRAINED, Constraints(pins=(Pin("n0", stage=0),), forbid=(("n0", "n1"),))]
)
def test_a_few_of_many_nodes_are_found_that_are_worth_more_than_what_blocks_give(
    constraints: Constraints,
    make_node: Callable[..., Node],
    make_model: Callable[..., ModelCosts],
    make_workload: Callable[..., Workload],
) -> None:
    random, steps = np.random.default_rng(0), list[Step]()
    nodes = tuple(
        make_node(
            f"n{i}",
            flops_per_s=float(random.uniform(2e10, 1e11)),
            memory_bytes=10**10,
            up_bytes_per_s=float(random.uniform(1e6, 1e7)),
            down_bytes_per_s=float(random.uniform(2e6, 3e7)),
        )
        for i in range(LARGEST + 1)
    )
    costs, work = make_model(4, flops=2e7, parameter_bytes=700_000), make_workload(average_every=512)
    fleet = Fleet(nodes, constraints=constraints)
    plan = make_plan(fleet, costs, work, job={}, job_file="job.yaml", progress=steps.append)
    [core] = [step for step in steps if step.phase == "core"]
    assert core.words.startswith(f"of {MOST_IN_PARTS} nodes: ")
    assert core.gained > 0.05 * (core.objective - core.gained)
    assert plan.predicted.objective >= core.objective
