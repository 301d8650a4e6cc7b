"""What stages measure of a micro-batch's way, on a bench with a clock set by hand."""

from ravnest.pipeline import Event, StageMachine, StageShape
from ravnest.pipeline import events as ev
from ravnest.pipeline.tuned_stage import Passage, StageTimings


class Timed:
    """One stage and its tempo."""

    def __init__(self, stages: int, index: int, update_every: int = 2) -> None:
        shape = StageShape(stages, index, update_every=update_every, max_staleness=1, window=4, max_lag=1)
        self.machine, self.tempo = StageMachine(shape), StageTimings(shape)

    def at(self, now_s: float, event: Event, carried: Passage | None = None) -> None:
        self.tempo.handled(event, self.machine.handle(event, now_s), now_s, carried)


def test_a_middle_stage_adds_what_waited_there_and_the_larger_of_the_times_taken() -> None:
    stage = Timed(3, 1)
    stage.at(0.0, ev.Started())
    stage.at(1.0, ev.ActivationArrived(0))
    stage.at(2.0, ev.ActivationArrived(1))
    stage.at(4.0, ev.ForwardFinished(0))  # so 1 waited for 2 s
    stage.at(5.0, ev.GradientArrived(0), Passage(queued_s=10.0, busiest_s=3.0))
    stage.at(7.0, ev.ForwardFinished(1))  # so the gradient of 0 waited for 2 s
    stage.at(8.0, ev.GradientArrived(1), Passage(queued_s=20.0, busiest_s=9.5))
    stage.at(12.0, ev.BackwardFinished(0))
    assert stage.tempo.passage(0) == Passage(12.0, 3.0 + 5.0)
    stage.at(17.0, ev.BackwardFinished(1))  # its gradient waited from 8 to 12
    assert stage.tempo.passage(1) == Passage(20.0 + 2.0 + 4.0, 9.5)


def test_the_share_of_an_update_counts_and_a_slow_first_computation_does_not() -> None:
    stage = Timed(2, 1, update_every=1)
    stage.at(0.0, ev.Started())
    now_s = 0.0
    for micro_batch, slowness in enumerate([50.0, 1.0, 1.0]):
        stage.at(now_s, ev.ActivationArrived(micro_batch))
        stage.at(now_s + slowness, ev.ForwardFinished(micro_batch))
        stage.at(now_s + 3 * slowness, ev.BackwardFinished(micro_batch))
        now_s += 3 * slowness + 0.5
        stage.at(now_s, ev.UpdateFinished(micro_batch))
    assert stage.tempo.busy_s == 1.0 + 2.0 + 0.5


def test_the_first_stage_knows_the_whole_trip() -> None:
    stage = Timed(2, 0)
    stage.at(1.0, ev.Started())
    stage.at(2.0, ev.ForwardFinished(0))
    stage.at(2.5, ev.GradientArrived(0), Passage(queued_s=0.25, busiest_s=7.0))
    stage.at(3.0, ev.ForwardFinished(1))  # the gradient waited for half a second
    stage.at(5.0, ev.BackwardFinished(0))
    trip = stage.tempo.trip(0, 5.0, in_flight=2)
    assert (trip.seconds, trip.queued_s, trip.busiest_s, trip.in_flight) == (4.0, 0.75, 7.0, 2)
