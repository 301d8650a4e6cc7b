"""A run that trains is ended for a better plan: the process that makes it is the test's."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_planner import Plan, load_plan, save_plan
from ravnest.driver import planning_anew
from ravnest.driver.instructions import Instruction
from ravnest.driver.observe.place_events import PlannedAnewEvent
from ravnest.driver.planning_anew import NodesThere, PlanningProcess, PlansAnew
from ravnest.errors import InvalidInput, RunFailed
from ravnest.recovery import CONSIDER_EVERY_S, PlanWanted, Replacements
from ravnest.recovery.placing import START_S
from tests.support.local import setups_of, tiny_job


class Planning:
    """Makes a plan when the test says so."""

    def __init__(self) -> None:
        self.wanted: list[PlanWanted] = []
        self.done = False
        self.answer: Plan | str | None = None
        self.full = False

    def begin(self, plan: Plan, wanted: PlanWanted) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.wanted.append(wanted)

    def made(self) -> Plan | str | None:
        self.done = False
        return self.answer


class Bench:
    """A session of two clusters, whose last node leaves when `gone` is set; c1 is the one that stays."""

    def __init__(self) -> None:
        plan = setups_of(tiny_job(), parts=(2, 1))[1]
        slow = tuple(replace(each, flops_per_s=1e6) for each in plan.fleet.nodes)  # so that computing takes the time
        self.plan = replace(plan, fleet=replace(plan.fleet, nodes=slow))
        self.process, self.events, self.notices, self.orders = Planning(), list[Any](), list[str](), list[str]()
        self.now_s, self.there = 0.0, set(self.plan.fleet.names)
        self.replacements = Replacements(self.plan, start_s=30.0)
        self.anew = PlansAnew(self.process, questioned=False, now=lambda: self.now_s)  # type: ignore[arg-type]
        control: Any = SimpleNamespace(clusters=SimpleNamespace(leaving={}), begin_again=self.begin_again)
        self.record: Any = SimpleNamespace(happened=self.events.append, notice=self.notices.append, refused=False)
        self.considers: Callable[[float, float], list[Instruction]] = self.anew.steer(
            self.plan, self.replacements, control, self.record, self.alive
        )

    def begin_again(self, reason: str) -> list[Any]:
        self.orders.append(reason)
        return ["drain"]

    def alive(self, plan: Plan) -> set[str]:
        if not self.there:
            raise RunFailed("Ray's head is gone")
        return self.there

    def turn(self, after_s: float = CONSIDER_EVERY_S) -> list[Any]:
        self.now_s += after_s
        return self.considers(self.now_s, math.inf)

    def without_c0(self) -> None:
        """A node of c0 leaves, and no other cuts are possible."""
        node = self.plan.cluster("c0").stages[0].node
        self.replacements.node_left(node)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_planned_for_a_run_that_goes_as_planned(bench: Bench) -> None:
    assert [bench.turn() for _ in range(9)] == [[]] * 9
    assert bench.process.wanted == []


def test_where_nodes_have_left_a_plan_is_made_beside_the_run_which_ends_for_it_where_it_pays(bench: Bench) -> None:
    bench.turn()
    bench.without_c0()
    assert bench.turn() == []
    assert bench.turn() == []
    [wanted] = bench.process.wanted
    assert wanted.nodes == bench.there - bench.replacements.left
    rate = 100 * bench.plan.predicted.samples_per_s
    better = SimpleNamespace(predicted=SimpleNamespace(samples_per_s=rate))
    bench.process.answer, bench.process.done = better, True  # type: ignore[assignment]
    turns = [bench.turn() for _ in range(9)]
    [order] = [each for each in turns if each]
    assert order == ["drain"]
    assert bench.anew.next_plan is better  # type: ignore[comparison-overlap]
    [event] = bench.events
    assert event == PlannedAnewEvent(bench.orders[0], START_S, None)
    assert event.reason.endswith(" samples/s, and this one " + event.reason.rsplit(" ", 1)[1])
    assert len(bench.process.wanted) == 1


def test_a_plan_that_cannot_be_made_is_told_once_and_the_run_goes_on(bench: Bench) -> None:
    bench.turn()
    bench.without_c0()
    bench.turn()
    bench.process.answer, bench.process.done = "planning ended with -9", True
    assert [bench.turn() for _ in range(3)] == [[]] * 3
    assert bench.notices == ["no other plan is known for the nodes that are there: planning ended with -9"]
    assert bench.anew.next_plan is None
    bench.process.full = True
    bench.there = bench.there - {bench.plan.cluster("c0").stages[1].node}
    bench.turn()
    assert bench.notices[1:] == ["no other plan can be made: No space left on device"]


def test_a_full_disk_ends_no_run_that_is_planned_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the plan is refused as all files are that users name, by InvalidInput."""

    def full(plan: Plan, path: Path) -> None:
        raise InvalidInput("cannot be written: No space left on device", path=str(path))

    monkeypatch.setattr(planning_anew, "save_plan", full)
    with PlanningProcess() as process:
        bench.anew = PlansAnew(process, questioned=True, now=lambda: bench.now_s)
        control: Any = SimpleNamespace(clusters=SimpleNamespace(leaving={}))
        bench.considers = bench.anew.steer(bench.plan, bench.replacements, control, bench.record, bench.alive)
        assert [bench.turn() for _ in range(3)] == [[]] * 3
        assert not process.busy
    [said] = bench.notices
    assert said.endswith("cannot be written: No space left on device")


