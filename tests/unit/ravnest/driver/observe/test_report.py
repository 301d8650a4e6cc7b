import json
from dataclasses import replace
from pathlib import Path

from ravnest.driver.observe.report import (
    CheckpointRefusedEvent,
    CheckpointWrittenEvent,
    EvaluatedEvent,
    NoticeEvent,
    PhaseEvent,
    ProgressEvent,
    RoundCommittedEvent,
    RunResult,
    as_plain,
    kind_of,
)


def test_every_event_becomes_a_line_of_json(progress: ProgressEvent) -> None:
    events = [
        PhaseEvent("training"),
        progress,
        EvaluatedEvent(4000, 2.5, {"accuracy": 0.5}, final=False),
        RoundCommittedEvent(1, 512),
        CheckpointWrittenEvent(Path("a/b"), 1),
        CheckpointRefusedEvent(2, "full"),
        NoticeEvent("words"),
    ]
    lines = [json.loads(json.dumps(as_plain(event), allow_nan=False)) for event in events]
    assert [kind_of(event) for event in events] == [
        "phase",
        "progress",
        "evaluated",
        "round",
        "checkpoint",
        "not_saved",
        "notice",
    ]
    assert lines[1]["clusters"][1]["loss"] is None
    assert lines[2]["metrics"] == {"accuracy": 0.5}
    assert lines[4]["path"] == "a/b"


def test_a_loss_that_is_not_finite_is_null(progress: ProgressEvent) -> None:
    diverged = replace(progress.clusters[0], loss=float("nan"))
    record = as_plain(replace(progress, clusters=(diverged,)))
    assert json.loads(json.dumps(record, allow_nan=False))["clusters"][0]["loss"] is None


def test_a_result_is_plain(result: RunResult) -> None:
    plain = json.loads(json.dumps(as_plain(result), allow_nan=False))
    assert plain["weights_path"].endswith("weights.safetensors")
    assert plain["loss_curve_path"] is None
    assert plain["baselines"] == {"bigram model": 2.318}
