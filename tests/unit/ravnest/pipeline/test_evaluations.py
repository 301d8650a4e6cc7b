"""Held-out batches beside training, by example."""

from ravnest.pipeline import events as ev
from tests.unit.ravnest.pipeline.bench import Bench, activations


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
