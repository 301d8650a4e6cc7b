"""A plan that a real process makes beside a run."""

import time

import psutil
import pytest

from cluster_planner import Plan
from ravnest.driver.planning_anew import MOST_S, PlanningProcess
from ravnest.recovery import PlanWanted
from tests.support.local import setups_of, tiny_job

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    return setups_of(tiny_job(), parts=(2, 1))[1]


@pytest.fixture
def alone(plan: Plan) -> str:
    """The node of the cluster of one stage."""
    return plan.cluster("c1").stages[0].node


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def wanted(plan: Plan, *nodes: str) -> PlanWanted:
    return PlanWanted(plan, frozenset(nodes), {})


def until_done(process: PlanningProcess) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not process.done:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.timeout(300)
def test_plans_are_made_one_after_another_and_nothing_is_left_behind(plan: Plan, alone: str) -> None:
    before = children()
    with PlanningProcess() as process:
        process.begin(plan, wanted(plan, alone))
        until_done(process)
        made = process.made()
        assert not isinstance(made, str), made
        assert made is not None
        assert {stage.node for cluster in made.clusters for stage in cluster.stages} == {alone}
        assert made.fleet.names == plan.fleet.names
        process.begin(plan, wanted(plan))
        until_done(process)
        assert process.made() is None, "nobody is there"
        process.begin(plan, wanted(plan, *plan.fleet.names))
        assert len(children()) == len(before) + 1
    assert len(children()) == len(before), "it has ended with the session"


@pytest.mark.timeout(300)
def test_one_that_is_killed_or_takes_too_long_is_told_of(plan: Plan, alone: str) -> None:
    now_s = 0.0
    before = set(children())
    with PlanningProcess(lambda: now_s) as process:
        process.begin(plan, wanted(plan, alone))
        [started] = set(children()) - before
        started.kill()
        until_done(process)
        assert process.made() == "planning ended with -9"
        process.begin(plan, wanted(plan, alone))
        [started] = set(children()) - before
        started.suspend()
        assert not process.done
        now_s = MOST_S + 1.0
        assert process.done
        assert process.made() == f"no plan was made within {MOST_S:.0f} s"
        assert set(children()) == before
