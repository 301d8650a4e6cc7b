"""The flow of a quadratic is known: x e^(−λt)."""

from itertools import islice

import numpy as np
import pytest

from experiments.convergence.flow import flow

CURVATURES = np.array([0.1, 1.0])
START = np.array([1.0, -2.0])


def test_the_flow_of_a_quadratic_is_the_known_one_and_what_it_spent_is_what_f_fell_by():
    moments = list(islice(flow(lambda points: CURVATURES * points, START, 0.5), 21))
    for moment in moments:
        point = START * np.exp(-CURVATURES * moment.time)
        assert moment.point == pytest.approx(point, abs=2e-3)
        assert moment.gradient == pytest.approx(CURVATURES * moment.point)
        fallen = 0.5 * (CURVATURES * (START**2 - point**2)).sum()
        assert moment.spent == pytest.approx(fallen, abs=0.01)
    assert moments[-1].time == pytest.approx(10)
