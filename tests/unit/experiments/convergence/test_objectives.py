"""What is said of the objectives: gradients, L, σ² and the lower bound, each held against the numbers."""

import numpy as np
import pytest

from experiments.convergence.data import digits, tumours
from experiments.convergence.objectives import Logistic, Network, Quadratic, Tilted, equal_blocks


def logistic_value(objective, x):
    margins = objective.signs * (objective.features @ x)
    return np.logaddexp(0, -margins).mean() + objective.penalty * (x**2 / (1 + x**2)).sum()


VALUES = {
    "quadratic": (Quadratic(), lambda o, x: 0.5 * float((np.asarray(o.curvatures) * x**2).sum())),
    "tilted": (Tilted(), lambda o, x: sum(o._value(float(each)) for each in x)),
    "logistic": (Logistic(*tumours()), logistic_value),
    "network": (Network(*digits(64)), lambda o, x: o.loss(x)),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_exact_gradient_is_that_of_the_value(name):
    objective, value = VALUES[name]
    random = np.random.default_rng(1)
    x = objective.start + 0.1 * random.standard_normal(len(objective.start))
    gradient = objective.exact(x[None, None])[0, 0]
    for place in random.choice(len(x), 6, replace=False):
        step = np.zeros(len(x))
        step[place] = 1e-5
        assert gradient[place] == pytest.approx(
            (value(objective, x + step) - value(objective, x - step)) / 2e-5, abs=1e-6
        )


@pytest.mark.parametrize("name", VALUES)
def test_stochastic_gradients_are_unbiased_and_within_their_variance(name):
    objective, _ = VALUES[name]
    x = objective.start + 0.2
    blocks = equal_blocks(len(x), 2)
    draws = objective.gradients(np.broadcast_to(x, (4000, 1, len(x))).copy(), np.random.default_rng(2))[:, 0]
    exact = objective.exact(x[None, None])[0, 0]
    spread = draws.std(axis=0).max() / np.sqrt(len(draws))
    assert np.abs(draws.mean(axis=0) - exact).max() < 5.5 * spread + 1e-12
    if name != "network":
        for block, allowed in zip(blocks, objective.problem(blocks).sigma_sq, strict=True):
            assert ((draws - exact) ** 2)[:, block].sum(axis=1).mean() <= 1.1 * allowed


@pytest.mark.parametrize("name", ["quadratic", "tilted", "logistic"])
def test_it_is_as_smooth_as_it_says_and_its_gap_is_no_less_than_what_there_is(name):
    objective, value = VALUES[name]
    random = np.random.default_rng(3)
    problem = objective.problem(equal_blocks(len(objective.start), 3))
    x = random.standard_normal((400, 1, len(objective.start))) * 0.3
    y = x + 1e-3 * random.standard_normal(x.shape)
    change = np.linalg.norm(objective.exact(x) - objective.exact(y), axis=-1) / np.linalg.norm(x - y, axis=-1)
    assert change.max() <= problem.smoothness * (1 + 1e-6)
    point = objective.start[None, None]
    for _ in range(2000):
        point = point - objective.exact(point) / problem.smoothness
    assert 0 < value(objective, objective.start) - value(objective, point[0, 0]) <= problem.gap + 1e-9


def test_a_network_learns_and_stays_within_the_smoothness_and_variance_that_were_seen():
    objective = Network(*digits())
    random = np.random.default_rng(4)
    points = np.tile(objective.start, (1, 4, 1))
    before = objective.loss(points[0, 0])
    curvatures, variances = [], []
    for number in range(600):
        change = 1e-3 * random.standard_normal(points.shape)
        if number % 60 == 0:
            gradient = objective.exact(points)
            bent = np.linalg.norm(objective.exact(points + change) - gradient, axis=-1)
            curvatures.append((bent / np.linalg.norm(change, axis=-1)).max())
            drawn = objective.gradients(np.repeat(points, 50, axis=0), random)
            variances.append(((drawn - gradient) ** 2).sum(axis=-1).mean())
        points = points - 0.1 * objective.gradients(points, random)
    assert objective.loss(points[0, 0]) < 0.7 * before
    assert max(curvatures) < objective.smoothness
    assert max(variances) < objective.variance / objective.batch


def test_old_draws_are_few_and_biased():
    few = Quadratic(old_draws=4)
    drawn = few.gradients(np.zeros((200, 1, 24)), np.random.default_rng(0))[:, 0]
    assert len(np.unique(drawn.round(12), axis=0)) == 4
    assert np.linalg.norm(drawn.mean(axis=0)) > 0.3
