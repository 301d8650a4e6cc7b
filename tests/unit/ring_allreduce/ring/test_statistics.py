"""What rings cost, and how fast hops are, on links of a known rate."""

import pytest
import torch

from ring_allreduce.ring.statistics import Burst, RingStatistics, added
from ring_allreduce.transport.emulation.links import LinkShape
from tests.unit.ring_allreduce.fleet import Fleet, spec


def test_a_burst_is_timed_from_the_end_of_its_first_chunk():
    burst = Burst()
    assert burst.add(1000, 5.0) is None
    assert burst.add(1000, 5.0) is None, "in no time at all nothing is measured"
    assert burst.add(1000, 5.5) == 4000.0


def test_share_of_a_link():
    assert RingStatistics().share_of(1e6) == 0.0
    assert RingStatistics(seconds=5.0, under_way_s=2.0, bytes_sent=1500).share_of(1000.0) == 0.75


def test_rounds_that_overlap_count_once():
    stats = RingStatistics()
    stats.finish(5.0, 0.0, 8.0)  # a round that began at 0 goes on
    assert (stats.seconds, stats.under_way_s) == (3.0, 8.0)
    stats.finish(0.0, 0.0, 10.0)
    assert (stats.seconds, stats.under_way_s) == (13.0, 10.0)
    stats.finish(20.0, 20.0, 21.0)
    assert (stats.rounds, stats.seconds, stats.under_way_s) == (3, 14.0, 11.0)


def test_rounds_in_flight_on_a_busy_link_take_nearly_all_of_it():
    clock, names, rate, last = [0.0], "abc", 1e5, 12
    links = {(a, b): LinkShape(rate, 0.2) for a in names for b in names if a != b}
    fleet = Fleet([spec(members=names, elements=30_000, chunk=1000)], max_rounds=3, now=lambda: clock[0], links=links)
    begun, committed, done = dict.fromkeys(names, 0), 0, dict.fromkeys(names, 0)
    while committed < last:
        for name in names:
            reducer = fleet.reducers[name]
            while begun[name] < min(last, committed + 3):
                begun[name] += 1
                reducer.contribute(begun[name], "r", torch.ones(30_000), 1.0)
            for delivery in fleet.endpoints[name].poll(0.0):
                reducer.on_delivery(delivery)
            reducer.pump()
            done[name] += len(reducer.finished())
        while committed < min(done.values()):
            committed += 1
            for reducer in fleet.reducers.values():
                reducer.commit(committed)
        clock[0] = max(clock[0], fleet.network.next_due_s() or 0.0)
    stats = fleet.reducers["a"].stats["r"]
    assert stats.share_of(rate) == pytest.approx(stats.bytes_sent / clock[0] / rate, rel=0.05)
    assert stats.share_of(rate) > 0.9


@pytest.mark.parametrize("direct", [False, True])
def test_a_hop_is_measured_by_whom_it_leads_to(direct):
    clock = [0.0]
    slow, fast = LinkShape(bytes_per_s=1e6, latency_s=0.05), LinkShape(bytes_per_s=4e6, latency_s=0.05)
    links = {("a", "b"): slow, ("b", "a"): fast}
    ring = spec(members="ab", elements=100_000, chunk=8192, direct=direct)
    fleet = Fleet([ring], now=lambda: clock[0], links=links)
    for name in "ab":
        fleet.reducers[name].contribute(1, "r", torch.ones(100_000), 1.0)
    while (due := fleet.network.next_due_s()) is not None:
        clock[0] = due
        fleet.turn("a")
        fleet.turn("b")
    at_a, at_b = (fleet.reducers[name].stats["r"] for name in "ab")
    assert at_b.hops["a"] == pytest.approx(1e6, rel=0.02)
    assert at_a.hops["b"] == pytest.approx(4e6, rel=0.02)
    assert at_a.rounds == at_b.rounds == 1
    assert at_a.bytes_sent == at_b.bytes_received == 400_000
    assert at_b.seconds == pytest.approx(0.45, rel=0.15)
    assert at_a.share_of(1e6) == pytest.approx(0.4 / at_a.seconds)


def test_two_add_up_and_the_newer_rate_of_a_hop_counts():
    before = RingStatistics(1, 2.0, 3, 4, {"a": 5.0, "b": 6.0}, 1.5)
    both = added(before, RingStatistics(10, 20.0, 30, 40, {"b": 7.0}, 15.0))
    assert both == RingStatistics(11, 22.0, 33, 44, {"a": 5.0, "b": 7.0}, 16.5)
    assert before == RingStatistics(1, 2.0, 3, 4, {"a": 5.0, "b": 6.0}, 1.5)
