"""The stage machine by example: what it does next, and what it refuses."""

import pytest

from ravnest.pipeline import Event, StageMachine, StageShape
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from tests.unit.ravnest.pipeline.bench import Bench, activations, gradients


def test_nothing_happens_before_the_start() -> None:
    machine = StageMachine(StageShape(1, 0, 2, 1, 4, 1))
    (failure,) = machine.handle(ev.DrainRequested(), 0.0)
    assert isinstance(failure, ins.Fail)
    assert "Started comes first" in failure.reason
    assert "stage 0 of 1" in failure.reason


def test_one_stage_alone_is_a_plain_training_loop() -> None:
    bench = Bench(1, 0, max_staleness=0)
    assert bench.machine.running == ins.RunForward(0)
    assert bench.work(6) == "B0 F1 B1 U0 F2 B2"


def test_backward_and_forward_take_turns_and_update_goes_before_both() -> None:
    bench = Bench(3, 1, update_every=4)
    assert bench.tell(*activations(0, 1, 2, 3, 4)) == "F0"
    assert bench.work(4) == "SA0 F1 SA1 F2 SA2 F3 SA3 F4"
    assert bench.tell(*gradients(0, 1, 2, 3), *activations(5, 6, 7)) == ""
    assert bench.work() == "SA4 B0 SG0 F5 SA5 B1 SG1 F6 SA6 B2 SG2 F7 SA7 B3 SG3 U0"


def test_an_evaluation_takes_turns_with_both() -> None:
    bench = Bench(3, 1, update_every=8)
    bench.tell(*activations(0, 1, 2, 3, 4))
    bench.work(4)
    bench.tell(*gradients(0, 1, 2, 3), *activations(5, 6), *[ev.EvaluationArrived(1, batch, 3) for batch in range(3)])
    said = bench.work().split()
    assert [word for word in said if word[0] in "BFE"] == ["B0", "E1.0", "B1", "F5", "B2", "E1.1", "B3", "F6", "E1.2"]


def test_rounds_are_reported_finished_only_when_nothing_computes() -> None:
    """The stage then adopts the anchor, in another thread than the one that computes."""
    machine = Bench(2, 1).machine
    running = machine.handle(ev.EvaluationArrived(0, 0, 1), 0.0)
    assert running == [ins.RunEvaluation(0, 0)]
    assert machine.handle(ev.RoundsToFinish(0, 0), 0.0) == []
    after = machine.handle(ev.EvaluationForwardFinished(0, 0), 0.0)
    assert ins.ReportRoundsFinished(0) in after


def test_last_stage_goes_straight_back() -> None:
    bench = Bench(3, 2)
    bench.tell(*activations(0, 1))
    assert bench.work() == "B0 SG0 F1 B1 SG1 U0"


def test_a_later_stage_refuses_what_was_injected_too_early() -> None:
    bench = Bench(2, 1)
    bench.tell(*activations(0, 1, 2, 3))
    assert "staler than 1" in bench.tell(*activations(4))


def test_a_resumed_stage_goes_on_at_its_version_and_round() -> None:
    machine = StageMachine(StageShape(1, 0, 2, 1, 4, 1))
    assert machine.handle(ev.Started(version=5, round=3), 0.0) == [ins.RunForward(10)]
    assert machine.handle(ev.RoundOpened(4), 0.0) == []
    assert (machine.version, machine.contributed, machine.merged) == (5, 3, 3)


FIRST, MIDDLE, LAST = 0, 1, 2


@pytest.mark.parametrize(
    ("index", "event", "reason"),
    [
        (MIDDLE, ev.Started(), "once"),
        (FIRST, ev.ActivationArrived(0), "reads its own"),
        (MIDDLE, ev.ActivationArrived(1), "expected micro-batch 0"),
        (LAST, ev.GradientArrived(0), "makes its own"),
        (FIRST, ev.GradientArrived(1), "expected the gradient of micro-batch 0"),
        (FIRST, ev.GradientArrived(0), "has not finished"),
        (MIDDLE, ev.ForwardFinished(0), "running is None"),
        (FIRST, ev.ForwardFinished(1), "running is F0"),
        (FIRST, ev.BackwardFinished(0), "running is F0"),
        (FIRST, ev.UpdateFinished(0), "running is F0"),
        (LAST, ev.ContributionFinished(1), "running is None"),
        (LAST, ev.MergeFinished(1), "running is None"),
        (MIDDLE, ev.RoundOpened(1), "only the last stage"),
        (LAST, ev.RoundOpened(2), "expected round 1"),
        (LAST, ev.MergeArrived(1), "has not contributed"),
        (LAST, ev.MergeArrived(2), "expected round 1"),
        (FIRST, ev.GlobalNormArrived(0, 1.0), "makes the sum"),
        (MIDDLE, ev.GlobalNormArrived(0, 1.0), "does not clip"),
        (MIDDLE, ev.DrainRequested(), "only the first stage"),
        (FIRST, ev.RoundsToFinish(0, 0), "has not drained"),
        (MIDDLE, ev.WindowChanged(2), "only the first stage"),
        (FIRST, ev.WindowChanged(0), "at least one"),
        (MIDDLE, ev.EvaluationRequested(0, 1), "requested of the first"),
        (FIRST, ev.EvaluationRequested(0, 0), "at least one batch"),
        (FIRST, ev.EvaluationArrived(0, 0, 1), "reads its own"),
        (MIDDLE, ev.EvaluationArrived(0, 1, 2), "expected the first batch"),
        (FIRST, ev.EvaluationCredited(0, 0), "not the oldest"),
        (LAST, ev.EvaluationForwardFinished(0, 0), "running is None"),
    ],
)
def test_an_event_that_cannot_be_fails_and_names_itself(index: int, event: Event, reason: str) -> None:
    bench = Bench(3, index)
    (failure,) = bench.machine.handle(event, 0.0)
    assert isinstance(failure, ins.Fail)
    assert reason in failure.reason
    assert str(event) in failure.reason
    assert bench.machine.failure == failure.reason
    assert bench.machine.handle(ev.DrainRequested(), 0.0) == []


def test_events_after_the_last_update_fail() -> None:
    last = Bench(2, 1)
    last.tell(ev.RoundsToFinish(0, 0))
    assert "has drained" in last.tell(*activations(0))
    again = Bench(2, 1)
    again.tell(ev.RoundsToFinish(1, 0))
    assert "already named" in again.tell(ev.RoundOpened(1))
    fewer = Bench(2, 1)
    fewer.tell(ev.RoundsToFinish(2, 0))
    assert "round 2 is open" in fewer.tell(ev.RoundsToFinish(1, 0))
    stamped = Bench(2, 0)
    stamped.work()
    stamped.tell(ev.GradientArrived(0))
    assert "expected the stamp of round 1" in stamped.tell(ev.GradientArrived(1, 2))
