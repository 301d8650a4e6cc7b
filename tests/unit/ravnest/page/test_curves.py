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
    assert 2 <= len(curve.points) <= 5
    assert curve.points[0][0] < 20 < 80 < curve.points[-1][0]
    assert all(point[1] == 1.0 for point in curve.points)


@given(st.integers(2, 9), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_the_first_points_are_means_of_equally_many(most, values):
    curve = Curve(most)
    for value in values:
        curve.add(value)
    points = [point[0] for point in curve.points]
    assert len(points) <= most + 1
    width = 1
    while len(values) // width > most:
        width *= 2
    for index, point in enumerate(points):
        of = values[index * width : (index + 1) * width]
        assert point == pytest.approx(sum(of) / len(of), abs=1e-3)
