import math

from ravnest.driver.observe.metrics_file import event_of
from ravnest.driver.observe.place_events import NodeSlowEvent, ProgressHandedOnEvent, joined, replanned
from ravnest.driver.observe.report import as_plain, kind_of
from ravnest.recovery import Nodes, Place, StartCluster, place
from tests.support.local import setups_of, tiny_job


def test_an_order_is_told_with_what_is_predicted_of_it() -> None:
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    first, _ = (stage.node for stage in plan.cluster("c0").stages)
    found = place(plan, "c0", Nodes([first]), ["c1"])
    assert isinstance(found, Place)
    event = replanned(StartCluster("c0", found.placement, found.reason, 100.0))
    assert event.nodes == {"c0.s0": first}
    assert event.units == {"c0.s0": (0, len(plan.costs.units))}
    assert event.gained == round(found.placement.gained(100.0))
    assert replanned(StartCluster("c0", found.placement, found.reason, math.inf)).gained is None


def test_events_come_back_from_their_lines() -> None:
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    events = joined(plan.fleet.nodes[0], known=True, why="its hours"), NodeSlowEvent("desk", "c0.s0", 3.0)
    for event in (*events, ProgressHandedOnEvent("c1", "c0", 96)):
        assert event_of({"kind": kind_of(event), "at_s": 1.0, **as_plain(event)}) == event
