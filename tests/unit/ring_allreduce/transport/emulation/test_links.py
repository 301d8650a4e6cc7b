"""Imitated uplinks and links: exact times, one rate for all lanes and peers, PIPELINE first, order within a lane."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.emulation.links import EmulatedUplink, LinkShape, NodeShape
from ring_allreduce.transport.stats import Lane

INFINITE = float("inf")
PIPELINE, BULK = Lane.PIPELINE, Lane.BULK

rates = st.sampled_from([50.0, 100.0, 333.0, 1000.0, INFINITE])
messages = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.35, 2.0]),  # since the one before
        st.sampled_from("abc"),
        st.sampled_from(list(Lane)),
        st.integers(0, 500),
    ),
    max_size=40,
)


def drain(link, until=1e9):
    """All arrivals as (time, peer, lane, item), stepping from due time to due time."""
    arrivals = []
    while (due := link.next_due_s()) is not None and due <= until:
        arrivals += link.pop_arrived(due)
    return arrivals


def one_link(shape, up=INFINITE, seed=""):
    return EmulatedUplink(up, {"a": shape}, seed=seed)


def test_a_single_message_takes_the_slowest_rate_and_the_latency():
    for up, link in ((100.0, 50.0), (50.0, 100.0), (50.0, 50.0)):
        uplink = one_link(LinkShape(link, 2.0), up)
        uplink.push("a", BULK, "x", 100, 10.0)
        assert uplink.queued("a", BULK) == 1
        assert drain(uplink) == [(14.0, "a", BULK, "x")]
        assert uplink.queued("a", BULK) == 0


def test_messages_follow_each_other_at_the_link_s_rate():
    uplink = one_link(LinkShape(100.0, 2.0))
    uplink.push("a", BULK, "x", 50, 10.0)
    uplink.push("a", BULK, "y", 100, 10.0)
    assert [(at_s, item) for at_s, _, _, item in drain(uplink)] == [(12.5, "x"), (13.5, "y")]


def test_a_link_that_was_idle_starts_at_once():
    uplink = one_link(LinkShape(100.0, 0.0))
    uplink.push("a", BULK, "x", 100, 0.0)
    assert drain(uplink) == [(1.0, "a", BULK, "x")]
    uplink.push("a", BULK, "y", 100, 50.0)
    assert drain(uplink) == [(51.0, "a", BULK, "y")]


def test_two_peers_share_one_uplink():
    uplink = EmulatedUplink(100.0, {"a": LinkShape(1000.0, 0.5), "b": LinkShape(1000.0, 0.0)})
    for item in range(4):
        uplink.push("ab"[item % 2], BULK, item, 100, 0.0)
    assert drain(uplink) == [
        (1.5, "a", BULK, 0),
        (2.0, "b", BULK, 1),
        (3.5, "a", BULK, 2),
        (4.0, "b", BULK, 3),
    ]


def test_a_slow_link_does_not_keep_the_uplink_from_other_peers():
    uplink = EmulatedUplink(100.0, {"a": LinkShape(10.0, 0.0), "b": LinkShape(100.0, 0.0)})
    for peer in "aab":
        uplink.push(peer, BULK, peer, 100, 0.0)
    # The first takes the uplink for 1 s and its link for 10 s; the second waits for that link.
    assert drain(uplink) == [(2.0, "b", BULK, "b"), (10.0, "a", BULK, "a"), (20.0, "a", BULK, "a")]


def test_pipeline_waits_for_no_more_than_the_chunk_that_is_leaving():
    uplink = EmulatedUplink(100.0, {peer: LinkShape(100.0, 0.0) for peer in "ab"})
    for item in "xyz":
        uplink.push("a", BULK, item, 100, 0.0)
    uplink.push("b", PIPELINE, "p", 10, 0.5)
    assert [(at_s, item) for at_s, _, _, item in drain(uplink)] == [(1.0, "x"), (1.1, "p"), (2.1, "y"), (3.1, "z")]


def test_late_polls_change_no_times():
    prompt, late = (one_link(LinkShape(100.0, 1.0)) for _ in range(2))
    for uplink in (prompt, late):
        uplink.push("a", BULK, "x", 100, 0.0)
        uplink.push("a", PIPELINE, "p", 100, 0.5)
        uplink.push("a", BULK, "y", 100, 0.6)
    arrivals = drain(prompt)
    assert [item for *_, item in arrivals] == ["x", "p", "y"]
    assert late.pop_arrived(3.9) == arrivals[:2]
    assert late.pop_arrived(100.0) == arrivals[2:]


def test_rates_change_for_what_has_not_left():
    uplink = one_link(LinkShape(100.0, 1.0))
    for item in "xyz":
        uplink.push("a", BULK, item, 100, 0.0)
    uplink.change(1.5, links={"a": LinkShape(50.0, 0.0)})
    assert [(at_s, item) for at_s, _, _, item in drain(uplink)] == [(2.0, "x"), (3.0, "y"), (4.0, "z")]
    uplink.change(10.0, up_bytes_per_s=10.0)
    uplink.push("a", BULK, "w", 100, 10.0)
    assert drain(uplink) == [(20.0, "a", BULK, "w")]


def test_what_is_forgotten_does_not_arrive():
    uplink = EmulatedUplink(100.0, {peer: LinkShape(100.0, 1.0) for peer in "ab"})
    for peer in "aabb":
        uplink.push(peer, BULK, peer, 100, 0.0)
    uplink.forget("a")
    assert uplink.queued("a", BULK) == 0
    assert [item for *_, item in drain(uplink)] == ["b", "b"]


@given(messages, rates, rates, st.sampled_from([0.0, 3.0]))
def test_nothing_is_faster_than_its_rates_nor_lost_nor_out_of_order(traffic, up, rate, jitter_s):
    uplink = EmulatedUplink(
        up, {"a": LinkShape(rate, 0.25, jitter_s), "b": LinkShape(80.0, 0.0), "c": LinkShape(1e3, 1.0)}
    )
    shapes = {"a": (rate, 0.25), "b": (80.0, 0.0), "c": (1e3, 1.0)}
    known, arrivals = [], []
    now_s = 0.0
    for number, (gap_s, peer, lane, n_bytes) in enumerate(traffic):
        now_s += gap_s
        if number % 3 == 0:
            arrivals += uplink.pop_arrived(now_s)
        uplink.push(peer, lane, number, n_bytes, now_s)
        known.append((now_s, n_bytes))
    arrivals += drain(uplink)
    assert [at_s for at_s, *_ in arrivals] == sorted(at_s for at_s, *_ in arrivals)
    assert sorted(number for *_, number in arrivals) == list(range(len(traffic)))
    assert uplink.next_due_s() is None
    for at_s, peer, _, number in arrivals:
        since_s, n_bytes = known[number]
        link, latency_s = shapes[peer]
        assert at_s >= since_s + n_bytes / min(up, link) + latency_s - 1e-9
    for peer in "abc":
        for lane in Lane:
            numbers = [number for _, to, on, number in arrivals if (to, on) == (peer, lane)]
            assert numbers == sorted(numbers)
            assert uplink.queued(peer, lane) == 0


@given(messages, st.sampled_from([50.0, 100.0, 333.0]))
def test_an_uplink_never_carries_more_than_its_rate_and_is_not_idle_while_anything_waits(traffic, up):
    uplink = EmulatedUplink(up, {peer: LinkShape(INFINITE, 0.0) for peer in "abc"})
    now_s = free_s = 0.0
    for gap_s, peer, lane, n_bytes in traffic:
        now_s += gap_s
        uplink.push(peer, lane, n_bytes, n_bytes, now_s)
        free_s = max(now_s, free_s) + n_bytes / up  # of one queue that is always served
    out = [(at_s, n_bytes) for at_s, _, _, n_bytes in drain(uplink)]
    for first, (from_s, _) in enumerate(out):
        carried = 0
        for at_s, n_bytes in out[first + 1 :]:
            carried += n_bytes if at_s > from_s else 0
            assert carried <= up * (at_s - from_s) + 1e-6
    if out:
        assert out[-1][0] == pytest.approx(free_s)


def test_jitter_is_seeded_and_of_each_link_its_own():
    def times(seed, peer="a"):
        uplink = EmulatedUplink(INFINITE, {each: LinkShape(1e6, 0.1, 0.5) for each in "ab"}, seed=seed)
        for i in range(5):
            uplink.push(peer, BULK, i, 1, float(i))
        return [at_s for at_s, *_ in drain(uplink)]

    assert times("x") == times("x")
    assert times("x") != times("y")
    assert times("x") != times("x", "b")


@pytest.mark.parametrize("bad", [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (math.nan, 0.0), (1.0, 0.0, -1.0)])
def test_refuses_impossible_shapes(bad):
    with pytest.raises(InvalidInput):
        LinkShape(*bad)


@pytest.mark.parametrize("bad", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, 1.0, {"a": 0.0})])
def test_refuses_impossible_nodes(bad):
    with pytest.raises(InvalidInput):
        NodeShape(*bad)


def test_what_leaves_at_once_is_there_when_a_pushed_one_would_be_and_else_it_has_no_effect() -> None:
    shape = {"b": LinkShape(1000.0, 0.5, 0.1)}
    pushed, at_once = (EmulatedUplink[str](2000.0, shape, seed="s") for _ in range(2))
    pushed.push("b", Lane.BULK, "one", 100, 1.0)
    ((there_s, *_),) = pushed.pop_left(1.0)
    assert at_once.leave_at_once("b", Lane.BULK, 100, 1.0) == there_s
    assert at_once.leave_at_once("b", Lane.BULK, 100, 1.05) is None  # the link is free at 1.1
    for uplink in (pushed, at_once):
        uplink.push("b", Lane.BULK, "two", 100, 1.05)
    assert pushed.pop_left(1.1) == at_once.pop_left(1.1) != []
