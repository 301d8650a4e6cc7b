"""What takes the places of lost stages in a simulated run without a start: warm spares, which cost bytes, and ready
processes."""

from dataclasses import replace

import pytest

from cluster_planner import Plan, Spare
from ravnest.simulator import Death, Kill, Scenario, SimulatedRun, simulate
from ravnest.simulator.warm_spares import with_shadows
from tests.unit.ravnest.simulator.test_session import FIRST, HOME, SPARED

START_S = 30.0
AT_ONCE_S = 10.0
"""Less than the start of a process, more than a warm spare takes."""


def warm(plan: Plan, mtbf_s: float | None = None) -> Plan:
    """The plan with its spare as a warm one of the first stage."""
    nodes = tuple(replace(node, mtbf_s=mtbf_s) for node in plan.fleet.nodes)
    spare = Spare("spare", "", ((plan.clusters[0].name, 0),))
    return replace(plan, fleet=replace(plan.fleet, nodes=nodes), spares=(spare,))


def run(plan: Plan, *deaths: Death, seconds: float = 200.0) -> SimulatedRun:
    return simulate(plan, Scenario(deaths=deaths, restart_s=START_S), seconds=seconds)


def took_s(run: SimulatedRun) -> list[float]:
    return [(each.back_s or float("inf")) - each.lost_s for each in run.clusters_lost]


def test_a_warm_spare_takes_a_lost_place_where_a_cold_one_has_to_start_and_be_sent_the_anchor() -> None:
    death, never = Death(FIRST, 50.0, 1.0), {**SPARED.job, "ready_processes": "never"}
    cold, followed = run(replace(SPARED, job=never), death), run(replace(warm(SPARED), job=never), death)
    assert took_s(cold)[0] > START_S
    assert took_s(followed)[0] < AT_ONCE_S
    for each in (cold, followed):
        assert each.clusters_lost[0].nodes[0] == "spare"
        assert each.samples == pytest.approx(each.goodput_per_s * each.end_s)


def test_a_process_that_dies_on_a_node_that_lives_goes_to_the_warm_spare_too() -> None:
    [lost] = run(warm(SPARED), Death(FIRST, 50.0, 1.0, back_after_s=1.0)).clusters_lost
    assert lost.nodes[0] == "spare"


def test_followers_are_sent_every_average() -> None:
    free, followed = run(SPARED), run(warm(SPARED))
    assert followed.rounds > 2
    assert followed.averaging_bytes > free.averaging_bytes


def test_a_warm_spare_that_was_lost_before_takes_no_place_as_a_warm_one() -> None:
    deaths = Death("spare", 45.0, 1.0, back_after_s=1.0), Death(FIRST, 50.0, 1.0)
    assert took_s(run(warm(SPARED), *deaths))[0] > START_S


def test_a_node_that_is_free_again_shadows_where_losses_are_known_to_come() -> None:
    plan = warm(SPARED, mtbf_s=600.0)
    needed = HOME.predicted.clusters[0].stages[0].memory_bytes
    small = (replace(node, memory_bytes=needed) if node.name == FIRST else node for node in plan.fleet.nodes)
    plan = replace(plan, fleet=replace(plan.fleet, nodes=tuple(small)))  # it is no cluster of its own then
    deaths = Death(FIRST, 50.0, 1.0, back_after_s=1.0), Death("spare", 150.0, 1.0, back_after_s=1.0)
    first, second = run(plan, *deaths, seconds=250.0).clusters_lost
    assert first.nodes[0] == "spare"
    assert second.nodes[0] == FIRST
    assert second.back_s is not None
    assert second.back_s - second.lost_s < AT_ONCE_S


def killed(plan: Plan, *at_s: float) -> list[float]:
    kills = tuple(Kill(FIRST, each) for each in at_s)
    return took_s(simulate(plan, Scenario(kills=kills, restart_s=START_S), seconds=300.0))


def test_a_ready_process_takes_the_place_of_one_that_ended_but_not_that_of_a_node_that_is_gone() -> None:
    node = next(each for each in SPARED.fleet.nodes if each.name == FIRST)
    assert node.memory_bytes > HOME.predicted.clusters[0].stages[0].memory_bytes + HOME.workload.process_bytes
    assert killed(SPARED, 60.0)[0] < AT_ONCE_S
    assert killed(replace(SPARED, job={**SPARED.job, "ready_processes": "never"}), 60.0)[0] > START_S
    assert took_s(run(SPARED, Death(FIRST, 60.0, 1.0, back_after_s=1.0)))[0] > START_S


def test_a_cold_spare_on_which_a_ready_process_waits_needs_no_start() -> None:
    early, later = run(SPARED, Death(FIRST, START_S - 10.0, 1.0)), run(SPARED, Death(FIRST, START_S + 10.0, 1.0))
    assert [each.clusters_lost[0].nodes[0] for each in (early, later)] == ["spare", "spare"]
    assert took_s(early)[0] > START_S, "it was still being made"
    assert took_s(later)[0] < AT_ONCE_S


def test_a_ready_process_is_there_once_its_stage_has_trained_for_a_while() -> None:
    early, at_once, again = killed(SPARED, 20.0, 150.0, 160.0)
    assert early > START_S
    assert at_once < AT_ONCE_S
    assert again > START_S, "the next one had not started yet"


def test_a_ready_process_needs_memory() -> None:
    needed = HOME.predicted.clusters[0].stages[0].memory_bytes
    small = (replace(node, memory_bytes=needed) if node.name == FIRST else node for node in SPARED.fleet.nodes)
    assert killed(replace(SPARED, fleet=replace(SPARED.fleet, nodes=tuple(small))), 60.0)[0] > START_S


def test_shadows_of_a_plan_are_those_that_follow() -> None:
    [cluster, other] = HOME.clusters
    made = with_shadows(HOME, {f"{cluster.name}.s1": "a", f"{cluster.name}.s0": "a", f"{other.name}.s0": "b"})
    assert [(each.node, each.shadows) for each in made.spares] == [
        ("a", ((cluster.name, 0), (cluster.name, 1))),
        ("b", ((other.name, 0),)),
    ]
