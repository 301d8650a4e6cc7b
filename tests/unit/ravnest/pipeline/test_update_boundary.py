"""Rounds at the update boundaries of a stage, by example."""

from ravnest.pipeline import events as ev
from tests.unit.ravnest.pipeline.bench import Bench, activations, gradients


def test_a_round_is_stamped_on_the_end_of_the_group_and_its_snapshot_follows_the_update() -> None:
    last = Bench(2, 1)
    last.tell(*activations(0))
    assert last.work() == "B0 SG0"
    last.tell(ev.RoundOpened(1), ev.RoundOpened(2), *activations(1, 2, 3))
    # Round 2 waits for the next update; then for the merge of round 1, as max_lag is 1.
    assert last.work() == "B1 SG1@r1 U0 SNAP1 F2 B2 SG2 F3 B3 SG3@r2 U1"
    assert last.machine.ledger.state == "lag"
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
    assert first.machine.ledger.state == "drain"
