import json
from pathlib import Path

import pytest

from ravnest.driver.observe.trace import RunTrace
from ravnest.errors import RunFailed
from ravnest.stage import messages as m
from ravnest.stage.reports import COMPUTE, NETWORK, lane_of

NODES = {"a.s0": "desk", "a.s1": "laptop", "b.s0": "tower"}


def piece(*spans, dropped=0):
    lanes, kinds, numbers, began_s, ended_s = zip(*spans, strict=True)
    return m.Spans(lanes=lanes, kinds=kinds, numbers=numbers, began_s=began_s, ended_s=ended_s, dropped=dropped)


def drawn(trace, phase):
    return [event for event in trace.events() if event["ph"] == phase]


def slices(trace):
    return [(each["pid"], each["tid"], each["name"], each["ts"], each["dur"]) for each in drawn(trace, "X")]


def test_a_row_a_stage_and_a_thread_a_lane():
    trace = RunTrace(NODES)
    trace.take("a.s0", piece((COMPUTE, "forward", 3, 10.0, 10.5), (NETWORK, "send activation", 3, 10.5, 10.625)))
    trace.take("b.s0", piece((COMPUTE, "window", -1, 11.0, 12.0), (lane_of(2), "in flight", 7, 11.0, 11.5)))
    assert slices(trace) == [
        (1, 0, "forward 3", 0.0, 5e5),
        (1, 1, "send activation 3", 5e5, 1.25e5),
        (3, 0, "waits: window", 1e6, 1e6),
        (3, 202, "round 7 in flight", 1e6, 5e5),
    ]
    names = {(each["name"], each["pid"], each["tid"]): each["args"].get("name") for each in drawn(trace, "M")}
    assert names["process_name", 1, 0] == "a.s0 on desk"
    assert names["process_name", 2, 0] == "a.s1 on laptop"  # it told nothing, and has a row
    assert names["thread_name", 3, 202] == "averaging: ring 2"
    assert names["thread_name", 1, 1] == "network"


def test_arrows_follow_a_micro_batch_through_the_stages_of_its_cluster_and_back():
    trace = RunTrace(NODES)
    trace.take("a.s0", piece((COMPUTE, "forward", 0, 0.0, 1.0), (COMPUTE, "backward", 0, 4.0, 5.0)))
    trace.take("a.s1", piece((COMPUTE, "forward", 0, 1.0, 2.0), (COMPUTE, "backward", 0, 2.0, 4.0)))
    trace.take("b.s0", piece((COMPUTE, "forward", 0, 0.0, 1.0), (COMPUTE, "forward", 1, 1.0, 2.0)))
    arrows = [(each["ph"], each["pid"], each["ts"]) for each in trace.events() if each.get("cat") == "way"]
    assert arrows == [("s", 1, 5e5), ("t", 2, 1.5e6), ("t", 2, 3e6), ("f", 1, 4.5e6)]


def test_rounds_that_overlap_lie_side_by_side():
    trace = RunTrace(NODES)
    rounds = [("in flight", 1, 0.0, 2.0), ("in flight", 2, 1.0, 3.0), ("finished", 1, 2.0, 4.0)]
    rounds += [("finished", 2, 3.0, 5.0), ("in flight", 3, 4.0, 6.0)]
    trace.take("a.s0", piece(*((lane_of(0), *each) for each in rounds)))
    assert [(name, thread) for _, thread, name, _, _ in slices(trace)] == [
        ("round 1 in flight", 2),
        ("round 2 in flight", 3),
        ("round 1 finished", 2),
        ("round 2 finished", 3),
        ("round 3 in flight", 2),
    ]


def test_a_stages_times_are_moved_to_the_drivers_clock():
    trace = RunTrace(NODES)
    trace.heard("a.s1", m.Alive(), 5.0)  # before it has heard the driver
    trace.heard("a.s1", m.Alive(sent_s=1000.5, echo_s=5.0, heard_s=1000.0), 5.5)
    trace.take("a.s0", piece((COMPUTE, "forward", 0, 6.0, 7.0)))
    trace.take("a.s1", piece((COMPUTE, "forward", 0, 1002.0, 1003.0)))
    assert [(each[0], each[3]) for each in slices(trace)] == [(1, 0.0), (2, 1e6)]
    (clock,) = [each["args"] for each in drawn(trace, "M") if each["args"].get("name") == "a.s1 on laptop"]
    assert (clock["clock_offset_s"], clock["clock_error_s"]) == (995.0, 0.0)


def test_the_file_is_json_whole_even_when_nothing_was_told(tmp_path: Path):
    empty = RunTrace({})
    empty.write(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"] == []
    trace = RunTrace(NODES)
    trace.take("a.s0", piece((COMPUTE, "forward", 0, 6.0, 7.0), dropped=12))
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [each["name"] for each in events if each["ph"] == "X"] == ["forward 0"]
    assert trace.dropped == 12


def test_columns_of_unequal_length_are_no_timeline():
    torn = m.Spans(lanes=(0,), kinds=(), numbers=(1,), began_s=(0.0,), ended_s=(1.0,), dropped=0)
    with pytest.raises(RunFailed, match=r"a\.s0 sent a piece of its timeline"):
        RunTrace(NODES).take("a.s0", torn)
