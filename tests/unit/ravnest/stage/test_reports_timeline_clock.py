import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.stage.reports import ClockOffset

SECONDS = st.floats(0.0, 1e3)


def test_before_any_exchange_nothing_is_known() -> None:
    clock = ClockOffset()
    assert (clock.offset_s, clock.error_s) == (0.0, math.inf)


def test_the_quickest_exchange_counts() -> None:
    clock = ClockOffset()
    clock.exchanged(10.0, 110.5, 111.0, 11.1)  # half a second there, a tenth back
    clock.exchanged(20.0, 120.01, 120.5, 20.52)  # 10 ms there, 20 ms back
    clock.exchanged(30.0, 130.9, 131.0, 31.2)
    assert clock.error_s == pytest.approx(0.015)
    assert clock.offset_s == pytest.approx(100.0 - 0.005)


@given(offset_s=st.floats(-1e6, 1e6), there_s=SECONDS, held_s=SECONDS, back_s=SECONDS)
def test_the_error_is_never_more_than_it_says(offset_s: float, there_s: float, held_s: float, back_s: float) -> None:
    clock = ClockOffset()
    heard_s = 5.0 + there_s + offset_s
    clock.exchanged(5.0, heard_s, heard_s + held_s, 5.0 + there_s + held_s + back_s)
    assert abs(clock.offset_s - offset_s) <= 2 * clock.error_s + 1e-6


def test_one_clock_read_by_two_has_no_offset() -> None:
    clock = ClockOffset()
    clock.exchanged(10.0, 10.0004, 10.9, 10.9001)
    assert clock.offset_s == 0.0
    assert clock.error_s == pytest.approx(0.00025)
