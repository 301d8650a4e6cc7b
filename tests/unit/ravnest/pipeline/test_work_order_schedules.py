"""The synchronous schedules by example: the order of each stage, what it holds, and the bubble of the formula."""

import pytest

from ravnest.pipeline import StageShape
from ravnest.pipeline import events as ev
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.trace import VirtualResult
from ring_allreduce.transport import LinkShape
from tests.unit.ravnest.pipeline.bench import Bench, activations, gradients

EVEN = VirtualStage(forward_s=1.0, backward_s=2.0)


def synchronous(schedule: str, stages: int, micro_batches: int, latency_s: float = 0.0) -> VirtualResult:
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", 1, (EVEN,) * stages),),  # the window plays no part
        update_every=micro_batches,
        max_staleness=0,
        schedule=schedule,  # type: ignore[arg-type]
        default_link=LinkShape(bytes_per_s=1e9, latency_s=latency_s),
    )
    return VirtualRun(fleet).run(stop_samples=10 * micro_batches)


def order(result: VirtualResult, who: str) -> str:
    """A stage's computations up to its first update."""
    words = [e.instruction for e in result.trace if e.who == who and e.kind == "compute"]
    return " ".join(words[: words.index("U0") + 1])


@pytest.mark.parametrize("latency_s", [0.0, 5.0])
def test_1f1b_warms_up_with_a_forward_for_each_stage_behind_it_then_alternates(latency_s: float) -> None:
    result = synchronous("1f1b", 3, 5, latency_s)
    assert order(result, "c0.s0") == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4 U0"
    assert order(result, "c0.s1") == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 U0"
    assert order(result, "c0.s2") == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 U0"
    assert set(result.fleet_staleness()) == {0}


@pytest.mark.parametrize("latency_s", [0.0, 5.0])
def test_gpipe_runs_all_forwards_before_the_first_backward(latency_s: float) -> None:
    result = synchronous("gpipe", 3, 4, latency_s)
    for who in ("c0.s0", "c0.s1", "c0.s2"):
        assert order(result, who) == "F0 F1 F2 F3 B0 B1 B2 B3 U0"
    assert set(result.fleet_staleness()) == {0}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 4), (4, 2), (4, 4), (4, 16), (8, 16)])
def test_the_bubble_is_the_formula(schedule: str, stages: int, micro_batches: int) -> None:
    result = synchronous(schedule, stages, micro_batches)
    bubble = 1 - result.busy_share("c0.s0", 0.0, result.drain_s)
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1), rel=1e-9)


def test_a_synchronous_first_stage_heeds_no_window() -> None:
    bench = Bench(3, 0, schedule="1f1b", update_every=4, max_staleness=0, window=1)
    bench.tell(ev.WindowChanged(2))
    assert bench.work() == "SA0 F1 SA1 F2 SA2"
    assert bench.machine.in_flight == 3


def test_1f1b_waits_for_the_forward_that_is_next_though_a_backward_is_ready() -> None:
    bench = Bench(3, 1, schedule="1f1b", update_every=4, max_staleness=0)
    bench.tell(*activations(0))
    assert bench.work() == "SA0"
    assert bench.tell(*gradients(0)) == ""
    assert bench.tell(*activations(1)) == "F1"
    assert bench.work() == "SA1 B0 SG0"


def test_gpipe_waits_for_the_last_forward() -> None:
    bench = Bench(2, 1, schedule="gpipe", update_every=2, max_staleness=0)
    bench.tell(*activations(0))
    assert bench.work() == ""
    assert bench.tell(*activations(1)) == "F1"
    assert bench.work() == "B0 SG0 B1 SG1 U0"


def test_a_synchronous_schedule_admits_no_staleness() -> None:
    with pytest.raises(ValueError, match="schedule gpipe has no staleness"):
        StageShape(2, 0, update_every=2, max_staleness=1, window=2, max_lag=1, schedule="gpipe")
