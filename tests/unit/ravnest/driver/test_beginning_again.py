"""What a run goes on from that begins again. Its tries and waits are in test_training_run.py, with a run around it."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cluster_planner import Plan, cluster_at, with_cluster
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver import beginning_again
from ravnest.driver import instructions as ins
from ravnest.driver.beginning_again import AllSessions, begun_again, last_saved
from ravnest.driver.observe import report
from ravnest.driver.preparation import writer_opener
from ravnest.errors import RunFailed
from ravnest.recovery import NodesLeft, Restarts, plan_for
from ravnest.recovery.restarting import AT_ONE_NODE, MOST_IN_A_ROW
from tests.support.local import parts_of_plan, tiny_job


class Watched:
    """Remembers the events."""

    trained_s = 7.0

    def __init__(self, samples: int = 0) -> None:
        self.events: list[report.RunEvent] = []
        self.trained_samples = samples

    def on(self, event: report.RunEvent) -> None:
        self.events.append(event)


def prepared(folder: Path, plan: Plan) -> Any:
    return SimpleNamespace(folder=RunFolder(folder), plan=plan, job=tiny_job())


def all_sessions(
    watched: Watched, left: NodesLeft | None = None, *, address: str | None = "head:1", ends: bool = False
) -> AllSessions:
    return AllSessions(address, Restarts(), left or NodesLeft(), watched, lambda: ends)


def saved(run: Any, round_: int) -> Path:
    """A checkpoint of so many rounds, of 48 samples each."""
    begin = ins.BeginCheckpoint(round_, 48 * round_, {"c0": round_, "c1": round_})
    writer = writer_opener(run.folder, lambda: run.plan, run.job, None)(begin)
    for ring in range(len(run.plan.rings)):
        writer.add_segment(ring, {f"w{ring}": torch.ones(2)})
    for cluster in run.plan.clusters:
        for stage in range(len(cluster.stages)):
            writer.add_optimizer(cluster.name, stage, {})
    return writer.commit(parts_of_plan(run.plan))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """All nodes are alive, and nothing takes time."""
    monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: set(plan.fleet.names))
    monkeypatch.setattr(time, "sleep", lambda _: None)


def test_a_folder_without_a_checkpoint_has_nothing_to_go_on_from(tmp_path: Path, plan: Plan) -> None:
    assert last_saved(prepared(tmp_path, plan), Watched()) is None


@pytest.mark.usefixtures("there")
def test_a_damaged_checkpoint_is_left_for_the_one_before_it(tmp_path: Path, plan: Plan) -> None:
    """Before, the run was to begin from the start, where its own folder was refused as that of another run."""
    run, watched = prepared(tmp_path, plan), Watched(120)
    saved(run, 1)
    (saved(run, 2) / "segment-000.safetensors").unlink()
    anew = begun_again(all_sessions(watched), run, plan, plan, "lost")
    assert anew is not None
    assert anew.resumes
    notice, restarted = watched.events
    assert isinstance(notice, report.NoticeEvent)
    assert notice.text == (
        "the latest checkpoint is damaged: segment-000.safetensors is missing: the run goes on from"
        " checkpoint-000001, which is whole"
    )
    assert restarted == report.RestartedEvent("lost", "checkpoint-000001", 2.0, planned_anew=False, samples=72)
    found = last_saved(run, watched)
    assert found is not None
    assert found.samples == 48


@pytest.mark.usefixtures("there")
def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_from_the_start(tmp_path: Path, plan: Plan) -> None:
    run, watched = prepared(tmp_path, plan), Watched()
    for round_ in (1, 2):
        (saved(run, round_) / "segment-000.safetensors").unlink()
    assert begun_again(all_sessions(watched), run, plan, plan, "lost") is None
    assert watched.events == []
    assert (run.folder.checkpoints / "latest").read_text() == "checkpoint-000002\n"


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("trained", "lost"), [(0, 0), (48, 0), (100, 52)])
def test_the_samples_are_told_that_are_lost(tmp_path: Path, plan: Plan, trained: int, lost: int) -> None:
    run, watched = prepared(tmp_path, plan), Watched(trained)
    saved(run, 1)
    assert begun_again(all_sessions(watched), run, plan, plan, "lost") is not None
    (told,) = watched.events
    assert isinstance(told, report.RestartedEvent)
    assert told.samples == lost


def test_a_ray_that_cannot_be_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan) -> None:
    waits: list[float] = []

    def alive(*_: object) -> set[str]:
        if sum(waits) < 30.0:
            raise RunFailed("could not join the Ray cluster")
        return {node.name for node in plan.fleet.nodes}

    monkeypatch.setattr(beginning_again, "nodes_alive", alive)
    monkeypatch.setattr(time, "sleep", waits.append)
    watched = Watched()
    found = begun_again(all_sessions(watched), prepared(tmp_path, plan), plan, plan, "lost")
    assert found is not None
    assert (found.plan, found.resumes) == (plan, False)
    assert [type(event) for event in watched.events] == [report.WaitsForNodesEvent, report.RestartedEvent]


def test_a_user_who_wants_an_end_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Plan) -> None:
    monkeypatch.setattr(beginning_again, "nodes_alive", lambda *_: set(plan.fleet.names))
    run = all_sessions(Watched(), ends=True)
    assert begun_again(run, prepared(tmp_path, plan), plan, plan, "lost") is None


@pytest.mark.usefixtures("there")
def test_a_node_of_which_a_stage_ends_the_run_each_time_is_done_without(tmp_path: Path, plan: Plan) -> None:
    """A run that has a machine which could take its place ended, after four tries with the one that fails."""
    cluster = plan.clusters[-1]
    stage, node = f"{cluster.name}.s0", cluster.stages[0].node
    watched, left = Watched(), NodesLeft()
    run, before = all_sessions(watched, left), plan
    for number in range(4 * MOST_IN_A_ROW):
        anew = begun_again(run, prepared(tmp_path, plan), before, before, "lost", stage=stage)
        assert anew is not None
        before = anew.plan
        if number:
            break
    assert node in left.names
    assert node not in {each.node for each in before.clusters[0].stages}
    assert node not in {each.node for one in before.clusters for each in one.stages}
    assert any(isinstance(event, report.NoticeEvent) and repr(node) in event.text for event in watched.events)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("address", ["head:1", None])
def test_one_that_the_run_cannot_do_without_ends_it_as_before(tmp_path: Path, plan: Plan, address: str | None) -> None:
    """Without an address all stages are on this machine, and it is no node that fails."""
    alone = plan_for(plan, [plan.clusters[0].stages[0].node])
    run = all_sessions(Watched(), address=address)
    arguments = (run, prepared(tmp_path, alone), alone, alone, "lost")
    tries = [begun_again(*arguments, stage="c0.s0") is not None for _ in range(3 * MOST_IN_A_ROW)]
    assert tries.index(False) == MOST_IN_A_ROW + (0 if address is None else AT_ONE_NODE)


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
    run = all_sessions(Watched())
    arguments = (run, prepared(tmp_path, plan), plan, plan, "lost")
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
        left = NodesLeft()
        left.leave(first)
        run = all_sessions(Watched(), left, address=None)
        arguments = (run, prepared(tmp_path, plan), plan, last, "lost")
        assert (None in [begun_again(*arguments) for _ in range(MOST_IN_A_ROW + 1)]) is ends


@pytest.mark.usefixtures("there")
def test_a_run_that_has_all_its_nodes_ends_after_some_tries(tmp_path: Path, plan: Plan) -> None:
    run = all_sessions(Watched())
    arguments = (run, prepared(tmp_path, plan), plan, plan, "lost")
    tries = [begun_again(*arguments) is not None for _ in range(MOST_IN_A_ROW + 1)]
    assert tries == [True] * MOST_IN_A_ROW + [False]
