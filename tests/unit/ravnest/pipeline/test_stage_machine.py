"""The stage machine by example: events in, one trace string out."""

import pytest

from ravnest.pipeline import Event, StageMachine, StageShape, format_trace
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins

FINISHED = {
    ins.RunForward: lambda i, norm: ev.ForwardFinished(i.micro_batch),
    ins.RunBackward: lambda i, norm: ev.BackwardFinished(i.micro_batch, norm),
    ins.RunUpdate: lambda i, norm: ev.UpdateFinished(i.update),
    ins.TakeSnapshot: lambda i, norm: ev.SnapshotFinished(i.round),
    ins.ApplyMerge: lambda i, norm: ev.MergeFinished(i.round),
    ins.RunEvaluation: lambda i, norm: ev.EvaluationForwardFinished(i.evaluation, i.batch),
}


class Bench:
    """One machine on a bench: `tell` it events, `work` off what it computes, read what it answers as a trace."""

    def __init__(self, stages: int, index: int, **shape: int | bool) -> None:
        bounds = {"update_every": 2, "max_staleness": 1, "window": 4, "max_lag": 1, **shape}
        self.machine = StageMachine(StageShape(stages, index, **bounds))
        self.now_s = 0.0
        self.tell(ev.Started())

    def tell(self, *events: Event) -> str:
        answers = []
        for event in events:
            answers += self.machine.handle(event, self.now_s)
            self.machine.check()
        return format_trace(answers)

    def work(self, steps: int = 1000, norm_sq: float | None = None) -> str:
        """Finish up to `steps` computations, one after the other; `norm_sq` goes with the ends of groups."""
        answers = []
        for _ in range(steps):
            running = self.machine.running
            if running is None:
                break
            ends = isinstance(running, ins.RunBackward) and self.machine.shape.ends_group(running.micro_batch)
            answers.append(self.tell(FINISHED[type(running)](running, norm_sq if ends else None)))
        return " ".join(filter(None, answers))


def activations(*micro_batches: int) -> list[Event]:
    return [ev.ActivationArrived(m) for m in micro_batches]


def gradients(*micro_batches: int) -> list[Event]:
    return [ev.GradientArrived(m) for m in micro_batches]


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


def test_first_stage_fills_the_window_then_waits() -> None:
    bench = Bench(3, 0, window=3)
    assert bench.work() == "SA0 F1 SA1 F2 SA2"
    assert bench.machine.in_flight == 3
    assert bench.tell(*gradients(0)) == "B0"
    assert bench.work() == "F3 SA3"


def test_first_stage_never_admits_beyond_the_staleness_bound() -> None:
    bench = Bench(3, 0, window=100)  # (max_staleness + 1) · update_every = 4
    assert bench.work() == "SA0 F1 SA1 F2 SA2 F3 SA3"
    assert bench.tell(*gradients(0)) == "B0"
    assert bench.work() == ""
    assert bench.tell(*gradients(1)) == "B1"
    assert bench.work() == "U0 F4 SA4 F5 SA5"
    assert bench.machine.group_staleness == ()
    bench.tell(*gradients(2, 3))
    assert bench.work(2) == "B3 U1"
    assert bench.machine.group_staleness == (1, 1)


def test_synchronous_first_stage_waits_for_its_update() -> None:
    bench = Bench(3, 0, max_staleness=0)
    assert bench.work() == "SA0 F1 SA1"
    bench.tell(*gradients(0, 1))
    assert bench.work() == "B1 U0 F2 SA2 F3 SA3"


def test_backward_goes_before_forward_and_update_before_both() -> None:
    bench = Bench(3, 1)
    assert bench.tell(*activations(0, 1, 2)) == "F0"
    assert bench.work(2) == "SA0 F1 SA1 F2"
    assert bench.tell(*gradients(0, 1), *activations(3)) == ""
    assert bench.work() == "SA2 B0 SG0 B1 SG1 U0 F3 SA3"


def test_last_stage_goes_straight_back() -> None:
    bench = Bench(3, 2)
    bench.tell(*activations(0, 1))
    assert bench.work() == "B0 SG0 F1 B1 SG1 U0"


def test_a_later_stage_refuses_what_was_injected_too_early() -> None:
    bench = Bench(2, 1)
    bench.tell(*activations(0, 1, 2, 3))
    assert "staler than 1" in bench.tell(*activations(4))


