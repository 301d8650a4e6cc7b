import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce.errors import InvalidInput
from ring_allreduce.rounds.deadlines import SILENCE_FLOOR_S, AwakeTime, SilenceDeadline


def heard_every(gaps_s, **arguments):
    """A deadline after signs of life with these gaps, and the time of the last."""
    deadline, now_s = SilenceDeadline(0.0, **arguments), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        deadline.heard(now_s)
    return deadline, now_s


def test_before_anything_is_measured_the_floor_counts():
    deadline = SilenceDeadline(100.0)
    assert not deadline.expired(100.0 + SILENCE_FLOOR_S)
    assert deadline.expired(100.1 + SILENCE_FLOOR_S)


def test_regular_signs_of_life_do_not_go_below_the_floor():
    deadline, now_s = heard_every([1.0] * 50)
    assert deadline.limit_s() == SILENCE_FLOOR_S
    assert not deadline.expired(now_s + SILENCE_FLOOR_S)
    assert deadline.expired(now_s + SILENCE_FLOOR_S + 0.1)


def test_a_slow_peer_is_given_a_multiple_of_its_usual_gap():
    deadline, now_s = heard_every([10.0] * 50)
    assert deadline.limit_s() == 80.0
    assert not deadline.expired(now_s + 79.0)


def test_spread_adds_to_it():
    deadline, _ = heard_every([8.0, 12.0] * 20)
    assert deadline.limit_s() == pytest.approx(8.0 * (10.0 + 2 * 2.0))


def test_one_long_gap_does_not_change_what_is_usual():
    steady, _ = heard_every([10.0] * 21)
    once, _ = heard_every([*[10.0] * 20, 500.0])
    assert once.limit_s() == steady.limit_s()


def test_it_forgets_how_it_once_was():
    deadline, _ = heard_every([*[100.0] * 100, *[1.0] * 64])
    assert deadline.limit_s() == SILENCE_FLOOR_S


def test_floor_and_factor_are_the_caller_s():
    deadline, now_s = heard_every([2.0] * 10, floor_s=60.0, factor=50.0)
    assert deadline.limit_s() == 100.0
    assert deadline.silent_s(now_s + 5.0) == 5.0


def test_a_clock_that_seems_to_go_back_is_no_gap():
    deadline = SilenceDeadline(10.0)
    for now_s in (9.0, 9.0, 9.0):
        deadline.heard(now_s)
    assert deadline.limit_s() == SILENCE_FLOOR_S


def test_a_clock_that_is_read_all_the_time_is_itself():
    awake = AwakeTime(3.0, 1.0)
    times = [10.0, 10.5, 13.5, 13.5, 16.5]
    assert [awake.at(now_s) for now_s in times] == times
    assert awake.away_s == 0.0


def test_a_gap_counts_as_one_usual_reading():
    awake = AwakeTime(3.0, 1.0)
    assert [awake.at(now_s) for now_s in (10.0, 3610.0, 3611.0, 7211.0)] == [10.0, 11.0, 12.0, 13.0]
    assert awake.away_s == 2 * 3599.0


@given(st.lists(st.floats(0.0, 1e5), min_size=1))
def test_awake_time_never_goes_back_and_moves_by_no_more_than_the_longest_gap(gaps_s):
    awake, now_s = AwakeTime(3.0, 1.0), 0.0
    before_s = awake.at(now_s)
    for gap_s in gaps_s:
        now_s += gap_s
        at_s = awake.at(now_s)
        assert before_s - 1e-6 <= at_s <= before_s + 3.0 + 1e-6
        before_s = at_s


def test_where_every_turn_is_a_gap_deadlines_pass_all_the_same():
    awake = AwakeTime(3.0, 1.0)
    deadline = SilenceDeadline(awake.at(0.0))
    silent = [turn for turn in range(1, 100) if deadline.expired(awake.at(10.0 * turn))]
    assert silent[0] == SILENCE_FLOOR_S + 1


@pytest.mark.parametrize(("longest_s", "usual_s"), [(3.0, 0.0), (1.0, 2.0), (float("nan"), 1.0)])
def test_a_gap_that_counts_for_nothing_is_refused(longest_s, usual_s):
    with pytest.raises(InvalidInput, match="awake time needs"):
        AwakeTime(longest_s, usual_s)
