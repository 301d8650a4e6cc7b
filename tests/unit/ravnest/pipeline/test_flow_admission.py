"""What the first stage lets in, by example."""

from ravnest.pipeline import events as ev
from tests.unit.ravnest.pipeline.bench import Bench, gradients


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


def test_a_drain_at_a_boundary_injects_nothing_more() -> None:
    first = Bench(2, 0, window=2)
    first.work()
    assert first.tell(ev.DrainRequested(), *gradients(0, 1)) == "B0"
    assert first.work() == "B1 U0 RD2/1"


def test_the_window_can_change() -> None:
    first = Bench(2, 0, window=1)
    assert first.work() == "SA0"
    assert first.tell(ev.WindowChanged(2)) == "F1"
    first.tell(ev.WindowChanged(1))
    assert first.work() == "SA1"
    assert first.tell(*gradients(0)) == "B0"
    assert first.work() == ""
