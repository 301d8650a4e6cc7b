"""What may be under way to each stage: of measured links only, by the narrowest part and the longest round trip."""

import dataclasses

from cluster_planner import Link
from ravnest.driver.stage_setups import MARGIN, SPARE_BYTES, in_flight
from tests.support.local import setups_of, tiny_job


def a_plan(*links, **changes):
    """c0: n00, n01; c1: n10. `n00={...}`: other figures of that node."""
    _, plan = setups_of(tiny_job(), parts=(2, 1))
    nodes = tuple(dataclasses.replace(node, **changes.get(node.name, {})) for node in plan.fleet.nodes)
    return dataclasses.replace(plan, fleet=dataclasses.replace(plan.fleet, links=links, nodes=nodes))


def test_a_measured_link_holds_its_rate_times_the_round_trip() -> None:
    plan = a_plan(Link("n00", "n01", 0.03, 2e6, 0.02), n00={"up_bytes_per_s": 1e6}, n01={"down_bytes_per_s": 5e6})
    assert in_flight(plan, "n00") == {"c0.s1": int(MARGIN * 1e6 * 0.1) + SPARE_BYTES}
    assert set(in_flight(plan, "n01")) == {"c0.s0"}


def test_where_nothing_was_measured_nothing_is_bound() -> None:
    plan = a_plan(Link("n00", "n01", 0.03, 2e6))
    assert in_flight(plan, "n10") == {}


def test_between_nodes_of_one_host_there_is_no_router() -> None:
    plan = a_plan(Link("n00", "n01", 0.03, 2e6), n00={"host": "box"}, n01={"host": "box"})
    assert in_flight(plan, "n00") == {}
