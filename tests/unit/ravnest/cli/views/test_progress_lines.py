from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from ravnest.cli.views.progress import PlainView
from ravnest.driver.observe.place_events import ProgressHandedOnEvent
from ravnest.driver.observe.report import (
    CheckpointRefusedEvent,
    CheckpointWrittenEvent,
    ClusterLostEvent,
    ClusterReplacedEvent,
    EvaluatedEvent,
    NoticeEvent,
    PhaseEvent,
    ProgressEvent,
    ReplacementFailedEvent,
    RestartedEvent,
    RoundCommittedEvent,
    RunEvent,
    StageSuspectedEvent,
)


def lines_of(*events: RunEvent, interval_s: float = 5.0) -> list[str]:
    out = StringIO()
    with PlainView(Console(file=out, soft_wrap=True), interval_s=interval_s) as view:
        for event in events:
            view.on(event)
    return out.getvalue().splitlines()


def test_each_event_reads_as_one_line(progress: ProgressEvent) -> None:
    assert lines_of(
        PhaseEvent("placing 6 stages"),
        PhaseEvent("training", "until 20,000 samples"),
        progress,
        RoundCommittedEvent(7, 3600),
        EvaluatedEvent(4000, 2.345, {"accuracy": 0.51}, final=False),
        CheckpointWrittenEvent(Path("runs/a/checkpoint"), 7),
        CheckpointRefusedEvent(9, "runs/a: cannot be written: No space left on device"),
        NoticeEvent("tablet [slow] fell behind"),
        EvaluatedEvent(20000, 2.01, {}, final=True),
    ) == [
        "placing 6 stages",
        "training: until 20,000 samples",
        "1 min 05 s, 3 min 20 s left · 4,000/20,000 samples"
        " | c0: loss 2.457, 50 samples/s, staleness ≤ 1, round 7, 78 updates"
        " | c1: loss –, 30 samples/s, staleness ≤ 0, round 6, 46 updates",
        "held-out loss after 4,000 samples: 2.345 · accuracy 0.51",
        "checkpoint of round 7: runs/a/checkpoint",
        "runs/a: cannot be written: No space left on device: there is no checkpoint of round 9, and training goes on;"
        " make room",
        "tablet [slow] fell behind",
        "final held-out loss: 2.010",
    ]


def test_what_becomes_of_lost_clusters_is_told() -> None:
    assert lines_of(
        StageSuspectedEvent("c1.s0", "tower", 10.2, 20.0),
        StageSuspectedEvent("c1.s0", "tower", 14.7, 20.0, heard_again=True),
        ClusterLostEvent("c1", "c1.s0", "tower", "stage c1.s0 on node 'tower' died", 1200, ("c0", "c2")),
        ClusterLostEvent("c1", "c1.s0", "tower", "tower leaves", 0, ("c0",), with_notice=True),
        ReplacementFailedEvent("c1", "its processes were not ready after 180 s", 4.0),
        ClusterReplacedEvent("c1", {"c1.s0": "desk"}, 31, 75.0, 1200),
        ClusterReplacedEvent("joined0", {"joined0.s0": "new"}, 31, 75.0, 0, new=True),
        ReplacementFailedEvent("c1", "it was started 5 times within 10 min", None),
        RestartedEvent("stage c0.s0 on node 'desk' died.", "checkpoint-000004", 2.0, planned_anew=True, samples=1200),
    ) == [
        "c1.s0 on tower has been silent for 10 s; after 20 s it counts as lost",
        "c1.s0 on tower is heard again, after 15 s",
        "c1 has left the run with 1,200 samples that were not averaged yet, and c0, c2 go on: stage c1.s0 on node"
        " 'tower' died",
        "c1 has left the run with nothing lost, and c0 goes on: tower leaves",
        "c1 could not be started anew: its processes were not ready after 180 s; the next try is in 4 s",
        "c1 was replaced and trains again after 1 min 15 s, from the anchor of round 31 (c1.s0 on desk)",
        "joined0 is a new cluster and begins to train after 1 min 15 s, from the anchor of round 31"
        " (joined0.s0 on new)",
        "c1 could not be started anew: it was started 5 times within 10 min; it stays out of the run",
        "stage c0.s0 on node 'desk' died; begins again from checkpoint-000004 in 2 s, planned anew for the nodes that"
        " are left; 1,200 samples are lost",
    ]


def test_progress_is_shown_once_an_interval(progress: ProgressEvent) -> None:
    times_s = [0.0, 1.0, 4.9, 5.0, 9.0, 10.1]
    lines = lines_of(*(replace(progress, elapsed_s=at_s) for at_s in times_s))
    assert [line.split(",")[0] for line in lines] == ["0 ms", "5.0 s", "10.1 s"]


def test_a_run_that_stops_by_time_has_no_total(progress: ProgressEvent) -> None:
    (line,) = lines_of(replace(progress, total_samples=None))
    assert "4,000 samples |" in line


def test_what_a_cluster_that_leaves_hands_on_is_said() -> None:
    (line,) = lines_of(ProgressHandedOnEvent("c1", "c0", 1280))
    assert "c1 has handed on to c0 the 1,280 samples" in line
