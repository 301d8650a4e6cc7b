"""Curvature and variance where both are known, and that they are looked for all the way down."""

import numpy as np
import pytest

from experiments.convergence.seen import LOOKS, curvature, look


def test_the_curvature_of_a_quadratic_is_its_eigenvalue_of_largest_modulus():
    random = np.random.default_rng(0)
    turned, _ = np.linalg.qr(random.standard_normal((5, 5)))
    hessian = turned @ np.diag([0.1, 0.4, 1.0, 2.0, -3.0]) @ turned.T
    assert curvature(lambda points: points @ hessian, random.standard_normal(5)) == pytest.approx(3, rel=1e-6)


def test_what_grows_on_the_way_down_is_seen_there():
    samples = np.array([[-1.0], [1.0]])

    def each(point):
        return samples * (2 - np.abs(point))

    seen = look(np.tanh, each, np.array([1.5]))  # flatter at the start: 1 at the minimum
    assert len(seen) == LOOKS
    assert seen[0].curvature == pytest.approx(1 - np.tanh(1.5) ** 2, rel=1e-3)
    assert max(moment.curvature for moment in seen) == pytest.approx(1, rel=0.01)
    assert seen[0].variance.sum() == pytest.approx(0.25)
    assert max(float(moment.variance.sum()) for moment in seen) == pytest.approx(4, rel=0.01)
    assert [moment.time for moment in seen] == sorted(moment.time for moment in seen)
    assert seen[-1].time >= 2 ** (LOOKS - 2)


def test_a_descent_that_gets_too_steep_for_its_steps_is_refused():
    with pytest.raises(ValueError, match="too much"):
        look(np.tanh, lambda point: point[None], np.array([2.0]))
