"""Which norm an update is clipped by, by example."""

from ravnest.pipeline import events as ev
from tests.unit.ravnest.pipeline.bench import Bench, activations


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
    assert last.machine.ledger.state == "norm"
    assert last.tell(ev.GlobalNormArrived(0, 5.0)) == "U0|5.0"

    first = Bench(2, 0, clip=True, max_staleness=0)
    first.work()
    first.tell(ev.GradientArrived(0), ev.GradientArrived(1, None, 2.0))
    assert first.work(2, norm_sq=3.0) == "B1 SN0|5.0 U0|5.0"


def test_a_norm_or_stamp_in_the_wrong_place_fails() -> None:
    plain, clipped, early = Bench(2, 0), Bench(2, 0, clip=True), Bench(2, 0)
    for bench in (plain, clipped, early):
        bench.work()
    assert "no norm belongs here" in plain.tell(ev.GradientArrived(0, None, 1.0))
    assert "a norm belongs" in clipped.tell(ev.GradientArrived(0), ev.GradientArrived(1))
    assert "end of a group" in early.tell(ev.GradientArrived(0, 1))
