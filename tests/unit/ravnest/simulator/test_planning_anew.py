"""The plan that a simulated run is stopped for is made as it is wanted."""

from collections.abc import Collection
from dataclasses import replace

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.recovery import BetterPlan, PlanningAnew, Situation
from ravnest.simulator.planning_anew import better_plan
from tests.unit.ravnest.simulator.test_fleet import home_plan

HOME = home_plan()
NODES, NAMES = frozenset(HOME.fleet.names), {cluster.name for cluster in HOME.clusters}
FAST = replace(HOME, predicted=replace(HOME.predicted, samples_per_s=100 * HOME.predicted.samples_per_s))


def at(now_s: float, nodes: frozenset[str] = NODES) -> Situation:
    return Situation(HOME, nodes, NAMES, now_s, 1e6, {})


def test_a_set_of_nodes_is_planned_once_and_the_plan_is_taken_where_it_pays() -> None:
    asked: list[Collection[str]] = []

    def planner(plan: Plan, nodes: Collection[str]) -> Plan:
        asked.append(nodes)
        return FAST

    planning, fewer = PlanningAnew(15.0, questioned=True), NODES - {HOME.fleet.names[0]}
    found = [better_plan(planning, planner, at(*when)) for when in ((0.0, NODES), (1.0, NODES), (2.0, fewer), (1e4,))]
    assert asked == [NODES, fewer, NODES]
    assert found[:3] == [None] * 3, "nobody knows how long the nodes stay"
    assert isinstance(found[3], BetterPlan)
    assert found[3].plan is FAST


def test_where_no_plan_is_possible_the_run_goes_on() -> None:
    def planner(plan: Plan, nodes: Collection[str]) -> Plan:
        raise NoFeasiblePlan("too few", key="nodes")

    planning = PlanningAnew(15.0, questioned=True)
    assert [better_plan(planning, planner, at(now_s)) for now_s in (0.0, 1e4)] == [None, None]
