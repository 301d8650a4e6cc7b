import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.page.curves import Curve


def test_a_short_curve_is_what_came():
    curve = Curve(4)
    for at in range(4):
        curve.add(at, at * 10)
    assert curve.points == [(0, 0), (1, 10), (2, 20), (3, 30)]


def test_a_long_curve_keeps_its_length_and_its_ends():
    curve = Curve(4)
    for at in range(100):
        curve.add(float(at), 1.0)
    assert 2 <= len(curve.points) <= 4
    assert curve.points[0][0] < 30 < 70 < curve.points[-1][0]
    assert all(point[1] == 1.0 for point in curve.points)


def test_what_came_often_is_thinned_and_what_came_seldom_is_kept():
    curve = Curve(20)
    for at in (*range(0, 100), *range(100, 1000, 100)):
        curve.add(float(at))
    moments = [point[0] for point in curve.points]
    assert [at for at in moments if at >= 200] == list(range(200, 1000, 100))
    assert len(moments) <= 20


@given(st.integers(2, 9), st.lists(st.floats(0.001, 1e4), min_size=1, max_size=200))
def test_no_point_is_lost_in_the_mean_and_moments_rise(most, steps):
    curve, at, moments = Curve(most), 0.0, []
    for step in steps:
        at += step
        curve.add(at, at)
        moments.append(at)
    found = [point[0] for point in curve.points]
    assert len(found) <= most
    assert found == sorted(found)
    assert moments[0] <= found[0] * (1 + 1e-4)  # they have five digits
    assert found[-1] <= moments[-1] * (1 + 1e-4)
    assert all(point[0] == pytest.approx(point[1]) for point in curve.points)


def test_samples_that_are_made_anew_replace_those_before_and_those_of_their_span():
    curve = Curve(10, samples_at=1)
    for at in range(10):
        curve.add(float(at), 10.0 * at, 1.0)
    curve.add(10.0, 45.0, 2.0)
    curve.add(11.0, 45.0, 3.0)
    assert curve.points == [*((at, 10.0 * at, 1.0) for at in range(5)), (10.0, 45.0, 2.0), (11.0, 45.0, 3.0)]
    long = Curve(10, samples_at=1)
    for at in range(1000):
        long.add(float(at), float(at), 1.0)
    long.add(1000.0, 500.0, 2.0)
    samples = [point[1] for point in long.points]
    assert samples == sorted(samples)
    assert samples[-1] == 500.0
    assert 300 <= samples[-2] < 500
