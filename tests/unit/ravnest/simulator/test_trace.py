"""What a trace says of a simulated run, by hand."""

import pytest

from ravnest.simulator.clock import VirtualClock
from ravnest.simulator.trace import TraceEvent, VirtualResult, VirtualTrace


def test_figures_are_read_off_the_trace() -> None:
    trace = (
        TraceEvent(0.0, 1.0, "c0.s0", "F0", "compute"),
        TraceEvent(1.0, 3.0, "c0.s0", "B0", "compute"),
        TraceEvent(1.0, 4.0, "c0.s1", "B0", "compute"),
        TraceEvent(3.0, 3.5, "c0.s0", "chunk:ring0@r1:scatter:0-4", "message"),
        TraceEvent(4.0, 6.0, "c1.s0", "B0", "compute"),
    )
    staleness = {"c0.s0": {0: 1, 1: 2}, "c0.s1": {1: 3}}
    result = VirtualResult(trace, micro_batch=8, drain_s=6.0, end_s=6.0, staleness=staleness, seconds={})
    assert result.instructions("c0.s0") == "F0 B0"
    assert result.busy_share("c0.s0", 0.0, 4.0) == pytest.approx(0.75)
    assert result.samples_per_s(0.0, 4.0) == pytest.approx(8 / 4)  # the backward of c0.s1 is not the last one
    assert result.samples_per_s(0.0, 8.0) == pytest.approx(16 / 8)
    assert result.samples_per_s(0.0, 8.0, cluster="c1") == pytest.approx(8 / 8)
    assert result.fleet_staleness() == {0: 1, 1: 5}


def test_a_message_lasts_until_its_arrival() -> None:
    clock, arrived = VirtualClock(), []
    trace = VirtualTrace(clock)
    action, argument = trace.sent("c0.s0", "SA0", arrived.append, "activation")
    clock.at(2.5, action, argument)
    clock.run()
    assert arrived == ["activation"]
    assert trace.events == (TraceEvent(0.0, 2.5, "c0.s0", "SA0", "message"),)
