import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_planner import Node, Plan
from ravnest.recovery.replanning import WORTHWHILE, BetterPlan, PlanningAnew, PlanWanted, Replanning, Situation, lasts_s
from tests.support.local import setups_of, tiny_job

FOR_EVER = float("inf")


def test_it_pays_once_as_much_was_forgone_as_the_stop_costs() -> None:
    replanning = Replanning(pause_s=20.0)
    paid = [at_s for at_s in range(100) if replanning.pays(5.0, 10.0, float(at_s), FOR_EVER)]
    assert paid[0] == 40  # 5 samples/s are forgone, and the stop costs 200


def test_what_is_little_better_is_left_alone_and_what_was_forgone_is_forgotten_when_it_is_made_up_for() -> None:
    replanning = Replanning(pause_s=20.0)
    assert not any(replanning.pays(10.0, 10.0 * WORTHWHILE, 100.0 * turn, FOR_EVER) for turn in range(9))
    assert not replanning.pays(5.0, 10.0, 1000.0, FOR_EVER)
    assert not replanning.pays(5.0, 10.0, 1030.0, FOR_EVER)
    assert not replanning.pays(10.0, 10.0, 1035.0, FOR_EVER)
    assert not replanning.pays(5.0, 10.0, 1045.0, FOR_EVER)


def test_a_run_that_ends_soon_is_left_alone() -> None:
    replanning = Replanning(pause_s=20.0)
    assert not any(replanning.pays(5.0, 10.0, float(at_s), 45.0 - at_s) for at_s in range(45))


def test_where_it_is_known_how_long_nodes_stay_it_pays_at_once_or_not() -> None:
    node = Node(name="a", flops_per_s=1.0, memory_bytes=1, up_bytes_per_s=1.0, down_bytes_per_s=1.0, mtbf_s=100.0)
    assert lasts_s([node, replace(node, mtbf_s=300.0)]) == 75.0
    assert lasts_s([node, replace(node, mtbf_s=None)]) is None
    replanning = Replanning(pause_s=20.0)
    assert not replanning.pays(5.0, 10.0, 0.0, FOR_EVER, lasts_s=39.0)
    assert replanning.pays(5.0, 10.0, 0.0, FOR_EVER, lasts_s=41.0)
    assert not replanning.pays(5.0, 10.0, 0.0, 39.0, lasts_s=41.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 20.0)), min_size=1, max_size=60),
    st.floats(1.0, 50.0),
)
def test_no_more_than_the_costs_of_one_stop_and_one_step_are_forgone(
    rates: list[tuple[float, float]], pause_s: float
) -> None:
    replanning, forgone = Replanning(pause_s), 0.0
    for at_s, (making, more) in enumerate(rates):
        best = making + more
        if replanning.pays(making, best, float(at_s), FOR_EVER):
            assert forgone >= best * pause_s * (1 - 1e-9)
            return
        if best > WORTHWHILE * making:
            assert forgone <= best * pause_s * (1 + 1e-9)
        forgone = forgone + more if best > WORTHWHILE * making else 0.0


GONE, OTHER = "n00", "n01"
NODES, BOTH = frozenset({GONE, OTHER, "n10"}), frozenset({"c0", "c1"})
PAUSE_S = 15.0


@cache  # a model is captured for it, which takes seconds: not when tests are collected
def plan() -> Plan:
    """Its first cluster has the nodes GONE and OTHER. Computing is what takes the time."""
    some = setups_of(tiny_job(), parts=(2, 1))[1]
    assert frozenset(some.fleet.names) == NODES
    assert [stage.node for stage in some.cluster("c0").stages] == [GONE, OTHER]
    return replace(
        some, fleet=replace(some.fleet, nodes=tuple(replace(each, flops_per_s=1e6) for each in some.fleet.nodes))
    )


def made(samples_per_s: float) -> Plan:
    return replace(plan(), predicted=replace(plan().predicted, samples_per_s=samples_per_s))


