"""Emulated links: exact times, one rate for both lanes, PIPELINE first, order within a lane."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.emulation import EmulatedLink, LinkShape
from ring_allreduce.transport.stats import Lane


def drain(link, until=1e9):
    """All arrivals as (time, lane, item), stepping from due time to due time."""
    arrivals = []
    while (due := link.next_due_s()) is not None and due <= until:
        arrivals += [(due, lane, item) for lane, item in link.pop_arrived(due)]
    return arrivals


def test_leaves_at_its_rate_and_arrives_later():
    link = EmulatedLink(LinkShape(100.0, 2.0))
    link.push(Lane.BULK, "x", 50, 10.0)
    link.push(Lane.BULK, "y", 100, 10.0)
    assert link.queued(Lane.BULK) == 2
    assert drain(link) == [(12.5, Lane.BULK, "x"), (13.5, Lane.BULK, "y")]
    assert link.queued(Lane.BULK) == 0


def test_a_link_that_was_idle_starts_at_once():
    link = EmulatedLink(LinkShape(100.0, 0.0))
    link.push(Lane.BULK, "x", 100, 0.0)
    assert drain(link) == [(1.0, Lane.BULK, "x")]
    link.push(Lane.BULK, "y", 100, 50.0)
    assert drain(link) == [(51.0, Lane.BULK, "y")]


def test_pipeline_waits_for_no_more_than_the_chunk_that_is_leaving():
    link = EmulatedLink(LinkShape(100.0, 0.0))
    for item in "abc":
        link.push(Lane.BULK, item, 100, 0.0)
    link.pop_arrived(0.0)
    link.push(Lane.PIPELINE, "p", 10, 0.5)
    assert [item for _, _, item in drain(link)] == ["a", "p", "b", "c"]


def test_late_polls_change_no_times():
    shape = LinkShape(100.0, 1.0)
    prompt, late = EmulatedLink(shape), EmulatedLink(shape)
    for link in (prompt, late):
        link.push(Lane.BULK, "a", 100, 0.0)
        link.push(Lane.PIPELINE, "p", 100, 0.5)
        link.push(Lane.BULK, "b", 100, 0.6)
    assert [item for _, _, item in drain(prompt)] == ["a", "p", "b"]
    assert late.pop_arrived(3.9) == [(Lane.PIPELINE, "p"), (Lane.BULK, "a")]
    assert late.next_due_s() == pytest.approx(4.0)


@given(st.integers(0, 2**32), st.floats(0.0, 3.0))
def test_order_rate_and_latency_hold_for_any_traffic(seed, jitter_s):
    chance = random.Random(seed)
    link = EmulatedLink(LinkShape(1000.0, 0.25, jitter_s), seed=str(seed))
    now, pushed, total = 0.0, {lane: [] for lane in Lane}, 0
    for i in range(30):
        now += chance.choice([0.0, 0.1, 2.0])
        lane, n_bytes = chance.choice(list(Lane)), chance.randrange(500)
        link.push(lane, (i, now), n_bytes, now)
        pushed[lane].append((i, now))
        total += n_bytes
    arrivals = drain(link)
    for lane in Lane:
        assert [item for _, where, item in arrivals if where is lane] == pushed[lane]
    assert all(time >= pushed_at + 0.25 - 1e-9 for time, _, (_, pushed_at) in arrivals)
    assert arrivals[-1][0] >= total / 1000.0 + 0.25 - 1e-9
    assert link.next_due_s() is None


def test_jitter_is_seeded():
    def times(seed):
        link = EmulatedLink(LinkShape(1e6, 0.1, 0.5), seed)
        for i in range(5):
            link.push(Lane.BULK, i, 1, float(i))
        return [time for time, _, _ in drain(link)]

    assert times("a") == times("a")
    assert times("a") != times("b")


@pytest.mark.parametrize("bad", [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (math.nan, 0.0), (1.0, 0.0, -1.0)])
def test_refuses_impossible_shapes(bad):
    with pytest.raises(InvalidInput):
        LinkShape(*bad)
