"""What a run goes on from that begins again. Its tries and waits are in test_training_run.py, with a run around it."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_planner import Plan, cluster_at, with_cluster
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import beginning_again
from ravnest.driver.beginning_again import begun_again, latest_checkpoint
from ravnest.driver.observe import report
from ravnest.errors import RunFailed
from ravnest.recovery import NodesLeft, Restarts
from ravnest.recovery.restarting import MOST_IN_A_ROW
from tests.support.local import tiny_job


class Watched:
    """Remembers the events."""

    trained_s = 7.0

    def __init__(self) -> None:
        self.events: list[report.RunEvent] = []

    def on(self, event: report.RunEvent) -> None:
        self.events.append(event)


def prepared(folder: Path, plan: Plan) -> Any:
    return SimpleNamespace(folder=RunFolder(folder), plan=plan, job=tiny_job())


def test_a_folder_without_a_checkpoint_that_fits_gives_none(tmp_path: Path, plan: Plan) -> None:
    run = prepared(tmp_path, plan)
    assert latest_checkpoint(run) is None
    run.folder.checkpoints.mkdir()
    (run.folder.checkpoints / "latest").write_text("checkpoint-000001")
    assert latest_checkpoint(run) is None


def test_a_ray_that_cannot_be_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan) -> None:
    waits: list[float] = []

    def alive(*_: object) -> set[str]:
        if sum(waits) < 30.0:
            raise RunFailed("could not join the Ray cluster")
        return {node.name for node in plan.fleet.nodes}

    monkeypatch.setattr(beginning_again, "nodes_alive", alive)
    monkeypatch.setattr(time, "sleep", waits.append)
    watched = Watched()
    found = begun_again(
        Restarts(),
        prepared(tmp_path, plan),
        plan,
        plan,
        NodesLeft(),
        "head:1",
        "lost",
        cast("Any", watched),
        lambda: False,
    )
    assert found is not None
    assert (found.plan, found.resumes) == (plan, False)
    assert [type(event) for event in watched.events] == [report.WaitsForNodesEvent, report.RestartedEvent]


def test_a_user_who_wants_an_end_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan) -> None:
    monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: set(plan.fleet.names))
    arguments = (Restarts(), prepared(tmp_path, plan), plan, plan, NodesLeft(), None, "lost", cast("Any", Watched()))
    assert begun_again(*arguments, lambda: True) is None


@pytest.mark.parametrize("who", ["a node", "ray"])
def test_a_run_that_its_nodes_leave_begins_again_however_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan, who: str
) -> None:
    """Its only other end is after so many losses in a row for which no node was missing."""
    asked = 0

    def alive(*_: object) -> set[str]:
        nonlocal asked
        asked += 1
        if who == "ray" and asked % 2 == 1:  # it is back when it is asked again, after a wait
            raise RunFailed("could not join the Ray cluster")
        return set(plan.fleet.names) - {plan.clusters[0].stages[0].node if who == "a node" else ""}

    monkeypatch.setattr(beginning_again, "nodes_alive", alive)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    restarts, run = Restarts(), prepared(tmp_path, plan)
    arguments = (restarts, run, plan, plan, NodesLeft(), "head:1", "lost", cast("Any", Watched()), lambda: False)
    assert all(begun_again(*arguments) is not None for _ in range(3 * MOST_IN_A_ROW))


def test_what_has_left_is_gone_whatever_ray_says_and_what_counts_is_the_plan_as_it_was_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan
) -> None:
    """In a rehearsal all nodes are this machine, and those that a scenario takes away have left."""
    first, *others = [stage.node for cluster in plan.clusters for stage in cluster.stages]
    made = cluster_at(plan, plan.clusters[0].name, others[:1], ())
    assert made is not None
    trained = with_cluster(plan, made, "its cluster does without it")
    monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: set(plan.fleet.names))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for last, ends in ((plan, False), (trained, True)):
        left, restarts, run = NodesLeft(), Restarts(), prepared(tmp_path, plan)
        left.leave(first)
        arguments = (restarts, run, plan, last, left, None, "lost", cast("Any", Watched()), lambda: False)
        assert (None in [begun_again(*arguments) for _ in range(MOST_IN_A_ROW + 1)]) is ends


def test_a_run_that_has_all_its_nodes_ends_after_some_tries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan
) -> None:
    monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: set(plan.fleet.names))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    restarts, run = Restarts(), prepared(tmp_path, plan)
    arguments = (restarts, run, plan, plan, NodesLeft(), "head:1", "lost", cast("Any", Watched()), lambda: False)
    tries = [begun_again(*arguments) is not None for _ in range(MOST_IN_A_ROW + 1)]
    assert tries == [True] * MOST_IN_A_ROW + [False]
