"""What takes the place of a stage whose process is killed: a warm spare, and a ready process on the same machine. And
another plan, with a spare, in the place of the only cluster whose node is to leave."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cluster_planner import Link, Spare, load_plan, save_plan
from ravnest.driver.observe.metrics_file import read_metrics
from tests.support.commands import DEADLINE_S, LONG, Running, gone, planned, ravnest, words_of

IDLE_S = 2.0
"""A process that does nothing for so long has loaded what it loads."""

pytestmark = pytest.mark.timeout(600)


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def with_a_spare(path: Path, *shadows: tuple[str, int]) -> None:
    """Add a machine like the first one to the plan, which shadows these stages."""
    plan = load_plan(path)
    first = plan.fleet.nodes[0]
    links = tuple(Link(name, "spare", 0.001, 5e7) for name in plan.fleet.names)
    fleet = replace(
        plan.fleet, nodes=(*plan.fleet.nodes, replace(first, name="spare")), links=(*plan.fleet.links, *links)
    )
    save_plan(replace(plan, fleet=fleet, spares=(Spare("spare", "it is kept for losses", shadows),)), path)


class Watched(Running):
    """A run, with what it has written down, and its processes by the names of their stages, the oldest first."""

    def told(self, kind: str) -> list[dict[str, object]]:
        return [one for one in read_metrics(self.folder / "r/metrics.jsonl") if one["kind"] == kind]

    def of(self, stage: str) -> list[psutil.Process]:
        return sorted(
            (each for each in self.stages() if words_of(each)[3:4] == [stage]), key=lambda each: each.create_time()
        )

    def of_stage(self, stage: str) -> int:
        """The id of the process that is the stage now, as the driver has written it down."""
        return int(json.loads((self.folder / "r/driver.json").read_text())["stages"][stage]["pid"])

    def trains_again(self, cluster: str, before: int) -> dict[str, object]:
        """Wait until a cluster trains again, which it has done so many times before, and makes an update."""

        def trains() -> bool:
            told = read_metrics(self.folder / "r/metrics.jsonl")
            places = [i for i, one in enumerate(told) if one["kind"] == "replaced" and one["cluster"] == cluster]
            if len(places) <= before:
                return False
            return any(one["kind"] == "update" and one["cluster"] == cluster for one in told[places[before] :])

        until(f"{cluster} trains again", trains)
        return [one for one in self.told("replaced") if one["cluster"] == cluster][before]


def test_a_warm_spare_takes_the_place_of_a_killed_stage_and_a_ready_process_that_of_another(tmp_path: Path) -> None:
    folder = planned(tmp_path / "run", ready_processes="always", **LONG)
    with_a_spare(folder / "plan.yaml", ("c1", 1))
    running = Watched(folder)
    until("the spare holds the anchor", lambda: (folder / "r/metrics.jsonl").exists() and bool(running.told("warm")))
    running.until_update(5)
    (shadow,) = running.of("~c1.s1")
    running.of("c1.s1")[0].kill()

    replaced = running.trains_again("c1", 0)
    assert replaced["nodes"]["c1.s1"] == "spare"  # type: ignore[index]
    assert shadow.is_running(), "no process was started in the place of the lost one"
    assert running.of_stage("c1.s1") == shadow.pid
    lost = running.told("lost")
    assert [one["cluster"] for one in lost] == ["c1"]

    until("a ready process is made", lambda: len(running.of("c0.s0")) == 2)
    stage, ready = running.of("c0.s0")
    assert running.of_stage("c0.s0") == stage.pid

    def idle() -> bool:
        before = sum(ready.cpu_times()[:2])
        time.sleep(IDLE_S)
        return before > 0 and sum(ready.cpu_times()[:2]) == before

    until("it waits for its place", idle)
    stage.kill()
    replaced = running.trains_again("c0", 0)
    assert replaced["nodes"]["c0.s0"] == running.told("lost")[1]["node"]  # type: ignore[index]
    assert running.of_stage("c0.s0") == ready.pid
    until("another one is made", lambda: len(running.of("c0.s0")) == 2)

    family = running.family()
    running.process.terminate()
    assert running.end() == 130, running.output
    assert "Traceback" not in running.output
    assert gone(family)


def test_the_only_cluster_goes_on_by_another_plan_where_its_node_is_to_leave(tmp_path: Path) -> None:
    folder = planned(tmp_path / "run", nodes=("a0", "b0"), **LONG)
    with_a_spare(folder / "plan.yaml")
    running = Watched(folder)
    running.until_update(20)
    asked = ravnest(folder, "leave", "r", "a0")
    assert asked.returncode == 0, asked.stderr
    running.until("but no other cluster would stay that trains")
    running.until("another plan makes")
    running.until("begins again from")
    running.until("checkpoint of round")
    [planned_anew], [restarted] = running.told("planned_anew"), running.told("restarted")
    assert str(planned_anew["reason"]).startswith("without 'a0': another plan makes ")
    assert restarted["reason"] == planned_anew["reason"]
    assert restarted["planned_anew"] is True
    assert running.told("lost") == []
    after = load_plan(folder / "r/plan.yaml")
    assert {stage.node for cluster in after.clusters for stage in cluster.stages} == {"b0", "spare"}
    told = [(one["cluster"], one["stage"], one["update"]) for one in running.told("update")]
    assert len(told) == len(set(told)), "nothing that was made is made again"
    family = running.family()
    running.process.terminate()
    assert running.end() == 130, running.output
    assert "Traceback" not in running.output
    assert gone(family)
