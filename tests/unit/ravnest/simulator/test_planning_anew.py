"""When a simulated run is stopped for another plan."""

from collections.abc import Collection
from dataclasses import replace

from cluster_planner import NoFeasiblePlan, Plan
from ravnest.simulator.planning_anew import PlanningAnew
from tests.unit.ravnest.simulator.test_fleet import home_plan

HOME = home_plan()
NODES, NAMES = frozenset(HOME.fleet.names), {cluster.name for cluster in HOME.clusters}
FAST = replace(HOME, predicted=replace(HOME.predicted, samples_per_s=100 * HOME.predicted.samples_per_s))


def considered(found: Plan | None, making: Collection[str] | None, at_s: tuple[float, ...] = (0.0, 1e4)) -> Plan | None:
    """What is better at the last of these moments, where the planner has found a plan or none."""

    def planner(plan: Plan, nodes: Collection[str]) -> Plan:
        if found is None:
            raise NoFeasiblePlan("too few", key="nodes")
        return found

    planning = PlanningAnew(planner, 15.0)
    return [planning.better(HOME, NODES, making, now_s, 1e6) for now_s in at_s][-1]


def test_a_run_is_stopped_for_a_plan_that_makes_up_for_the_pause() -> None:
    assert considered(FAST, NAMES) is FAST
    assert considered(HOME, NAMES) is None
    assert considered(FAST, NAMES, at_s=(0.0,)) is None, "nobody knows how long the nodes stay"


def test_it_is_not_where_no_plan_is_possible_or_it_is_not_known_what_becomes_of_a_cluster() -> None:
    assert considered(None, NAMES) is None
    assert considered(FAST, None) is None


def test_a_set_of_nodes_is_planned_once() -> None:
    asked: list[Collection[str]] = []

    def planner(plan: Plan, nodes: Collection[str]) -> Plan:
        asked.append(nodes)
        return HOME

    planning = PlanningAnew(planner, 15.0)
    for nodes in (NODES, NODES, NODES - {HOME.fleet.names[0]}):
        planning.better(HOME, nodes, NAMES, 0.0, 1e6)
    assert asked == [NODES, NODES - {HOME.fleet.names[0]}]
