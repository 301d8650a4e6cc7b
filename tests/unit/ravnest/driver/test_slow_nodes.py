from types import SimpleNamespace
from typing import Any

from ravnest.driver.observe.place_events import NodeSlowEvent
from ravnest.driver.slow_nodes import SlowNodes
from ravnest.stage import messages as m


def test_a_node_that_computes_longer_is_told_and_may_be_planned_anew_and_waiting_does_not_count() -> None:
    told: list[Any] = []
    heard: Any = SimpleNamespace(node_slow=lambda *said: told.append(said))
    watch = SlowNodes(heard, SimpleNamespace(happened=told.append))  # type: ignore[arg-type]
    spent = {"forward": 0.0, "backward": 0.0, "input": 0.0}
    for update in range(300):
        spent["forward"] += 0.01 if update < 150 else 0.03
        spent["input"] += 0.0 if update < 100 else 5.0
        message = m.Updated(update=update, staleness=(0,), losses=(), lr=0.1, spent=dict(spent))
        watch.updated("c0.s0", "desk", message, float(update))
    event, (node, times, now_s) = told
    assert event == NodeSlowEvent("desk", "c0.s0", 3.0)
    assert (node, times) == ("desk", 3.0)
    assert now_s > 150
