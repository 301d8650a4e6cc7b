"""What a person reads of events: a tone, and what to do."""

from pathlib import Path

import pytest

from ravnest.driver.observe import report
from ravnest.driver.observe.place_events import NodeSlowEvent
from ravnest.page.event_view import event_row, named

LOST = report.ClusterLostEvent("c1", "c1.s2", "desk", "its process was killed", 64, ("c0",))
LEFT = report.ClusterLostEvent("c1", "c1.s2", "desk", "it was asked to", 0, ("c0",), with_notice=True)


@pytest.mark.parametrize(
    ("event", "tone", "said"),
    [
        (LOST, "bad", "`ravnest logs home c1.s2` shows"),
        (LEFT, "note", "`ravnest join home desk`"),
        (report.StageSuspectedEvent("c1.s2", "desk", 9.0, 20.0), "note", "See whether desk is on"),
        (report.ReplacementFailedEvent("c1", "no", 5.0), "bad", "Nothing has to be done"),
        (report.ReplacementFailedEvent("c1", "no", None), "bad", "`ravnest stop home`"),
        (report.CheckpointRefusedEvent(2, "full"), "bad", "Make room"),
        (report.RestartedEvent("gone", "checkpoint-000001", 5.0, planned_anew=False), "bad", "is trained again"),
        (report.WaitsForNodesEvent("gone", 60.0), "bad", "`ravnest join home NODE --nodes nodes.yaml`"),
        (NodeSlowEvent("desk", "c1.s2", 3.0), "note", "`ravnest leave home desk`"),
    ],
    ids=lambda value: report.kind_of(value) if hasattr(value, "__dataclass_fields__") else "",
)
def test_what_goes_wrong_says_what_to_do(event: report.RunEvent, tone: str, said: str) -> None:
    row = named(event_row(report.kind_of(event), event, "words", 3.0), "home")
    assert (row["at_s"], row["tone"], row["text"]) == (3.0, tone, "words")
    assert said in str(row["to_do"])


@pytest.mark.parametrize(
    "event",
    [
        report.PhaseEvent("training"),
        report.NoticeEvent("a word"),
        report.CheckpointWrittenEvent(Path("c"), 1),
        report.StageSuspectedEvent("c1.s2", "desk", 9.0, 20.0, heard_again=True),
        NodeSlowEvent("desk", "c1.s2", 1.0),
        report.FailedEvent("no room"),
        report.FailedEvent("stopped at once", at_once=True),
    ],
    ids=report.kind_of,
)
def test_what_asks_nothing_of_anybody_says_nothing(event: report.RunEvent) -> None:
    assert "to_do" not in named(event_row(report.kind_of(event), event, "words", 0.0), "home")


@pytest.mark.parametrize(("at_once", "tone"), [(False, "bad"), (True, "note")])
def test_an_end_that_the_user_asked_for_is_nothing_bad(at_once: bool, tone: str) -> None:
    assert event_row("failed", report.FailedEvent("why", at_once), "words", 0.0)["tone"] == tone