def test_a_round_is_stamped_on_the_end_of_the_group_and_its_snapshot_follows_the_update() -> None:
    last = Bench(2, 1)
    last.tell(*activations(0))
    assert last.work() == "B0 SG0"
    last.tell(ev.RoundOpened(1), ev.RoundOpened(2), *activations(1, 2, 3))
    # Round 2 waits for the next update; then for the merge of round 1, as max_lag is 1.
    assert last.work() == "B1 SG1@r1 U0 SNAP1 F2 B2 SG2 F3 B3 SG3@r2 U1"
    assert last.machine.ledger._state == "lag"
    assert last.tell(*activations(4)) == ""
    assert last.tell(ev.MergeArrived(1)) == "M1"
    assert last.work() == "SNAP2 F4 B4 SG4"


def test_a_stamp_is_passed_on() -> None:
    middle = Bench(3, 1)
    middle.tell(*activations(0, 1))
    middle.work()
    middle.tell(ev.GradientArrived(0), ev.GradientArrived(1, 1))
    assert middle.work() == "SG0 B1 SG1@r1 U0 SNAP1"


def test_snapshot_goes_before_a_merge_that_the_lag_does_not_ask_for() -> None:
    bench = Bench(1, 0, max_lag=2)
    bench.tell(ev.RoundOpened(1))
    assert bench.work(5) == "B0 F1 B1 U0 SNAP1"
    bench.tell(ev.RoundOpened(2))
    assert bench.work(2) == "F2 B2"
    bench.tell(ev.MergeArrived(1))
    assert bench.work(6) == "F3 B3 U1 SNAP2 M1 F4"


def test_a_merge_waits_until_no_live_graph_holds_the_weights() -> None:
    first = Bench(2, 0)
    assert first.work() == "SA0 F1 SA1 F2 SA2 F3 SA3"
    first.tell(ev.GradientArrived(0), ev.GradientArrived(1, 1))
    assert first.work() == "B1 U0 SNAP1 F4 SA4 F5 SA5"
    assert first.tell(ev.MergeArrived(1)) == "", "micro-batches 4 and 5 hold the present weights"
    first.tell(*gradients(2, 3))
    assert first.work() == "B3 U1 M1 F6 SA6 F7 SA7"


def test_merges_are_applied_while_nothing_is_in_flight() -> None:
    bench = Bench(2, 1)
    bench.tell(ev.RoundOpened(1), *activations(0, 1))
    bench.work()
    assert bench.tell(ev.MergeArrived(1)) == "M1"


def test_asynchronous_clipping_uses_the_last_known_norm() -> None:
    middle = Bench(3, 1, clip=True)
    middle.tell(*activations(0, 1, 2, 3))
    middle.work()
    middle.tell(ev.GradientArrived(0), ev.GradientArrived(1, None, 4.0))
    assert middle.work(norm_sq=0.5) == "SG0 B1 SG1|4.5 U0"
    assert middle.tell(ev.GlobalNormArrived(0, 7.5)) == "SN0|7.5"
    middle.tell(ev.GradientArrived(2), ev.GradientArrived(3, None, 1.0))
    assert middle.work(norm_sq=0.25) == "SG2 B3 SG3|1.25 U1|7.5"


def test_synchronous_clipping_waits_for_the_norm_of_the_same_update() -> None:
    last = Bench(2, 1, clip=True, max_staleness=0)
    last.tell(*activations(0, 1))
    assert last.work(norm_sq=2.0) == "B0 SG0 F1 B1 SG1|2.0"
    assert last.machine.ledger._state == "norm"
    assert last.tell(ev.GlobalNormArrived(0, 5.0)) == "U0|5.0"

    first = Bench(2, 0, clip=True, max_staleness=0)
    first.work()
    first.tell(ev.GradientArrived(0), ev.GradientArrived(1, None, 2.0))
    assert first.work(2, norm_sq=3.0) == "B1 SN0|5.0 U0|5.0"


def test_evaluation_alternates_with_forwards_and_is_credited() -> None:
    first = Bench(2, 0, window=8, update_every=4)
    first.tell(ev.EvaluationRequested(0, 5))
    assert first.work(6) == "SA0 E0.0 SE0.0/5 F1 SA1 E0.1 SE0.1/5 F2 SA2 E0.2 SE0.2/5 F3"
    # stages + 1 = 3 batches in flight: the fourth waits for a credit.
    assert first.work(1) == "SA3 F4"
    first.tell(ev.EvaluationCredited(0, 0))
    assert first.work(2) == "SA4 E0.3 SE0.3/5 F5"

    last = Bench(2, 1)
    assert last.tell(ev.EvaluationArrived(0, 0, 2)) == "E0.0"
    last.tell(ev.EvaluationArrived(0, 1, 2), *activations(0))
    assert last.work() == "CE0.0 F0 B0 SG0 E0.1 CE0.1 RE0"


