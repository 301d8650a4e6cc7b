"""Nodes that become slow while a simulated run goes on: they are found out, and the plan is changed."""

from dataclasses import replace

import pytest

from cluster_planner import Fleet, Plan, make_plan
from ravnest.recovery.slowness import STAYS_S
from ravnest.simulator import Scenario, SimulatedRun, Slow, simulate
from tests.unit.ravnest.simulator.test_fleet import home_plan

HOME = home_plan()
SLOWS_S, SECONDS = 60.0, 900.0


def only_pipeline() -> Plan:
    """One cluster of three equal nodes, of which two hold the model, and one does not."""
    nodes = (replace(each, flops_per_s=40e9, memory_bytes=105 * 10**6) for each in HOME.fleet.nodes[:3])
    fleet = Fleet(tuple(nodes), (), HOME.fleet.regions[1:2])
    return make_plan(fleet, HOME.costs, HOME.workload, job={"evaluate_every": 1000}, job_file="job.yaml")


ALONE = only_pipeline()
SLOW = ALONE.clusters[0].stages[0].node


def ran(plan: Plan, times: float, *, plans_anew: bool = True, for_s: float = 1e9, node: str = SLOW) -> SimulatedRun:
    scenario = Scenario(slow=(Slow(node, SLOWS_S, times, for_s),), restart_s=5.0, plans_anew=plans_anew)
    return simulate(plan, scenario, seconds=SECONDS)


def test_the_only_cluster_goes_on_by_a_plan_that_knows_how_slow_its_node_is() -> None:
    left, result = ran(ALONE, 6.0, plans_anew=False), ran(ALONE, 6.0)
    assert left.begun_anew == ()
    [again] = result.begun_anew
    assert again.on_purpose
    assert again.samples == 0, "what was made is saved first"
    assert again.lost_s > SLOWS_S + STAYS_S, "a node is slow when it has stayed so"
    assert result.samples > 1.1 * left.samples
    assert left.samples < 0.6 * simulate(ALONE, seconds=SECONDS).samples, "all wait for it"


def test_one_of_several_clusters_leaves_and_comes_back_without_the_node_and_the_others_train_on() -> None:
    node = HOME.clusters[0].stages[-1].node
    result = ran(HOME, 20.0, node=node)
    assert result.clusters_lost
    moved = result.clusters_lost[0]
    assert moved.with_notice
    assert moved.samples == 0
    assert moved.back_s is not None
    assert node not in moved.nodes
    assert moved.lost_s > SLOWS_S + STAYS_S


@pytest.mark.parametrize(("times", "for_s"), [(1.5, 1e9), (10.0, STAYS_S / 2)])
def test_a_node_that_is_a_little_slow_or_for_a_short_time_changes_nothing(times: float, for_s: float) -> None:
    result = ran(ALONE, times, for_s=for_s)
    assert result.begun_anew == ()
    assert result.clusters_lost == ()