def test_a_session_does_not_end_for_another_plan_while_the_disk_refuses_checkpoints(bench: Bench) -> None:
    bench.turn()
    bench.without_c0()
    bench.turn()
    rate = 100 * bench.plan.predicted.samples_per_s
    bench.process.answer = SimpleNamespace(predicted=SimpleNamespace(samples_per_s=rate))  # type: ignore[assignment]
    bench.process.done, bench.record.refused = True, True
    assert [bench.turn() for _ in range(9)] == [[]] * 9
    assert bench.anew.next_plan is None
    bench.record.refused = False
    assert bench.turn() == ["drain"]


def test_which_nodes_are_there_is_asked_when_a_session_begins(bench: Bench) -> None:
    """Who is gone by the first turn is said to be gone."""
    tasks = list[Callable[[], None]]()
    unused: Any = None
    bench.anew.steer(
        bench.plan, bench.replacements, unused, unused, NodesThere(lambda plan: set(plan.fleet.names), tasks.append)
    )
    assert len(tasks) == 1


def test_nobody_waits_for_the_word_which_nodes_are_there(bench: Bench) -> None:
    tasks, raises = list[Callable[[], None]](), list[Exception]()

    def ask(plan: Plan) -> set[str]:
        if raises:
            raise raises.pop()
        return set(plan.fleet.names)

    there = NodesThere(ask, tasks.append)
    for _ in range(3):
        with pytest.raises(RunFailed, match="Ray has not said yet"):
            there(bench.plan)
    [task] = tasks
    task()
    assert there(bench.plan) == set(bench.plan.fleet.names)
    raises.append(ConnectionError("no head"))
    tasks[1]()
    with pytest.raises(RunFailed, match="no head") as failed:
        there(bench.plan)
    assert isinstance(failed.value.__cause__, ConnectionError)
    tasks[2]()
    assert there(bench.plan) == set(bench.plan.fleet.names)
    assert len(tasks) == 4


def test_where_ray_cannot_be_asked_it_is_asked_again(bench: Bench) -> None:
    everybody, bench.there = bench.there, set()
    assert bench.turn() == []
    bench.there = everybody
    assert bench.turn() == []
    assert bench.process.wanted == []


def test_the_process_plans_for_the_nodes_that_it_is_given(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning_anew.os, "nice", lambda by: by)
    monkeypatch.setattr(planning_anew.signal, "alarm", lambda seconds: 0)
    save_plan(bench.plan, tmp_path / "plan.yaml")
    (tmp_path / "nodes.json").write_text(json.dumps([]))
    planning_anew.main(tmp_path)
    assert not (tmp_path / "made.yaml").exists(), "nobody can train the model"
    [alone] = [stage.node for stage in bench.plan.cluster("c1").stages]
    (tmp_path / "nodes.json").write_text(json.dumps([alone]))
    planning_anew.main(tmp_path)
    made = load_plan(tmp_path / "made.yaml")
    assert {stage.node for cluster in made.clusters for stage in cluster.stages} == {alone}


def test_a_process_that_has_nothing_to_do_is_not_there() -> None:
    with PlanningProcess() as process:
        assert not process.done
