"""One stage of a simulated run: computations that take longer, and a node that stalls."""

import pytest

from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun

STAGE = VirtualStage(forward_s=1.0, backward_s=2.0)
FLEET = VirtualFleet(clusters=(VirtualCluster("c0", 4, (STAGE, STAGE)),), update_every=2, max_staleness=1)


def test_slowness_lengthens_every_computation_and_is_counted() -> None:
    run = VirtualRun(FLEET, slowness={"c0.s1": lambda: 1.5}.get)
    result = run.run(stop_samples=8)
    slow, usual = run.stages["c0.s1"], run.stages["c0.s0"]
    computed = [event for event in result.trace if event.who == "c0.s1" and event.kind == "compute"]
    assert {round(event.end_s - event.start_s, 9) for event in computed} == {0.0, 1.5, 3.0}
    spent = result.seconds["c0.s1"]
    assert slow.late_s == pytest.approx((spent["forward"] + spent["backward"]) / 3)
    assert usual.late_s == 0.0


def test_a_computation_ends_later_by_as_long_as_its_node_stalled() -> None:
    plain, stalled = VirtualRun(FLEET), VirtualRun(FLEET)
    stall = (0.5, lambda for_s: stalled.stages["c0.s1"].stall(for_s), 10.0)
    first, second = plain.run(stop_samples=8), stalled.run(stop_samples=8, doing=[stall])
    assert second.end_s == pytest.approx(first.end_s + 10.0, abs=1.0)
    assert sum(stalled.stages["c0.s1"].stalled_s.values()) == 10.0
    assert stalled.stages["c0.s0"].stalled_s == {}


def test_a_node_that_stalls_hears_nothing_until_it_goes_on_and_then_in_order() -> None:
    run = VirtualRun(FLEET)
    stage, heard = run.stages["c0.s0"], []

    def hear(word: str) -> None:
        heard.append((word, run.clock.now_s))

    assert stage.receive(hear, "at once")
    assert stage.stall(3.0)
    assert not stage.stall(1.0)
    assert not stage.receive(hear, "first")
    assert not stage.receive(hear, "second")
    assert heard == []
    run.clock.run()
    assert heard == [("first", 3.0), ("second", 3.0)]
    assert stage.stall(1.0)
