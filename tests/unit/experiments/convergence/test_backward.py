import numpy as np
import pytest

from experiments.convergence import backward
from experiments.convergence.data import digits
from experiments.convergence.objectives import Network

NETWORK = Network(*digits(32))


def test_the_forward_s_weights_give_the_gradient_and_others_do_not():
    point = NETWORK.start[None, None]
    other = point + 0.1 * np.random.default_rng(0).standard_normal(point.shape)
    assert np.array_equal(NETWORK.exact(point, point), NETWORK.exact(point))
    off = NETWORK.exact(point, other) - NETWORK.exact(point)
    cut = NETWORK.features.shape[1] * NETWORK.hidden
    assert np.abs(off[..., :cut]).max() > 1e-4
    assert np.array_equal(off[..., cut:], np.zeros_like(off[..., cut:]))  # the last layer's needs no other weights


def test_the_bias_is_of_the_order_of_the_step_and_own_weights_have_none():
    size = backward.Sizes((0.01, 0.02), 4 * backward.DELAY, 4)
    small, large = (backward.train(NETWORK, step, size, newest=True).bias.mean() for step in size.steps)
    assert large / small == pytest.approx(2, rel=0.2)
    assert backward.train(NETWORK, 0.02, size, newest=False).bias.max() == 0


def test_both_ways_see_the_same_samples():
    size = backward.Sizes((1e-9,), 32, 2)
    own, newest = (backward.train(NETWORK, 1e-9, size, newest=which) for which in (False, True))
    assert own.error == pytest.approx(newest.error, rel=1e-6)