def test_evaluation_runs_when_drained_and_while_the_lag_holds_training() -> None:
    bench = Bench(1, 0)
    bench.tell(ev.RoundOpened(1), ev.RoundOpened(2))
    assert bench.work() == "B0 F1 B1 U0 SNAP1 F2 B2 F3 B3 U1"
    bench.tell(ev.EvaluationRequested(0, 2))
    assert bench.work() == "E0.1 RE0"
    assert bench.tell(ev.DrainRequested()) == "RD4/2"
    bench.tell(ev.EvaluationRequested(1, 1), ev.EvaluationRequested(2, 1))
    assert bench.work() == "RE1 E2.0 RE2"


def test_drain_completes_the_group_and_then_the_rounds() -> None:
    first = Bench(2, 0, update_every=3, max_staleness=1, window=6)
    first.work(3)
    first.tell(ev.DrainRequested(), ev.DrainRequested())
    assert first.work() == "SA3 F4 SA4 F5 SA5"
    first.tell(*gradients(0, 1, 2, 3, 4, 5))
    assert first.work() == "B1 B2 U0 B3 B4 B5 U1 RD6/2"
    assert first.tell(ev.RoundsToFinish(2, 2)) == "SNAP1"
    assert first.work() == ""
    assert first.tell(ev.MergeArrived(1)) == "M1"
    assert first.work() == "SNAP2"
    assert first.tell(ev.RoundsToFinish(3, 2), ev.MergeArrived(2)) == "M2"
    assert first.work() == "SNAP3"
    first.tell(ev.MergeArrived(3))
    assert first.work() == "RR3"
    assert first.machine.ledger._state == "drain"


def test_a_drain_at_a_boundary_injects_nothing_more() -> None:
    first = Bench(2, 0, window=2)
    first.work()
    assert first.tell(ev.DrainRequested(), *gradients(0, 1)) == "B0"
    assert first.work() == "B1 U0 RD2/1"


def test_a_resumed_stage_goes_on_at_its_version_and_round() -> None:
    machine = StageMachine(StageShape(1, 0, 2, 1, 4, 1))
    assert machine.handle(ev.Started(version=5, round=3), 0.0) == [ins.RunForward(10)]
    assert machine.handle(ev.RoundOpened(4), 0.0) == []
    assert (machine.version, machine.contributed, machine.merged) == (5, 3, 3)


def test_the_window_can_change() -> None:
    first = Bench(2, 0, window=1)
    assert first.work() == "SA0"
    assert first.tell(ev.WindowChanged(2)) == "F1"
    first.tell(ev.WindowChanged(1))
    assert first.work() == "SA1"
    assert first.tell(*gradients(0)) == "B0"
    assert first.work() == ""


def test_the_ledger_says_where_the_time_went() -> None:
    first = Bench(2, 0, window=1)
    first.now_s = 3.0
    first.tell(ev.ForwardFinished(0))
    first.now_s = 10.0
    first.tell(*gradients(0))
    first.now_s = 12.0
    first.tell(ev.BackwardFinished(0))
    seconds = first.machine.ledger.seconds
    assert (seconds["forward"], seconds["window"], seconds["backward"]) == (3.0, 7.0, 2.0)
    assert (first.machine.ledger.busy_s, first.machine.ledger.waited_s) == (5.0, 7.0)


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
        (LAST, ev.SnapshotFinished(1), "running is None"),
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


def test_a_norm_or_stamp_in_the_wrong_place_fails() -> None:
    plain, clipped, early = Bench(2, 0), Bench(2, 0, clip=True), Bench(2, 0)
    for bench in (plain, clipped, early):
        bench.work()
    assert "no norm belongs here" in plain.tell(ev.GradientArrived(0, None, 1.0))
    assert "a norm belongs" in clipped.tell(ev.GradientArrived(0), ev.GradientArrived(1))
    assert "end of a group" in early.tell(ev.GradientArrived(0, 1))


@pytest.mark.parametrize(
    "wrong",
    [{"index": 3}, {"index": -1}, {"update_every": 0}, {"max_staleness": -1}, {"window": 0}, {"max_lag": 0}],
)
def test_impossible_shapes_are_refused(wrong: dict[str, int]) -> None:
    right = {"stages": 3, "index": 0, "update_every": 2, "max_staleness": 1, "window": 4, "max_lag": 1}
    with pytest.raises(ValueError, match=r"must be at least|is not a stage"):
        StageShape(**{**right, **wrong})
