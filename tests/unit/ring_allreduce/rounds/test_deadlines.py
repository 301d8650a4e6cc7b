import pytest

from ring_allreduce.rounds.deadlines import SILENCE_FLOOR_S, SilenceDeadline


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
