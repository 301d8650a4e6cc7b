"""Imitated downlinks: one rate for all senders, nothing sooner than its bytes, PIPELINE before BULK that waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.transport.emulation.links import EmulatedDownlink
from ring_allreduce.transport.stats import Lane

PIPELINE, BULK = Lane.PIPELINE, Lane.BULK

messages = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 0.35, 2.0, 9.0]),  # since the one before
        st.sampled_from(list(Lane)),
        st.integers(0, 500),
        st.sampled_from([20.0, 100.0, 1000.0, float("inf")]),
    ),
    max_size=40,
)


def drain(downlink, until=1e9):
    arrivals = []
    while (due := downlink.next_due_s()) is not None and due <= until:
        arrivals += downlink.pop_arrived(due)
    return arrivals


def test_a_message_slower_than_the_downlink_is_in_with_its_last_byte():
    downlink = EmulatedDownlink(100.0)
    downlink.push(BULK, "x", 100, 10.0, 50.0)
    assert drain(downlink) == [(10.0, BULK, "x")]


def test_a_message_faster_than_the_downlink_takes_the_downlink_s_time_from_its_first_byte():
    downlink = EmulatedDownlink(100.0)
    downlink.push(PIPELINE, "x", 100, 10.0, 200.0)
    assert drain(downlink) == [(10.5, PIPELINE, "x")]


def test_two_senders_share_one_downlink():
    downlink = EmulatedDownlink(100.0)
    for number in range(3):
        for sender in "ab":
            downlink.push(BULK, (sender, number), 100, number + 1.0, 100.0)  # each as fast as the downlink
    assert [at_s for at_s, *_ in drain(downlink)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_two_senders_that_are_half_as_fast_do_not_wait():
    downlink = EmulatedDownlink(100.0)
    for number in range(3):
        for sender in "ab":
            downlink.push(BULK, (sender, number), 100, 2.0 * (number + 1), 50.0)
    assert [at_s for at_s, *_ in drain(downlink)] == [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]


def test_a_short_message_in_the_midst_of_a_long_one_keeps_it_from_little():
    downlink = EmulatedDownlink(100.0)
    downlink.push(PIPELINE, "short", 1, 9.0, 100.0)
    downlink.push(PIPELINE, "long", 1000, 10.0, 100.0)
    assert drain(downlink) == [(9.0, PIPELINE, "short"), (pytest.approx(10.01), PIPELINE, "long")]


def test_pipeline_goes_before_bulk_that_waits():
    downlink = EmulatedDownlink(100.0)
    for item in "xyz":
        downlink.push(BULK, item, 100, 1.0, 100.0)
    downlink.push(PIPELINE, "p", 100, 1.5, 100.0)
    assert [(at_s, item) for at_s, _, item in drain(downlink)] == [(1.0, "x"), (2.0, "y"), (3.0, "p"), (4.0, "z")]


def test_an_endless_downlink_keeps_nothing_waiting():
    downlink = EmulatedDownlink(float("inf"))
    for at_s in (1.0, 1.0, 2.0):
        downlink.push(BULK, at_s, 10**9, at_s, 1e6)
    assert [at_s for at_s, *_ in drain(downlink)] == [1.0, 1.0, 2.0]


def test_another_rate_holds_for_what_waits():
    downlink = EmulatedDownlink(100.0)
    for item in "xyz":
        downlink.push(BULK, item, 100, 1.0, 100.0)
    downlink.change(1.5, 50.0)
    assert [(at_s, item) for at_s, _, item in drain(downlink)] == [(1.0, "x"), (2.0, "y"), (4.0, "z")]


@given(messages, st.sampled_from([50.0, 100.0, 1000.0]))
def test_nothing_is_sooner_than_its_bytes_nor_lost_and_the_rate_is_never_exceeded(traffic, down):
    downlink = EmulatedDownlink(down)
    now_s, came_s, arrivals, total = 0.0, [], [], 0
    for number, (gap_s, lane, n_bytes, rate) in enumerate(traffic):
        now_s += gap_s
        if number % 3 == 0:
            arrivals += downlink.pop_arrived(now_s)
        downlink.push(lane, number, n_bytes, now_s, rate)
        came_s.append((now_s, n_bytes, rate))
        total += n_bytes
    arrivals += drain(downlink)
    assert [at_s for at_s, *_ in arrivals] == sorted(at_s for at_s, *_ in arrivals)
    assert sorted(number for *_, number in arrivals) == list(range(len(traffic)))
    for lane in Lane:
        numbers = [number for _, on, number in arrivals if on is lane]
        assert numbers == sorted(numbers)
    for at_s, _, number in arrivals:
        last_s, n_bytes, rate = came_s[number]
        assert at_s >= max(last_s, last_s - n_bytes / rate + n_bytes / down) - 1e-9
    began_s = min((last_s - n_bytes / rate for last_s, n_bytes, rate in came_s), default=0.0)
    carried = 0
    for at_s, _, number in arrivals:
        carried += came_s[number][1]
        assert carried <= down * (at_s - began_s) + 1e-6
    if arrivals:
        assert arrivals[-1][0] <= now_s + total / down + 1e-9


def test_what_enters_at_once_is_in_when_a_pushed_one_would_be_and_what_waits_is_given_back() -> None:
    pushed, at_once = EmulatedDownlink[str](100.0), EmulatedDownlink[str](100.0)
    pushed.push(Lane.BULK, "one", 100, 5.0, 1000.0)
    ((in_s, *_),) = pushed.pop_begun(5.0)
    assert at_once.enter(Lane.BULK, "one", 100, 5.0, 1000.0) == in_s
    assert at_once.enter(Lane.BULK, "two", 100, 5.5, 1000.0) is None
    pushed.push(Lane.BULK, "two", 100, 5.5, 1000.0)
    assert pushed.pop_begun(in_s) == at_once.pop_begun(in_s) != []