def at(now_s: float = 0.0, **changes: object) -> Situation:
    """All nodes are there and train, and the run has no known end."""
    return replace(Situation(plan(), NODES, BOTH, now_s, math.inf, {}), **changes)  # type: ignore[arg-type]


def planned(planning: PlanningAnew, situation: Situation, best: Plan | None) -> PlanWanted:
    """What is wanted in this situation, and is told at once to be `best`."""
    wanted = planning.consider(situation)
    assert isinstance(wanted, PlanWanted)
    planning.found(wanted, best)
    return wanted


def test_a_users_plan_is_not_questioned_while_its_clusters_train_and_nobody_comes() -> None:
    planning = PlanningAnew(PAUSE_S)
    assert planning.consider(at()) is None
    assert planning.consider(at(1e6, nodes=NODES - {GONE})) is None, "that may be a spare which its user left out"
    assert isinstance(planning.consider(at(1e6, making={"c1"})), PlanWanted)
    assert isinstance(planning.consider(at(1e6, nodes=NODES | {"new"})), PlanWanted)
    assert isinstance(PlanningAnew(PAUSE_S, questioned=True).consider(at()), PlanWanted), "the run made it"


def test_it_is_planned_once_for_the_nodes_that_are_there_and_told_with_its_reason_and_gain() -> None:
    planning, best = PlanningAnew(PAUSE_S), made(1e6)
    planning.consider(at())
    fewer = NODES - {GONE}
    wanted = planned(planning, at(0.0, nodes=fewer, making={"c1"}), best)
    assert wanted.nodes == fewer
    assert planning.consider(at(1.0, nodes=fewer, making={"c1"}, rest_s=1e6)) is None
    found = planning.consider(at(1e3, nodes=fewer, making={"c1"}, rest_s=1e6))
    assert isinstance(found, BetterPlan)
    assert found.plan is best
    assert found.pause_s == PAUSE_S
    assert found.reason.startswith(f"without {GONE!r}: another plan makes 1e+06 samples/s, and this one ")
    assert 0.9 * 1e12 < found.gained < 1e6 * (1e6 - PAUSE_S)
    assert isinstance(planning.consider(at(1e3, making={"c1"})), PlanWanted), "it is back"


def test_nothing_is_done_while_it_is_not_known_what_becomes_of_a_cluster() -> None:
    planning = PlanningAnew(PAUSE_S, questioned=True)
    planned(planning, at(), made(1e6))
    assert planning.consider(at(1e4, making=None)) is None


def test_a_node_that_stays_slow_is_planned_with_the_speed_that_it_has() -> None:
    planning, slow = PlanningAnew(PAUSE_S), {GONE: 4.0}
    planning.consider(at())
    wanted = planned(planning, at(1.0, slow=slow), made(1e6))
    assert wanted.plan.fleet.node(GONE).flops_per_s == pytest.approx(plan().fleet.node(GONE).flops_per_s / 4)
    assert wanted.plan.fleet.node(OTHER) == plan().fleet.node(OTHER)
    planning.consider(at(2.0, slow=slow))
    found = planning.consider(at(1e4, slow=slow))
    assert isinstance(found, BetterPlan)
    assert found.reason.startswith(f"{GONE!r} takes 4.0 times as long as planned: another plan makes")
    assert found.gained == math.inf


def test_where_no_cluster_stays_it_is_not_waited_until_as_much_is_forgone() -> None:
    planning, leaving = PlanningAnew(PAUSE_S), {"nodes": NODES - {GONE}, "making": set[str]()}
    planning.consider(at())
    planned(planning, at(1.0, **leaving), made(0.01))
    assert isinstance(planning.consider(at(1.0, **leaving)), BetterPlan)
    assert planning.consider(at(1.0, **leaving, rest_s=PAUSE_S)) is None, "the run ends before it would train again"
    planned(planning, at(1.0, nodes=frozenset({OTHER}), making=set()), None)
    assert planning.consider(at(1.0, nodes=frozenset({OTHER}), making=set())) is None, "they cannot hold the model"
