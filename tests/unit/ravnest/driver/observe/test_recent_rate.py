"""The rate of what is counted up in steps."""

import pytest

from ravnest.driver.observe.recent_rate import RATE_OVER_S, RecentRate


def test_it_is_that_between_steps_whenever_it_is_asked() -> None:
    rate = RecentRate()
    assert rate.at(0.0, 0) == 0.0
    for second in range(1, 60):
        shown = rate.at(float(second), 12 * (second // 3))
    assert shown == pytest.approx(4.0)


def test_it_falls_while_the_next_step_is_late() -> None:
    rate = RecentRate()
    for second in range(5):
        rate.at(float(second), 10 * second)
    assert rate.at(4.5, 40) == pytest.approx(10.0)
    assert rate.at(24.0, 40) < 3.0


def test_what_is_long_ago_counts_no_more() -> None:
    rate = RecentRate()
    for second in range(100):
        rate.at(float(second), 100 * second)
    for second in range(100, 100 + 3 * int(RATE_OVER_S)):
        shown = rate.at(float(second), 9900 + 2 * (second - 99))
    assert shown == pytest.approx(2.0)
