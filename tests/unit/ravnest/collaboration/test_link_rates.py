import pytest

from ravnest.collaboration.link_rates import KEPT, LinkRate


def test_the_densest_half_counts_and_not_the_wait_before_or_the_slow_end() -> None:
    rate = LinkRate()
    assert rate.bytes_per_s == 0.0
    rate.passed(100.0, 0.0)
    for tenth in range(100, 200):
        rate.passed(1000.0, tenth / 10 + 0.05)  # 10 kB/s for 10 s
    for second in range(30, 60):
        rate.passed(500.0, float(second))
    rate.step_ended()
    assert rate.bytes_per_s == pytest.approx(10_000.0, rel=0.05)


def test_what_takes_no_time_says_nothing() -> None:
    rate = LinkRate()
    rate.passed(1e9, 1.0)
    rate.passed(1e9, 1.05)
    rate.passed(0.0, 5.0)
    rate.step_ended()
    rate.step_ended()
    assert rate.bytes_per_s == 0.0


def test_the_median_of_the_last_steps_follows_a_link_that_becomes_slower() -> None:
    rate = LinkRate()
    for step in range(2 * KEPT):
        each = 1000.0 if step < KEPT else 100.0
        for tenth in range(20):
            rate.passed(each, 100.0 * step + tenth / 10 + 0.05)
        rate.step_ended()
        if step == KEPT:  # one slow step is no slow link
            assert rate.bytes_per_s == pytest.approx(10_000.0, rel=0.1)
    assert rate.bytes_per_s == pytest.approx(1000.0, rel=0.1)
