"""Which of Ray's nodes are those of a plan: desk and laptop are one cluster, tower and tablet another."""

from pathlib import Path

import pytest

from cluster_planner import Plan
from ravnest.driver.ray.planned_nodes import nodes_alive, nodes_of_plan, ray_node
from ravnest.errors import InvalidInput
from tests.unit.ravnest.driver.ray.test_stage_actors import ray_node as listed_node

LISTED = [listed_node(name, alive=name != "tower") for name in ("desk", "laptop", "tower", "stranger")]


def test_the_nodes_of_a_plan_are_those_that_ray_lists_and_that_live(plan: Plan) -> None:
    assert nodes_of_plan(plan, LISTED) == {"desk", "laptop"}


def test_on_one_machine_all_nodes_are_there(plan: Plan) -> None:
    assert nodes_of_plan(plan, None) == set(plan.fleet.names)
    assert nodes_alive(plan, None, Path("ray.log")) == set(plan.fleet.names)


def test_a_planned_node_that_ray_does_not_have_is_named(plan: Plan) -> None:
    assert ray_node(plan, "laptop", LISTED) is LISTED[1]
    with pytest.raises(
        InvalidInput, match=r"no live Ray node is 'tablet'.*--resources '\{\"ravnest-tablet\": 1\}'"
    ) as caught:
        ray_node(plan, "tablet", LISTED)
    assert caught.value.key == "nodes.tablet.address"
