"""What is said of the objectives: gradients, L, σ² and the lower bound, each held against the numbers."""

import numpy as np
import pytest

from experiments.convergence import fleets
from experiments.convergence.cases import Case
from experiments.convergence.data import digits, tumours
from experiments.convergence.objectives import MARGIN, Logistic, Network, Quadratic, Tilted, equal_blocks
from experiments.convergence.seen import curvature


def logistic_value(objective, x):
    margins = objective.signs * (objective.features @ x)
    return np.logaddexp(0, -margins).mean() + objective.penalty * (x**2 / (1 + x**2)).sum()


VALUES = {
    "quadratic": (Quadratic(), lambda o, x: 0.5 * float((np.asarray(o.curvatures) * x**2).sum())),
    "tilted": (Tilted(), lambda o, x: sum(o.value(float(each)) for each in x)),
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


@pytest.fixture(scope="module")
def network():
    """One for all tests: it trains itself to see how curved it is and how its gradients vary."""
    return Network(*digits())


@pytest.mark.parametrize("updates", [64, 1024])
def test_trainings_of_the_network_stay_within_the_smoothness_and_variance_that_it_says(updates, network):
    """With the theorem's step for so many updates: the larger one is the largest that part `rate` takes."""
    objective = network
    blocks = equal_blocks(len(objective.start), 4)
    problem = objective.problem(blocks)
    schedule = fleets.schedule(fleets.Shape(stages=4, staleness=3), updates)
    step = Case(objective, schedule).promise(updates).step
    random = np.random.default_rng(4)
    points = np.tile(objective.start, (1, 4, 1))
    for number in range(updates):
        if number % (updates // 16) == updates // 16 - 1:
            assert curvature(objective.exact, points[0, 0]) < problem.smoothness
            each = objective.of_each_sample(points[0, 0]).var(axis=0) / objective.batch
            for block, allowed in zip(blocks, problem.sigma_sq, strict=True):
                assert each[block].sum() < allowed
        points = points - step * objective.gradients(points, random)
    assert objective.loss(points[0, 0]) < 0.8 * objective.loss(objective.start)


def test_the_network_says_no_more_than_its_margin_over_what_was_seen(network):
    objective = network
    problem = objective.problem([slice(0, len(objective.start))])
    first = objective.seen[0]
    drawn = objective.gradients(np.tile(objective.start, (4000, 1, 1)), np.random.default_rng(0))[:, 0]
    assert first.variance.sum() / objective.batch == pytest.approx(drawn.var(axis=0).sum(), rel=0.05)
    assert problem.smoothness == MARGIN * max(seen.curvature for seen in objective.seen)
    assert problem.whole_sigma_sq < 2 * MARGIN * drawn.var(axis=0).sum()


def test_old_draws_are_few_and_biased():
    few = Quadratic(old_draws=4)
    drawn = few.gradients(np.zeros((200, 1, 24)), np.random.default_rng(0))[:, 0]
    assert len(np.unique(drawn.round(12), axis=0)) == 4
    assert np.linalg.norm(drawn.mean(axis=0)) > 0.3
