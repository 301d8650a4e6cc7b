"""When a backward is split: the controller alone, and what it gains in the virtual clock."""

import pytest

from cluster_planner import Schedule
from ravnest.pipeline import events as ev
from ravnest.pipeline.controllers import PROBE, REVIEW, BackwardTimes, SplitTuner
from ravnest.pipeline.stage_shape import StageShape
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.trace import VirtualResult
from ring_allreduce.transport import LinkShape
from tests.unit.ravnest.pipeline.bench import Bench, activations, gradients


def times(cost_s: float = 0.0, busy_s: float = 3.0, behind_s: float = 0.0, *, probed: bool = True) -> BackwardTimes:
    """A backward of 2 s that sends after 1 s when it is split, and then takes `cost_s` longer in all."""
    return BackwardTimes(2.0, 1.0 if probed else 0.0, 1.0 + cost_s if probed else 0.0, busy_s, behind_s)


def decided(period_s: float, *, synchronous: bool = False, update_every: int = 1, **given: float) -> bool:
    """What a tuner decides after having tried both ways, one micro-batch each `period_s`."""
    tuner = SplitTuner("auto", update_every, synchronous=synchronous)
    now_s, news = 0.0, []
    while len(news) < 2:
        now_s += period_s
        if tuner.take(now_s, times(probed=bool(news), **given)):
            news.append(tuner.splits)
    assert news[0], "it tries the other way first"
    assert now_s == pytest.approx((2 * max(PROBE, update_every) + 1) * period_s)
    return tuner.splits


def test_it_pays_where_the_round_trip_limits_and_the_stage_idles() -> None:
    assert decided(6.0)
    assert decided(6.0, cost_s=0.5)
    assert not decided(3.0)  # this stage is the slowest
    assert not decided(6.0, behind_s=6.0)  # another is
    assert not decided(6.0, busy_s=5.95, cost_s=0.5)  # with its cost, this stage would be


def test_a_synchronous_stage_splits_where_an_update_gains_more_than_its_micro_batches_cost() -> None:
    assert decided(6.0, synchronous=True, update_every=8, cost_s=0.1)
    assert not decided(6.0, synchronous=True, update_every=8, cost_s=0.15)


def test_it_looks_again_and_changes_its_mind_both_ways() -> None:
    tuner = SplitTuner("auto", 1, synchronous=False)
    now_s = 0.0
    seen = []
    for period_s in (6.0, 3.0, 6.0):
        for _ in range(2 * REVIEW):
            now_s += period_s
            if tuner.take(now_s, times(probed=tuner.splits or bool(seen))):
                seen.append(tuner.splits)
    assert seen == [True, True, False, True]


@pytest.mark.parametrize("mode", ["always", "never"])
def test_who_need_not_measure_says_so_once(mode: str) -> None:
    tuner = SplitTuner(mode, 4, synchronous=False)  # type: ignore[arg-type]
    news = [tuner.take(float(i), times()) for i in range(3)]
    assert news == [mode == "always", False, False]
    assert tuner.splits == (mode == "always")


def bench(**shape: int | bool) -> Bench:
    machine = Bench(3, 1, **{"update_every": 3, "room": 8, **shape})
    machine.tell(ev.SplitChanged(True))
    return machine


def test_input_gradients_go_first_and_weight_gradients_fill_the_gap() -> None:
    stage = bench()
    assert stage.tell(*activations(0, 1)) == "F0"
    assert stage.work() == "SA0 F1 SA1"
    assert stage.tell(*gradients(0)) == "I0"
    assert stage.tell(*activations(2)) == ""
    assert stage.work(1) == "SG0 F2"  # a forward comes before weight gradients
    assert stage.tell(*gradients(1)) == ""
    assert stage.work() == "SA2 I1 SG1 W0 W1"
    assert stage.tell(*gradients(2)) == "I2"
    assert stage.tell(*activations(3)) == ""
    assert stage.work() == "SG2 W2 U0 F3 SA3"  # the update before any forward, its weight gradients before it


def test_the_end_of_a_group_is_whole_where_gradients_are_clipped() -> None:
    stage = bench(clip=True)
    stage.tell(*activations(0, 1, 2))
    stage.work()
    stage.tell(*gradients(0))
    stage.tell(ev.GradientArrived(1), ev.GradientArrived(2, None, 5.0))
    assert stage.work(norm_sq=4.0) == "SG0 I1 SG1 W0 W1 B2 SG2|9.0 U0"


def test_room_bounds_what_waits() -> None:
    stage = bench(room=3)
    stage.tell(*activations(0, 1, 2))
    assert stage.work() == "SA0 F1 SA1 F2 SA2"
    stage.tell(*gradients(0, 1, 2))
    # Three in flight leave no room: the first backward is whole. Then two and what a split one keeps fit at a time.
    assert stage.work() == "SG0 I1 SG1 W1 I2 SG2 W2 U0"


def test_only_a_stage_with_room_splits() -> None:
    stage = Bench(3, 1)
    assert "FAIL" in stage.tell(ev.SplitChanged(True))
    with pytest.raises(ValueError, match="first stage"):
        StageShape(2, 0, 1, 1, 1, 1, room=4)


def fleet(latency_s: float, *, window: int, schedule: Schedule = "async", **rest: object) -> VirtualFleet:
    stage = VirtualStage(forward_s=0.010, backward_s=0.020, input_gradients_s=0.010, weight_gradients_s=0.012)
    values: dict[str, object] = {"update_every": 8, "max_staleness": int(schedule == "async"), **rest}
    return VirtualFleet(
        clusters=(VirtualCluster("c0", window, (stage,) * 4),),
        default_link=LinkShape(bytes_per_s=1e9, latency_s=latency_s),
        schedule=schedule,
        **values,  # type: ignore[arg-type]
    )


def rate(result: VirtualResult) -> float:
    return result.samples_per_s(result.drain_s / 2, result.drain_s)


def test_where_the_window_is_too_small_a_split_backward_brings_throughput() -> None:
    whole = VirtualRun(fleet(0.020, window=4)).run(2000)
    split = VirtualRun(fleet(0.020, window=4, split_backward="auto")).run(2000)
    # Round trips of 120 ms and 120 ms of compute, of which three stages save 10 ms each.
    assert rate(split) / rate(whole) == pytest.approx(240 / 210, rel=0.03)


def test_where_the_slowest_stage_is_busy_auto_leaves_backwards_whole() -> None:
    filled = VirtualRun(fleet(0.001, window=16, split_backward="auto")).run(4000)
    whole = VirtualRun(fleet(0.001, window=16)).run(4000)
    assert rate(filled) == pytest.approx(rate(whole), rel=0.01)
    always = VirtualRun(fleet(0.001, window=16, split_backward="always")).run(4000)
    assert rate(always) == pytest.approx(rate(whole) * 30 / 32, rel=0.01)


def test_a_flush_is_shorter_with_split_backwards() -> None:
    whole = VirtualRun(fleet(0.0, window=4, schedule="1f1b", update_every=4)).run(400)
    split = VirtualRun(fleet(0.0, window=4, schedule="1f1b", update_every=4, split_backward="always")).run(400)
    assert split.drain_s < 0.93 * whole.drain_s
